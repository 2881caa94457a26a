"""Simulate: how long would the step take under a plan, and how much memory would it need?

Input: a `Program`, a decision per candidate, and a `Device`. Output: a `Forecast`. This is
the plain simulator, one plan at a time, which says what is meant; `simulate_many`
(`population.py`) does the same for many plans at once.

What happens
- Ops run in order, one at a time. Offloads and reloads run beside them, each direction in the
  order of issue. Copies that are issued at the same op arrive together. Of two copies in
  opposite directions the one that starts later is slowed (`slowed_end_s`).
- *keep*: on the device from its making to its last use.
- *offload*: the copy starts when the value is made. The heavy op that ends its window waits
  for it, and from there the value is gone, unless the forward pass still reads it. The reload
  starts `reload_ahead_ops` heavy ops before the value is needed, at 0 only when it is needed;
  who needs it waits for it. Where that reaches back beyond the start of a trip, the trip before
  reloads it, waits for it at its end, and hands it on.
- *recompute*: gone after its last use of the forward pass. Made again right before it is
  needed, from parents that are then needed too: kept until then, reloaded or made again.
- A value that would be wanted again before it has left simply stays, and costs nothing. Loops
  are the exception: between its two loops a value leaves always.
- A loop's op runs all its trips at once, and so does a copy from it: what overlaps within one
  trip overlaps by as much in total. A copy ends within the trip that started it. What else the
  link carries in that direction has to be over by the end of a loop's first trip.

Limitations:
    Host memory is counted as the sum of all that is offloaded. Heavy ops that are recomputed
    do not count as turns for windows and reload distances. Copies do not slow kernels down.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from jaxswap._errors import BadArgumentError
from jaxswap._units import format_bytes, format_seconds
from jaxswap.apply.decision import Decision
from jaxswap.model.device import Device
from jaxswap.model.kernel import FITTED, Efficiency
from jaxswap.model.population import Forecasts as Forecasts
from jaxswap.model.population import simulate_many as simulate_many
from jaxswap.model.timeline import Timeline, Track, build_timeline, find_speedup, slowed_end_s
from jaxswap.program.ir import Program

KEEP = Decision(action="keep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the simulator predicts for a step.

    Attributes:
        peak_bytes: the most device bytes at any op, arguments and outputs included.
        step_s: seconds of one step.
        host_bytes: host memory for what is offloaded.
        offload_bytes: what one step copies to the host, and back again.
        recompute_s: seconds of kernels that run a second time.
        stall_s: seconds in which the device waits for copies.
        peak_op: the first op at which the peak is reached; of `Program.written`, if there is one
            and the step is unplanned.
        bytes_at: device bytes at every op; not stored with a plan, and not compared.
        stays: candidates that stay although decided otherwise: wanted before they would
            have left, or the decision is not possible for them.
        baseline: the same for the unplanned step; None for the unplanned step itself.
    """

    peak_bytes: int
    step_s: float
    host_bytes: int = 0
    offload_bytes: int = 0
    recompute_s: float = 0.0
    stall_s: float = 0.0
    peak_op: int = 0
    bytes_at: tuple[int, ...] = field(default=(), compare=False, repr=False)
    stays: tuple[str, ...] = ()
    baseline: "Forecast | None" = None

    @property
    def is_unplanned(self) -> bool:
        """Whether it is that of the step as it is written."""
        return self.baseline is None or replace(self, baseline=None) == self.baseline

    def fits(self, budget_bytes: int, host_budget_bytes: int | None = None) -> bool:
        """Whether it stays within the budgets at every op."""
        on_host = host_budget_bytes is None or self.host_bytes <= host_budget_bytes
        return self.peak_bytes <= budget_bytes and on_host

    def __str__(self) -> str:
        parts = [f"{format_bytes(self.peak_bytes)} on the device, {format_seconds(self.step_s)}"]
        if self.recompute_s:
            parts.append(f"{format_seconds(self.recompute_s)} of it recomputing")
        if self.stall_s:
            parts.append(f"{format_seconds(self.stall_s)} of it waiting")
        if self.host_bytes:
            parts.append(f"{format_bytes(self.host_bytes)} on the host")
        return ", ".join(parts) + " (forecast)"


