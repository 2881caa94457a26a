"""Figures: what do memory, streams, the front and batch sizes look like, on paper?

Input: a `Report`. Output: SVG text, one figure or all of them below each other.
Colours are classes: a file of its own brings them along (`STYLE`), the page has its own, for
light and dark.
"""

from collections.abc import Callable, Iterable
from html import escape
from typing import TYPE_CHECKING

from jaxswap._errors import BadArgumentError
from jaxswap._units import format_bytes, format_seconds
from jaxswap.report.plots import HEIGHT, WIDTH, Frame, place_labels, steps_path, thin_steps
from jaxswap.report.rows import BatchRow, Streams

if TYPE_CHECKING:
    from jaxswap.report.report import Report

STYLE = """
text{font-family:Inter,system-ui,'Segoe UI','DejaVu Sans',sans-serif;font-size:12px;fill:#414a5a}
.title{font-size:15px;font-weight:600;fill:#151b26}.strong{font-weight:600;fill:#151b26}
.paper{fill:#ffffff}.grid{stroke:#e6e9ef;stroke-width:1}.lane{fill:#f4f6f9}
.before-line{fill:none;stroke:#a78bba;stroke-width:1.6}.before-area{fill:#a78bba;fill-opacity:.16}
.after-line{fill:none;stroke:#0f8b8d;stroke-width:2}.after-area{fill:#0f8b8d;fill-opacity:.18}
.budget{stroke:#d1345b;stroke-width:1.5;stroke-dasharray:6 4}.budget-text{fill:#d1345b}
.forward{fill:#3a86c8}.backward{fill:#5a4fa3}.update{fill:#98a2b3}.recompute{fill:#e08e1b}
.to_host{fill:#0f8b8d}.to_device{fill:#45b36b}.collective{fill:#7a6f5d}
.oom{fill:#d1345b;fill-opacity:.06}.plan{fill:#0f8b8d}.policy{fill:#e08e1b}.written{fill:#a78bba}.chosen{fill:#d1345b}
.front-line{fill:none;stroke:#0f8b8d;stroke-width:1.6}.ideal{fill:none;stroke:#98a2b3;
stroke-width:1.4;stroke-dasharray:3 4}
"""
LANES = {
    "compute": "compute",
    "to_host": "to the host",
    "to_device": "to the device",
    "collective": "collectives",
}


def draw(report: "Report", part: str | None = None) -> str:
    """One figure, or all that the report has, as an SVG file."""
    if part is not None and part not in FIGURES:
        raise BadArgumentError(
            f"`part={part!r}` is no figure of a report: write one of "
            f"{', '.join(map(repr, FIGURES))}, or leave it out for all of them."
        )
    drawn = [FIGURES[name](report) for name in ([part] if part else FIGURES)]
    shown = [figure for figure in drawn if figure]
    if not shown:
        raise BadArgumentError(
            f"This report has no figure {part!r}: give `Report.of` what it shows."
            if part
            else "This report has nothing to draw: neither a curve, a front nor batch sizes."
        )
    inner = "".join(
        f'<g transform="translate(0 {at * HEIGHT})">{figure}</g>' for at, figure in enumerate(shown)
    )
    return wrap(inner, height=HEIGHT * len(shown), style=STYLE)


def wrap(inner: str, *, height: int = HEIGHT, style: str = "", crop: int = 0) -> str:
    """The drawing as an SVG element; with a style it stands alone. `crop` cuts off the title."""
    paper = f'<style>{style}</style><rect class="paper" width="100%" height="100%"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {crop} {WIDTH} '
        f'{height - crop}" width="{WIDTH}" height="{height - crop}">'
        f"{paper if style else ''}{inner}</svg>"
    )


