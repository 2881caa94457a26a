"""Plots: where on the paper is a number?

Input: ranges and points. Output: axes, legends and paths, as pieces of SVG.
A frame is `WIDTH` × `HEIGHT` with the origin of its axes at the bottom left.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from jaxswap._units import format_bytes, format_seconds

WIDTH, HEIGHT = 960, 360
_MAX_POINTS = 1600
_LETTER = 6.6  # the width of a letter, about
_LABEL_ROWS = 8  # how far from its point a label may be


class Frame:
    """A coordinate system with axes."""

    left, end, above, bottom = 104.0, WIDTH - 24.0, 64.0, HEIGHT - 42.0

    def __init__(self, *, right: float, top: float, bottom_s: float = 0.0):
        self.right, self.top, self.low = right or 1.0, top or 1.0, bottom_s

    def x(self, value: float) -> float:
        """Where a number of the horizontal axis is."""
        return self.left + (self.end - self.left) * value / self.right

    def y(self, value: float) -> float:
        """Where a number of the vertical axis is."""
        share = (value - self.low) / ((self.top - self.low) or 1.0)
        return self.bottom - (self.bottom - self.above) * share

    def heading(self, text: str) -> str:
        """The title."""
        return f'<text class="title" x="24" y="28">{escape(text)}</text>'

    def legend(self, keys: Iterable[tuple[str, str]]) -> str:
        """A swatch and a word for each class."""
        parts, x = [], self.left
        for name, word in keys:
            if name.endswith("line") or name == "ideal":
                mark = f'<path class="{name}" d="M{x:.0f} 46h18"/>'
            else:
                mark = f'<rect class="{name}" x="{x:.0f}" y="40" width="18" height="11" rx="2"/>'
            parts.append(f'{mark}<text x="{x + 24:.0f}" y="50">{escape(word)}</text>')
            x += 46 + _LETTER * len(word)
        return "".join(parts)

    def byte_axis(self, *, is_x: bool = False) -> str:
        """Ticks in GiB, MiB or KiB."""
        most = self.right if is_x else self.top
        unit = max((u for u in (1, 2**10, 2**20, 2**30, 2**40) if u <= most), default=1)
        ticks = [tick * unit for tick in nice_ticks(0.0, most / unit)]
        return self._axis([(t, _short(format_bytes(t))) for t in ticks], is_x=is_x)

    def time_axis(self, *, is_y: bool = False) -> str:
        """Ticks in s, ms or µs."""
        low, high = (self.low, self.top) if is_y else (0.0, self.right)
        scale = next((s for s in (1.0, 1e-3, 1e-6) if high >= s), 1e-6)
        ticks = [tick * scale for tick in nice_ticks(low / scale, high / scale)]
        return self._axis([(t, format_seconds(round(t, 12))) for t in ticks], is_x=not is_y)

    def number_axis(self, *, is_x: bool = False) -> str:
        """Ticks without a unit."""
        most = self.right if is_x else self.top
        return self._axis([(t, f"{t:g}") for t in nice_ticks(0.0, most)], is_x=is_x)

    def _axis(self, ticks: Iterable[tuple[float, str]], *, is_x: bool) -> str:
        parts = []
        for value, word in ticks:
            if is_x:
                x = self.x(value)
                line = f'x1="{x:.1f}" x2="{x:.1f}" y1="{self.above}" y2="{self.bottom}"'
                text = f'x="{x:.1f}" y="{self.bottom + 20}" text-anchor="middle"'
            else:
                y = self.y(value)
                line = f'x1="{self.left}" x2="{self.end}" y1="{y:.1f}" y2="{y:.1f}"'
                text = f'x="{self.left - 8}" y="{y + 4:.1f}" text-anchor="end"'
            parts.append(f'<line class="grid" {line}/><text {text}>{escape(word)}</text>')
        return "".join(parts)


def nice_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """About `count` round numbers from `low` to `high`.

    Example:
        >>> nice_ticks(0.0, 10.0)
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def thin_steps(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    """Few enough points to draw: of each stretch the lowest, the highest and the last."""
    if len(xs) <= _MAX_POINTS:
        return list(zip(xs, map(float, ys), strict=True))
    width = (xs[-1] - xs[0]) * 3 / _MAX_POINTS or 1.0
    points: list[tuple[float, float]] = []
    for _, ops in groupby(range(len(xs)), key=lambda op: (xs[op] - xs[0]) // width):
        stretch = list(ops)
        low, high = min(stretch, key=ys.__getitem__), max(stretch, key=ys.__getitem__)
        points += [(xs[op], float(ys[op])) for op in sorted({low, high, stretch[-1]})]
    return points


def steps_path(frame: Frame, points: Sequence[tuple[float, float]]) -> str:
    """A line of steps: each point's height holds until the next."""
    if not points:
        return ""
    first, *rest = points
    path = [f"M{frame.x(first[0]):.1f} {frame.y(first[1]):.1f}"]
    path += [f"H{frame.x(x):.1f}V{frame.y(y):.1f}" for x, y in rest]
    return "".join(path)


def place_labels(
    anchors: Sequence[tuple[float, float, str]], frame: Frame
) -> list[tuple[float, float]]:
    """Where texts beside points start, so that none covers another or leaves the frame.

    Each takes the first free place of some around its point, the nearest first.
    """
    taken: list[tuple[float, float, float, float]] = [
        (x - 6, y - 6, x + 6, y + 6) for x, y, _ in anchors
    ]
    places = []
    for x, y, text in anchors:
        width = _LETTER * len(text)
        tries = [
            (left, y + down)
            for row in range(_LABEL_ROWS)
            for down in (-8 - 14 * row, 16 + 14 * row)
            for left in (x + 9, x - 9 - width)
            if frame.left <= left <= frame.end - width
            and frame.above + 10 <= y + down <= frame.bottom - 4
        ]
        boxes = [(left, base - 10, left + width, base + 3) for left, base in tries]
        free = [k for k, box in enumerate(boxes) if not any(_overlap(box, t) for t in taken)]
        chosen = free[0] if free else 0
        places.append(tries[chosen] if tries else (x + 9, y - 8))
        taken += boxes[chosen : chosen + 1]
    return places


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _short(size: str) -> str:
    """A tick's size without zeros behind the point."""
    number, unit = size.split(" ")
    return f"{float(number):g} {unit}"