@dataclass(slots=True)
class Course:
    """What becomes of one candidate: gone before `leaves`, back from `returns` to `last`.

    Its reload is waited for in front of `back_by`: what needs it or, where a trip hands it on
    to the next one, the end of the loop; `returns` is then of the trip before.
    """

    track: Track
    action: str
    needed: int
    last: int
    due: int = 0
    leaves: int = 0
    returns: int = 0
    back_by: int = 0
    again_s: float = 0.0


def simulate(
    program: Program,
    decisions: Mapping[str, Decision],
    device: Device,
    *,
    efficiency: Efficiency = FITTED,
) -> Forecast:
    """Predicts time and memory of a step under a plan.

    Args:
        program: the step.
        decisions: what to do with each candidate, by name; all others are kept.
        device: what it runs on.
        efficiency: what kernels reach of the device's peaks.

    Returns:
        The forecast, with that of the unplanned step under `.baseline`. A decision that is
        not possible for its candidate counts as "keep", as it does when it is applied.

    Example:
        >>> h100 = Device.named("h100-sxm")
        >>> simulate(Program(ops=(), values=(), candidates=(), base_bytes=7), {}, h100).peak_bytes
        7
    """
    names = program.candidate_names
    unknown = [name for name in decisions if name not in set(names)]
    if unknown:
        raise BadArgumentError(
            f"`decisions` is about {unknown[0]!r}, which is no candidate of this program "
            f"({len(unknown)} such of {len(decisions)}): decide about names from "
            "`program.candidate_names`."
        )
    timeline = build_timeline(program, device, efficiency)
    baseline = forecast_unplanned(program, timeline)
    planned = [decisions.get(name, KEEP) for name in names]
    if all(decision.action == "keep" for decision in planned):
        return replace(baseline, baseline=baseline)
    return replace(_play(timeline, planned, names, program.base_bytes), baseline=baseline)


def forecast_unplanned(program: Program, timeline: Timeline) -> Forecast:
    """The forecast of the step as it is written."""
    if program.written is not None and timeline.written is not None:
        program, timeline = program.written, timeline.written
    return forecast_kept(program, timeline)


def forecast_kept(program: Program, timeline: Timeline) -> Forecast:
    """The forecast of a program's own ops if everything is kept."""
    names = program.candidate_names
    return _play(as_unplanned(timeline), [KEEP] * len(names), names, program.base_bytes)


def as_unplanned(timeline: Timeline) -> Timeline:
    """The same for a step that keeps everything, which has its implicit values in memory."""
    return replace(
        timeline,
        fixed_bytes=timeline.fixed_bytes + timeline.implicit_bytes,
        op_s=timeline.op_s + timeline.implicit_s,
    )


def _play(
    timeline: Timeline, decisions: list[Decision], names: tuple[str, ...], base_bytes: int
) -> Forecast:
    courses = settle_courses(timeline, decisions)
    bytes_at = _sum_bytes(timeline, courses)
    clocks = run_clocks(timeline, courses)
    peak_bytes = max(bytes_at, default=base_bytes)
    offloaded = [c.track for c in courses if c.action == "offload"]
    return Forecast(
        peak_bytes=peak_bytes,
        step_s=clocks.step_s,
        host_bytes=sum(track.host_bytes for track in offloaded),
        offload_bytes=sum(track.moved_bytes for track in offloaded),
        recompute_s=sum(course.again_s for course in courses),
        stall_s=clocks.stall_s,
        peak_op=bytes_at.index(peak_bytes) if bytes_at else 0,
        bytes_at=tuple(bytes_at),
        stays=tuple(
            name
            for name, course, decision in zip(names, courses, decisions, strict=True)
            if course.action != decision.action
        ),
    )


