"""Save: which form of a report does a path ask for?

Input: a `Report` and a path. Output: a file, whole or not at all (`files.py`).
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxswap._errors import BadArgumentError
from jaxswap._files import write_whole
from jaxswap.report.paths import check_writable, suffix_of

if TYPE_CHECKING:
    from jaxswap.report.report import Report


def save_report(report: "Report", path: str | os.PathLike[str], *, part: str | None = None) -> None:
    """Writes a report as its path's suffix says."""
    suffix = suffix_of(path)
    if part is not None and suffix not in (".csv", ".svg", ".png"):
        raise BadArgumentError(
            f"`part={part!r}` with {suffix}: only a table (.csv) or a figure (.svg, .png) is "
            "saved alone; leave `part` out."
        )
    check_saveable(path)
    write_whole(path, render(report, suffix, part=part))


def check_saveable(path: str | os.PathLike[str]) -> None:
    """Raises if a report could not be saved there: before the work, not after it."""
    if suffix_of(path) == ".png":
        _find_drawer()
    check_writable(path)


def render(report: "Report", suffix: str, *, part: str | None = None) -> str | bytes:
    """What a file with this suffix holds."""
    if suffix == ".html":
        from jaxswap.report.html import render_page

        return render_page(report)
    if suffix == ".trace.json":
        from jaxswap.report.trace_events import to_trace_json

        return to_trace_json(report)
    if suffix in (".json", ".csv"):
        from jaxswap.report import tables

        if suffix == ".json":
            return tables.to_json(report)
        return tables.to_csv(report, part or "decisions")
    from jaxswap.report.figures import draw

    svg = draw(report, part)
    return svg if suffix == ".svg" else bytes(_find_drawer()(svg_string=svg, zoom=2))


def _find_drawer() -> Callable[..., bytes]:
    try:
        import resvg_py
    except ImportError as error:
        raise BadArgumentError(
            "A .png is drawn by `resvg-py`, which is not installed: `pip install "
            "'jaxswap[report]'`, or save as .svg."
        ) from error
    return resvg_py.svg_to_bytes
