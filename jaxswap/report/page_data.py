"""Page data: what does the page's own code draw from?

Input: a `Report`. Output: JSON for a script element.
Texts are stored once and referred to by number, numbers in columns; times are rounded to
picoseconds. `<`, `>` and `&` are written as escapes, so that no text can end the element.
"""

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from jaxswap.report.rows import Curve, DecisionRow, Streams

if TYPE_CHECKING:
    from jaxswap.report.report import Report

_PHASES = ("forward", "backward", "update", "recompute")
_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def to_page_json(report: "Report") -> str:
    """The data of the page, safe inside a script element."""
    strings: dict[str, int] = {"": 0}

    def number(text: str) -> int:
        return strings.setdefault(text, len(strings))

    fields = [field.name for field in dataclasses.fields(DecisionRow)]
    data = {
        "budget_bytes": report.budget_bytes,
        "phases": _PHASES,
        "curves": {
            "before": _curve(report.curve_before, number),
            "after": _curve(report.curve_after, number),
        },
        "streams": {
            "before": _streams(report.streams_before, number),
            "after": _streams(report.streams_after, number),
        },
        "decision_fields": fields,
        "decisions": [[getattr(row, name) for name in fields] for row in report.decisions],
    }
    text = json.dumps(
        {**data, "strings": list(strings)}, separators=(",", ":"), ensure_ascii=False,
        allow_nan=False,
    )  # fmt: skip
    for character, escaped in _ESCAPES.items():
        text = text.replace(character, escaped)
    return text


def _curve(curve: Curve | None, number: Any) -> dict[str, Any] | None:
    if curve is None or not curve.names:
        return None
    holders: list[int] = []
    for h in curve.holders:
        holders += (number(h.label), number(h.source), h.size_bytes, h.first, h.last)
    return {
        "how": curve.how,
        "step_s": curve.step_s,
        "base_bytes": curve.base_bytes,
        "peak": curve.peak_op,
        "names": [number(name) for name in curve.names],
        "labels": [number(label) for label in curve.labels],
        "sources": [number(source) for source in curve.sources],
        "starts": [_seconds(start_s) for start_s in curve.starts_s],
        "bytes": list(curve.bytes_at),
        "holders": holders,
    }


def _streams(streams: Streams | None, number: Any) -> dict[str, Any] | None:
    if streams is None or not streams.slices:
        return None
    lanes: dict[str, dict[str, list[Any]]] = {}
    for s in sorted(streams.slices, key=lambda s: s.start_s):
        lane = lanes.setdefault(s.stream, {name: [] for name in (
            "labels", "sources", "phases", "starts", "durations", "sizes")})  # fmt: skip
        lane["labels"].append(number(s.label or s.name))
        lane["sources"].append(number(s.source))
        lane["phases"].append(_PHASES.index(s.phase))
        lane["starts"].append(_seconds(s.start_s))
        lane["durations"].append(_seconds(s.duration_s))
        lane["sizes"].append(s.size_bytes)
    return {"how": streams.how, "step_s": streams.step_s, "lanes": lanes}


def _seconds(value: float) -> float:
    return round(value, 12)
