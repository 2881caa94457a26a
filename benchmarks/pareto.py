"""Pareto: which contender is fastest at which size, in one picture per panel?

Input: the points of a panel. Output: an SVG, written by hand.
The one convention: to the left is less memory, down is faster; the grey line is the front of
everybody but jaxswap, and jaxswap should be on it or below.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.bench_results import PanelResults, Row

_WIDTH, _HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 56, 52
# Okabe and Ito's colours, which colour-blind readers can tell apart; shapes differ as well.
_MARKS = {
    "jaxswap": ("#D55E00", "circle", "jaxswap"),
    "policy": ("#0072B2", "square", "JAX policies, per block"),
    "paper": ("#CC79A7", "triangle", "papers' strategies"),
    "xla": ("#009E73", "diamond", "XLA's own"),
    "unplanned": ("#555555", "cross", "as written"),
}
_INK, _GRID = "#333333", "#DDDDDD"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    x: Callable[[float], float]
    y: Callable[[float], float]
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]


def draw_pareto(results: PanelResults) -> str:
    """The panel's points as an SVG."""
    rows = [row for row in results.rows if row.is_ok]
    axes = _scale(rows)
    title = f"{results.panel.model} on {results.panel.device}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}: step time over device memory" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 20, title, size=15, weight="bold"),
        *_draw_legend({row.kind for row in rows}),
        *_draw_axes(axes),
        _draw_front([row for row in rows if row.kind != "jaxswap"], axes),
        # jaxswap last, so that nothing covers it.
        *(_draw_row(r, axes) for r in sorted(rows, key=lambda row: row.kind == "jaxswap")),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def find_front(rows: Sequence[Row]) -> list[Row]:
    """The rows that no other row is as small and as fast as, from the smallest on."""
    front: list[Row] = []
    for row in sorted(rows, key=lambda r: (r.device_bytes, r.step_s)):
        if not front or row.step_s < front[-1].step_s:
            front.append(row)
    return front


def list_ticks(highest: float, lowest: float = 0.0, count: int = 6) -> list[float]:
    """Round numbers from `lowest` to beyond `highest`.

    Example:
        >>> list_ticks(20.7)
        [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]
    """
    rough = max(highest - lowest, 1e-9) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.floor(lowest / step)
    ticks = [first * step]
    while ticks[-1] < highest:
        ticks.append(round((first + len(ticks)) * step, 10))
    return ticks


def _scale(rows: Sequence[Row]) -> _Axes:
    gigabytes, millis = [r.device_bytes / 1e9 for r in rows], [r.step_s * 1e3 for r in rows]
    x_ticks = list_ticks(max(gigabytes))
    # What differs is of interest: the axis of time does not start at zero.
    y_ticks = list_ticks(max(millis), lowest=min(millis) * 0.95)
    across, up = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    x_span, y_low, y_span = x_ticks[-1], y_ticks[0], y_ticks[-1] - y_ticks[0]
    return _Axes(
        x=lambda gb: _LEFT + across * gb / x_span,
        y=lambda ms: _HEIGHT - _BOTTOM - up * (ms - y_low) / y_span,
        x_ticks=x_ticks,
        y_ticks=y_ticks,
    )


def _draw_axes(axes: _Axes) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for tick in axes.x_ticks:
        x = axes.x(tick)
        parts.append(
            f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{_GRID}"/>'
        )
        parts.append(_text(x, bottom + 18, f"{tick:g}", anchor="middle"))
    for tick in axes.y_ticks:
        y = axes.y(tick)
        parts.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{_GRID}"/>'
        )
        parts.append(_text(_LEFT - 8, y + 4, f"{tick:g}", anchor="end"))
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 12, "device GB, compiled", anchor="middle"))
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text x="16" y="{middle}" fill="{_INK}" text-anchor="middle" '
        f'transform="rotate(-90 16 {middle})">ms per step, replayed</text>'
    )
    return parts


def _draw_front(rows: Sequence[Row], axes: _Axes) -> str:
    """A staircase: from one point on, its time is to be had, up to the next."""
    front = find_front(rows)
    if not front:
        return ""
    path, top = [], axes.y(axes.y_ticks[-1])
    for index, row in enumerate(front):
        x, y = axes.x(row.device_bytes / 1e9), axes.y(row.step_s * 1e3)
        path.append(f"M{x:.1f} {top:.1f}V{y:.1f}" if index == 0 else f"H{x:.1f}V{y:.1f}")
    path.append(f"H{_WIDTH - _RIGHT}")
    return f'<path d="{"".join(path)}" fill="none" stroke="#999999" stroke-dasharray="4 3"/>'


def _draw_row(row: Row, axes: _Axes) -> str:
    gigabytes, millis = row.device_bytes / 1e9, row.step_s * 1e3
    share = "" if row.share is None else f" at {row.share:.0%}"
    label = escape(f"{row.name}{share}: {gigabytes:.2f} GB, {millis:.1f} ms")
    color, shape, _ = _MARKS[row.kind]
    mark = _draw_mark(axes.x(gigabytes), axes.y(millis), color, shape)
    return f"<g>{mark}<title>{label}</title></g>"


def _draw_legend(kinds: set[str]) -> list[str]:
    parts, x = [], float(_LEFT)
    for kind, (color, shape, label) in _MARKS.items():
        if kind in kinds:
            parts.append(_draw_mark(x + 5, 38, color, shape))
            parts.append(_text(x + 14, 42, label, size=11))
            x += 26 + 6.0 * len(label)
    return parts


def _draw_mark(x: float, y: float, color: str, shape: str) -> str:
    at = f'fill="{color}" fill-opacity="0.85"'
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" {at}/>'
    if shape == "square":
        return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {at}/>'
    corners = {
        "triangle": ((0, -5), (5, 4), (-5, 4)),
        "diamond": ((0, -6), (5, 0), (0, 6), (-5, 0)),
        "cross": ((-5, -3), (-3, -5), (0, -2), (3, -5), (5, -3), (2, 0),
                  (5, 3), (3, 5), (0, 2), (-3, 5), (-5, 3), (-2, 0)),
    }[shape]  # fmt: skip
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" {at}/>'


def _text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{_INK}" font-size="{size}" '
        f'text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
    )
