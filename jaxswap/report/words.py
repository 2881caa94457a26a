"""Words: how do the terminal and the page say the same thing?

Input: a `Report` and its figures. Output: numbers with their units, changes, the verdict, and
the rows that set forecast, replayed and measured side by side.
"""

from typing import TYPE_CHECKING

from jaxswap._units import format_bytes, format_seconds
from jaxswap.report.rows import Figure

if TYPE_CHECKING:
    from jaxswap.report.report import Report


def format_value(figure: Figure, value: float | None) -> str:
    """A number with its unit; a dash where there is none."""
    if value is None:
        return "–"
    return format_bytes(value) if figure.unit == "bytes" else format_seconds(value)


def count_of(count: int, noun: str) -> str:
    """A number of things: `1 value`, `2 values`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_change(before: float | None, after: float | None) -> str:
    """By how many percent `after` differs from `before`."""
    if not before or after is None:
        return ""
    change = 100.0 * (after / before - 1.0)
    return f"{'+' if change >= 0 else '−'}{abs(change):.1f} %"


def verdict(report: "Report") -> str:
    """In one sentence: does the planned step fit, and by whose word?"""
    figure = report.best("device memory")
    if figure is None or figure.after is None:
        return "nothing is known about its memory"
    word = "fits" if report.fits else "does not fit"
    budget = format_bytes(report.budget_bytes)
    said = f"{word} its budget: {format_bytes(figure.after)} of {budget} ({figure.how})"
    if figure.how == "forecast" and report.is_confirmed:
        said += ", confirmed by the compiler when it was planned"
    return said


def agreement(report: "Report") -> list[tuple[str, str, str, str, str, str]]:
    """Each quantity by every way it was found, and by how much the forecast is off."""
    found = []
    for name in dict.fromkeys(figure.name for figure in report.figures):
        by_how = {figure.how: figure for figure in report.figures if figure.name == name}
        forecast = by_how.get("forecast")
        judged = by_how.get("compiled") or by_how.get("replayed")
        measured = by_how.get("measured")
        truth = measured or judged
        if forecast is None or truth is None:
            continue
        for step, side in (("as written", "before"), ("planned", "after")):
            values = [getattr(f, side) if f else None for f in (forecast, judged, measured)]
            if values[1] is None or not any(values):
                continue
            shown = [format_value(forecast, value) for value in values]
            off = format_change(getattr(truth, side), values[0])
            found.append((name, step, shown[0], f"{shown[1]} ({judged.how})" if judged else "–",
                          shown[2], off or "–"))  # fmt: skip
    return found