def draw_memory(report: "Report") -> str:
    """Device memory along the step, as written and planned, and the budget."""
    curves = [(name, curve) for name, curve in (
        ("before", report.curve_before), ("after", report.curve_after)) if curve]  # fmt: skip
    if not curves:
        return ""
    most = max(report.budget_bytes, *(curve.peak_bytes for _, curve in curves))
    frame = Frame(right=max(curve.step_s for _, curve in curves), top=most * 1.08)
    parts = [frame.heading("Device memory along the step"), frame.byte_axis(), frame.time_axis()]
    words = {"before": "as written", "after": "planned"}
    for name, curve in curves:
        points = thin_steps(curve.starts_s, curve.bytes_at)
        points.append((curve.step_s, points[-1][1] if points else 0.0))
        line = steps_path(frame, points)
        close = f"L{frame.x(curve.step_s):.1f} {frame.y(0):.1f}L{frame.x(0):.1f} {frame.y(0):.1f}Z"
        parts.append(f'<path class="{name}-area" d="{line}{close}"/>')
        parts.append(f'<path class="{name}-line" d="{line}"/>')
    keys = [
        (f"{name}-line", f"{words[name]}: {format_bytes(curve.peak_bytes)} ({curve.how})")
        for name, curve in curves
    ]
    y = frame.y(report.budget_bytes)
    label = f"budget {format_bytes(report.budget_bytes)}"
    parts.append(f'<line class="budget" x1="{frame.left}" x2="{frame.end}" y1="{y}" y2="{y}"/>')
    parts.append(f'<text class="budget-text" x="{frame.end}" y="{y - 5:.1f}" '
                 f'text-anchor="end">{escape(label)}</text>')  # fmt: skip
    return "".join(parts) + frame.legend(keys)


def draw_timeline(report: "Report") -> str:
    """Kernels and copies of the planned step, or of the step as written if that is all."""
    streams = report.streams_after or report.streams_before
    if streams is None or not streams.slices:
        return ""
    step = "planned step" if report.streams_after else "step as written"
    frame = Frame(right=streams.step_s, top=1.0)
    lanes = [lane for lane in LANES if any(s.stream == lane for s in streams.slices)]
    height = min((frame.bottom - frame.above) / len(lanes), 76.0)
    parts = [frame.heading(f"Streams of the {step} ({streams.how})"), frame.time_axis()]
    for at, lane in enumerate(lanes):
        y = frame.above + at * height
        parts.append(f'<rect class="lane" x="{frame.left}" y="{y + 4:.1f}" '
                     f'width="{frame.end - frame.left}" height="{height - 8:.1f}"/>')  # fmt: skip
        parts.append(f'<text x="{frame.left - 8}" y="{y + height / 2 + 4:.1f}" '
                     f'text-anchor="end">{LANES[lane]}</text>')  # fmt: skip
        for kind, left, right in _merge(streams, lane, frame):
            parts.append(f'<rect class="{kind}" x="{left:.2f}" y="{y + 4:.1f}" '
                         f'width="{max(right - left, 0.4):.2f}" '
                         f'height="{height - 8:.1f}"/>')  # fmt: skip
    phases = dict.fromkeys(s.phase for s in streams.slices if s.stream == "compute")
    return "".join(parts) + frame.legend([(phase, phase) for phase in phases])


def _merge(streams: Streams, lane: str, frame: Frame) -> Iterable[tuple[str, float, float]]:
    """Neighbours of one kind are drawn as one, and so is what shares half a pixel."""
    run: tuple[str, float, float, float] | None = None  # kind, left, right, longest
    slices = sorted((s for s in streams.slices if s.stream == lane), key=lambda s: s.start_s)
    for s in slices:
        own = s.phase if lane == "compute" else lane
        start, end = frame.x(s.start_s), frame.x(s.start_s + s.duration_s)
        if run and start - run[2] < 0.25 and (own == run[0] or end - run[1] < 0.5):
            kind, left, right, longest = run
            kind = own if end - start > longest else kind
            run = (kind, left, max(right, end), max(longest, end - start))
            continue
        if run:
            yield run[:3]
        run = (own, start, end, end - start)
    if run:
        yield run[:3]