def settle_courses(timeline: Timeline, decisions: list[Decision]) -> list[Course]:
    """What becomes of each candidate; children first, for they need their parents."""
    courses = [Course(t, "keep", t.needed, t.last) for t in timeline.tracks]
    done: set[int] = set()  # of the shared ops, those that run again already
    for course, decision in reversed(list(zip(courses, decisions, strict=True))):
        track = course.track
        if decision.action == "offload" and track.can_offload:
            _try_offload(timeline, course, decision)
        elif decision.action == "recompute" and track.recompute_s is not None:
            _try_recompute(timeline, course)
        if course.action != "recompute":
            continue
        course.again_s = track.own_s
        course.again_s += sum(timeline.shared_s[slot] for slot in track.shared if slot not in done)
        done.update(track.shared)
        for parent in track.parents:
            scope = timeline.scopes[courses[parent].track.backward]
            courses[parent].needed = min(
                courses[parent].needed, int(scope.lift_first[course.needed])
            )
            courses[parent].last = max(courses[parent].last, int(scope.lift_last[course.needed]))
    return courses


def _try_offload(timeline: Timeline, course: Course, decision: Decision) -> None:
    track = course.track
    forward, backward = timeline.scopes[track.forward], timeline.scopes[track.backward]
    leave_turn = int(forward.turns_before[track.producer + 1]) + decision.window_ops - 1
    return_turn = int(backward.turns_before[course.needed]) - decision.reload_ahead_ops
    read_turn = int(forward.turns_before[track.read_end])
    if not track.leaves_always and max(read_turn, leave_turn) >= return_turn:
        return
    course.action = "offload"
    course.due = int(forward.turn_starts[min(leave_turn, len(forward.turn_starts) - 1)])
    course.leaves = max(track.read_end, course.due)
    course.returns = course.back_by = course.needed
    if decision.reload_ahead_ops:
        course.returns = int(backward.turn_ends[max(return_turn, 0)])
    if return_turn < 0 and track.hands_on:
        course.returns = int(backward.turn_ends[max(return_turn + backward.num_turns, 0)])
        course.back_by = backward.end


def _try_recompute(timeline: Timeline, course: Course) -> None:
    track = course.track
    forward, backward = timeline.scopes[track.forward], timeline.scopes[track.backward]
    read_turn = forward.turns_before[track.read_end]
    if not track.leaves_always and read_turn >= backward.turns_before[course.needed]:
        return
    course.action = "recompute"
    course.leaves = track.read_end
    course.returns = course.needed


def _sum_bytes(timeline: Timeline, courses: list[Course]) -> list[int]:
    bytes_at = timeline.fixed_bytes.copy()
    scratch = timeline.scratch_bytes.copy()
    for course in courses:
        track = course.track
        for ops, size_bytes in list_stays(timeline, course):
            bytes_at[ops.start : ops.stop] += size_bytes
        # An op's scratch is below zero where it writes over an operand: no bytes, no change.
        if course.action == "recompute" and track.recompute_bytes:
            scratch[course.needed] = max(scratch[course.needed], track.recompute_bytes)
    return (bytes_at + scratch).tolist()


def list_stays(timeline: Timeline, course: Course) -> list[tuple[range, int]]:
    """At which ops a candidate is on the device, and with how many bytes."""
    track = course.track
    if course.action == "keep":
        last = int(timeline.scopes[track.common].lift_last[course.last])
        return [(range(track.kept_first, last + 1), track.kept_bytes)]
    stays = [(range(track.made_first, course.leaves), track.size_bytes)]
    first = course.returns
    if course.back_by > course.needed:
        first = timeline.scopes[track.backward].first_op
        stays.append((range(course.returns, course.back_by), track.back_bytes))
    return [*stays, (range(first, course.last + 1), track.back_bytes)]


