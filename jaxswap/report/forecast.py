"""Forecast: what do kernels, copies and memory do along a step that was not compiled?

Input: a `Program`, its `Timeline` on a device, and decisions. Output: a `Curve` and `Streams`,
off the simulator's own clocks (`model/simulate.py`).
What leaves the device is there twice, around its absence. Copies that are issued together share
their time on the link by what each would take alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxswap.apply.decision import Decision
from jaxswap.model.simulate import (
    KEEP,
    Clocks,
    Course,
    Forecast,
    as_unplanned,
    list_stays,
    run_clocks,
    settle_courses,
)
from jaxswap.model.timeline import Timeline
from jaxswap.program.ir import Program, Value
from jaxswap.program.liveness import find_lifetimes
from jaxswap.report.build import holder_of
from jaxswap.report.names import shorten_source
from jaxswap.report.rows import Curve, Holder, Phase, Slice, Streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A step that the simulator has run.

    Attributes:
        program: the step.
        timeline: what its ops take.
        courses: what became of each candidate.
        clocks: when it all happened.
        is_planned: whether anything was decided but to keep.
    """

    program: Program
    timeline: Timeline
    courses: Sequence[Course]
    clocks: Clocks
    is_planned: bool


def play(program: Program, timeline: Timeline, decisions: Mapping[str, Decision]) -> Played:
    """Runs a step under decisions; none of them is the step as written."""
    planned = [decisions.get(name, KEEP) for name in program.candidate_names]
    is_planned = any(decision.action != "keep" for decision in planned)
    if not is_planned and program.written is not None and timeline.written is not None:
        return play(program.written, timeline.written, {})
    timeline = timeline if is_planned else as_unplanned(timeline)
    courses = settle_courses(timeline, planned)
    return Played(
        program=program,
        timeline=timeline,
        courses=courses,
        clocks=run_clocks(timeline, courses),
        is_planned=is_planned,
    )


def curve_of_forecast(played: Played, forecast: Forecast) -> Curve | None:
    """The simulator's memory, op by op; None if the forecast is not of this program."""
    ops = played.program.ops
    if len(forecast.bytes_at) != len(ops) or not ops:
        return None
    return Curve(
        how="forecast",
        names=tuple(op.name for op in ops),
        labels=tuple(op.label for op in ops),
        sources=tuple(shorten_source(op.source) for op in ops),
        starts_s=tuple(played.clocks.op_starts_s),
        bytes_at=tuple(forecast.bytes_at),
        step_s=played.clocks.step_s,
        base_bytes=played.program.base_bytes,
        holders=tuple(_holders(played)),
    )


def _holders(played: Played) -> Iterable[Holder]:
    program = played.program
    decided = {candidate.value for candidate in program.candidates}
    for life in find_lifetimes(program, is_planned=played.is_planned):
        if life.value not in decided:
            value = program.values[life.value]
            yield holder_of(value, life.size_bytes, life.first_op, life.last_op)
    for value, course in zip(_values(program), played.courses, strict=True):
        for ops, size_bytes in list_stays(played.timeline, course):
            yield holder_of(value, size_bytes, ops.start, ops.stop - 1)


def streams_of_forecast(played: Played) -> Streams:
    """Kernels, offloads and reloads with their forecast times."""
    slices = [*_kernels(played), *_copies(played)]
    return Streams(how="forecast", step_s=played.clocks.step_s, slices=tuple(slices))


def _kernels(played: Played) -> Iterable[Slice]:
    again, spared = defaultdict(list), set()
    for value, course in zip(_values(played.program), played.courses, strict=True):
        if course.action == "recompute":
            again[course.needed].append((value, course))
        if course.action != "keep":
            spared.update(course.track.spared)
    ops_s = played.timeline.op_s.tolist()
    speedups = np.where(played.timeline.in_loop, played.clocks.speedup, 1.0).tolist()
    for at, (op, now_s) in enumerate(
        zip(played.program.ops, played.clocks.op_starts_s, strict=True)
    ):
        for value, course in again[at]:
            again_s = speedups[at] * course.again_s
            yield _slice("compute", value, "recompute", now_s, again_s)
            now_s += again_s
        if at not in spared:
            yield Slice(
                stream="compute",
                name=op.name,
                label=op.label,
                source=shorten_source(op.source),
                phase=op.phase,
                start_s=now_s,
                duration_s=speedups[at] * ops_s[at],
                size_bytes=int(op.cost.size_bytes * op.trips),
            )


def _copies(played: Played) -> Iterable[Slice]:
    clocks, ops = played.clocks, played.program.ops
    out_at, in_at = defaultdict(list), defaultdict(list)
    for value, course in zip(_values(played.program), played.courses, strict=True):
        if course.action == "offload":
            out_at[course.track.producer].append((value, course.track.out_s, course))
            in_at[course.returns].append((value, course.track.in_s, course))
    sides = (
        ("to_host", out_at, clocks.out_starts_s, clocks.out_ends_s),
        ("to_device", in_at, clocks.in_starts_s, clocks.in_ends_s),
    )
    for stream, issued, starts_s, ends_s in sides:
        for at, copies in issued.items():
            alone_s = sum(copy_s for _, copy_s, _ in copies)
            slowed = (ends_s[at] - starts_s[at]) / alone_s if alone_s else 0.0
            now_s = starts_s[at]
            for value, copy_s, course in copies:
                moved_bytes = course.track.moved_bytes
                yield _slice(stream, value, ops[at].phase, now_s, copy_s * slowed, moved_bytes)
                now_s += copy_s * slowed


def _slice(
    stream: str, value: Value, phase: Phase, start_s: float, duration_s: float, size_bytes: int = 0
) -> Slice:
    return Slice(
        stream=stream,
        name=value.name,
        label="/".join(part for part in (value.label, value.primitive) if part),
        source=shorten_source(value.source),
        phase=phase,
        start_s=start_s,
        duration_s=duration_s,
        size_bytes=size_bytes or value.size_bytes * value.trips,
    )


def _values(program: Program) -> list[Value]:
    return [program.values[candidate.value] for candidate in program.candidates]