def draw_front(report: "Report") -> str:
    """Bytes against step time: the front of plans, JAX's policies, and the plan chosen."""
    points = report.fronts
    if not points:
        return ""
    most = max(report.budget_bytes, *(p.size_bytes for p in points)) * 1.1
    fastest = min(p.step_s for p in points)
    # A policy that is far slower than all plans is drawn at the upper edge: it is not the scale.
    limit = max([1.3 * fastest, *(p.step_s for p in points if p.kind != "policy")])
    slowest = min(limit, max(p.step_s for p in points))
    room = max(slowest - fastest, 0.02 * slowest)
    frame = Frame(bottom_s=fastest - 0.25 * room, right=most, top=slowest + 0.3 * room)
    parts = [frame.heading("Step time against device memory"),
             frame.byte_axis(is_x=True), frame.time_axis(is_y=True)]  # fmt: skip
    front = sorted((p.size_bytes, p.step_s) for p in points if p.kind in ("plan", "written"))
    if front:
        parts.append(f'<path class="front-line" d="{steps_path(frame, list(front))}"/>')
    x = frame.x(report.budget_bytes)
    parts.append(f'<line class="budget" x1="{x}" x2="{x}" y1="{frame.above}" '
                 f'y2="{frame.bottom}"/>')  # fmt: skip
    anchors = []
    for p in points:
        about = f"{p.label}: {format_bytes(p.size_bytes)}, {format_seconds(p.step_s)} ({p.how})"
        size = 7 if p.kind == "chosen" else 4.5
        x, y = frame.x(p.size_bytes), frame.y(min(p.step_s, frame.top))
        parts.append(f'<circle class="{p.kind}" cx="{x:.1f}" cy="{y:.1f}" r="{size}">'
                     f"<title>{escape(about)}</title></circle>")  # fmt: skip
        above = f" ↑ {format_seconds(p.step_s)}" if p.step_s > frame.top else ""
        anchors.append((x, y, "" if p.kind == "plan" else p.label + above))
    places = place_labels(anchors, frame)
    for (_, _, text), (x, y) in zip(anchors, places, strict=True):
        if text:
            parts.append(f'<text x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>')
    return "".join(parts) + frame.legend(_front_keys(report))


def _front_keys(report: "Report") -> list[tuple[str, str]]:
    """What each colour of the front is, and how its points were found."""
    words = {"plan": "plans", "policy": "JAX's policies", "written": "as written",
             "chosen": "this plan"}  # fmt: skip
    hows: dict[str, dict[str, None]] = {}
    for p in report.fronts:
        how = "forecast, at best" if (p.kind, p.how) == ("policy", "forecast") else p.how
        hows.setdefault(p.kind, {})[how] = None
    return [(kind, f"{words[kind]} ({'; '.join(found)})") for kind, found in hows.items()]


def draw_batches(report: "Report") -> str:
    """Throughput against batch size: as written, planned, and with every copy hidden."""
    rows = report.batches
    if not rows:
        return ""
    sides: dict[str, tuple[str, Callable[[BatchRow], float | None]]] = {
        "ideal": ("every copy hidden", lambda r: r.ideal_per_s),
        "before-line": ("as written", lambda r: r.unplanned_per_s),
        "after-line": ("planned", lambda r: r.planned_per_s),
    }
    known = [value for _, of in sides.values() for r in rows if (value := of(r)) is not None]
    if not known:
        return ""
    frame = Frame(right=max(r.batch_size for r in rows) * 1.05, top=max(known) * 1.12)
    hows = ", ".join(dict.fromkeys(r.how for r in rows))
    parts = [frame.heading(f"Examples per second against batch size ({hows})"),
             frame.number_axis(), frame.number_axis(is_x=True)]  # fmt: skip
    keys, fitting = [], [r.batch_size for r in rows if r.unplanned_per_s is not None]
    if len(fitting) < len(rows):
        x = frame.x(max(fitting, default=0))
        parts.append(f'<rect class="oom" x="{x:.1f}" y="{frame.above}" width="{frame.end - x:.1f}" '
                     f'height="{frame.bottom - frame.above}"/><text x="{x + 8:.1f}" '
                     f'y="{frame.bottom - 10}">does not fit as written</text>')  # fmt: skip
    for name, (word, of) in sides.items():
        line = [(float(r.batch_size), value) for r in rows if (value := of(r)) is not None]
        if not line:
            continue
        keys.append((name, word))
        path = "L".join(f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in sorted(line))
        parts.append(f'<path class="{name}" d="M{path}"/>')
    for r in rows:
        best = r.planned_per_s or r.unplanned_per_s
        if r.is_chosen and best:
            at = f'cx="{frame.x(r.batch_size):.1f}" cy="{frame.y(best):.1f}"'
            parts.append(f'<circle class="chosen" {at} r="6"/>')
            parts.append(f'<text class="strong" x="{frame.x(r.batch_size):.1f}" '
                         f'y="{frame.y(best) - 12:.1f}" text-anchor="middle">'
                         f"batch {r.batch_size}</text>")  # fmt: skip
    return "".join(parts) + frame.legend(keys)


FIGURES: dict[str, Callable[["Report"], str]] = {
    "memory": draw_memory,
    "timeline": draw_timeline,
    "front": draw_front,
    "batches": draw_batches,
}