@dataclass(slots=True)
class Clocks:
    """When things happen in a step: seconds from its start.

    Attributes:
        step_s: when it is over.
        stall_s: how much of it was spent waiting for copies.
        op_starts_s: when each op starts.
        out_starts_s: when the offloads issued at an op start, by that op.
        out_ends_s: when they arrive, likewise.
        in_starts_s: when the reloads issued at an op start, likewise.
        in_ends_s: when they arrive, likewise.
    """

    step_s: float = 0.0
    stall_s: float = 0.0
    speedup: float = 1.0  # what is left of the time of ops in loops
    op_starts_s: list[float] = field(default_factory=list)
    out_starts_s: dict[int, float] = field(default_factory=dict)
    out_ends_s: dict[int, float] = field(default_factory=dict)
    in_starts_s: dict[int, float] = field(default_factory=dict)
    in_ends_s: dict[int, float] = field(default_factory=dict)


def run_clocks(timeline: Timeline, courses: list[Course]) -> Clocks:
    """Plays a step: three clocks, the device's and one per direction of the link."""
    out_at, out_due, in_at, in_due, again_at = (defaultdict(list) for _ in range(5))
    out_loops, in_loops = set[int](), set[int]()  # loops with copies of their own
    for course in courses:
        if course.action == "offload":
            out_at[course.track.producer].append(course)
            out_due[course.due].append(course)
            in_at[course.returns].append(course)
            in_due[course.back_by].append(course)
            out_loops.update(timeline.scopes[course.track.forward].loops)
            in_loops.update(timeline.scopes[course.track.backward].loops)
        elif course.action == "recompute":
            again_at[course.needed].append(course)
    op_s, lean_s = timeline.op_s.copy(), 0.0
    for course in courses:
        if course.action != "keep":
            op_s[list(course.track.spared)] = 0.0
        if course.action == "recompute":
            lean_s += course.track.lean_s
    again_s = np.zeros_like(op_s)
    for op, ready in again_at.items():
        again_s[op] = sum(course.again_s for course in ready)
    clocks = Clocks()
    if lean_s:
        loops_s = float((op_s + again_s)[timeline.in_loop].sum())
        clocks.speedup = float(find_speedup(loops_s, lean_s))
    op_s = np.where(timeline.in_loop, clocks.speedup, 1.0) * (op_s + again_s)
    now_s = to_host_s = to_device_s = 0.0
    starts_at = lambda loop, op: timeline.scopes[loop].first_op == op

    def wait_until(ready_s: float) -> float:
        clocks.stall_s += max(ready_s - now_s, 0.0)
        return max(now_s, ready_s)

    for op, work_s in enumerate(op_s.tolist()):
        # Copies of a loop's first trip come behind what its link still carries.
        for scope in [timeline.scopes[loop] for loop in out_loops if starts_at(loop, op)]:
            now_s = wait_until(to_host_s - float(scope.time_trip(op_s)))
        ends = (clocks.out_ends_s[c.track.producer] for c in out_due[op])
        now_s = wait_until(max(ends, default=0.0))
        if in_at[op]:
            start_s = clocks.in_starts_s[op] = max(now_s, to_device_s)
            copy_s = sum(course.track.in_s for course in in_at[op])
            fraction = timeline.to_device_fraction
            to_device_s = float(slowed_end_s(start_s, copy_s, to_host_s, fraction))
            clocks.in_ends_s[op] = to_device_s
        for loop in [loop for loop in in_loops if starts_at(loop, op)]:
            own = [c for c in in_at[op] if loop in timeline.scopes[c.track.backward].loops]
            own_s = sum(course.track.in_s for course in own)
            trip_s = float(timeline.scopes[loop].time_trip(op_s))
            now_s = wait_until(to_device_s - own_s - trip_s)
        now_s = wait_until(max((clocks.in_ends_s[c.returns] for c in in_due[op]), default=0.0))
        clocks.op_starts_s.append(now_s)
        now_s += work_s
        if out_at[op]:
            start_s = clocks.out_starts_s[op] = max(now_s, to_host_s)
            copy_s = sum(course.track.out_s for course in out_at[op])
            fraction = timeline.to_host_fraction
            to_host_s = float(slowed_end_s(start_s, copy_s, to_device_s, fraction))
            clocks.out_ends_s[op] = to_host_s
    handed_on = (clocks.in_ends_s[c.returns] for c in in_due[len(op_s)])
    clocks.step_s = wait_until(max(handed_on, default=0.0))
    return clocks
