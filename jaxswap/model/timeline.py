"""Timeline: when could each candidate leave the device, and when must it be back?

Input: a `Program` and a `Device`. Output: a `Timeline`, the numbers from which both
simulators (`simulate.py`, one plan; `population.py`, many at once) work.

Windows and reload distances count *turns*: heavy ops, and loops with heavy ops inside, as the
applied schedule does (`jaxswap/apply/order.py`). They are counted within a *scope*, which is
the step or the body of one loop, because a copy cannot leave the trip it was started in.
"""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxswap.model.device import Device
from jaxswap.model.kernel import FITTED, Efficiency, kernel_s
from jaxswap.model.lean import share_lean
from jaxswap.model.transfer import transfer_s
from jaxswap.model.work import find_spared, planned_costs, time_recomputations
from jaxswap.program import liveness
from jaxswap.program.ir import Candidate, Program

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The step, or one loop's body: the turns in it, and what each op is to it.

    Attributes:
        first_op: its first op.
        end: the op after its last one.
        trips: how often it runs in one step, within the loops that hold it.
        loops: the loops that hold it and itself, as positions in `Timeline.scopes`.
        turn_starts: where each turn starts, and `end` once more for what has no turn left.
        turn_ends: `first_op`, and then the op behind each turn.
        turns_before: for each op, and the end, how many turns are over when it starts.
        lift_first: for each op, the first op of what holds it in this scope.
        lift_last: likewise the last.
    """

    first_op: int
    end: int
    trips: int
    loops: tuple[int, ...]
    turn_starts: Ints
    turn_ends: Ints
    turns_before: Ints
    lift_first: Ints
    lift_last: Ints

    @property
    def num_turns(self) -> int:
        """How many turns there are in it."""
        return len(self.turn_starts) - 1

    def time_trip(self, op_s: Floats) -> Floats:
        """Seconds of one trip, of seconds of each op: `[ops]`, or `[ops, plans]`."""
        return op_s[self.first_op : self.end].sum(axis=0) / self.trips


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """What the simulators know of one candidate. Ops are positions, ends not included.

    Attributes:
        producer: the op that makes it; the last op of the loop that it comes out of.
        made_first: the op from which it is there if it is not kept.
        read_end: the op behind its last reader of the forward pass.
        needed: the first op of the backward pass that needs it.
        last: the last op that reads it.
        kept_first: the op from which it is there if it is kept.
        size_bytes: of one trip.
        kept_bytes: of all trips that are there at once if it is kept.
        back_bytes: what is there of it once it is back.
        host_bytes: what is in host memory of it.
        moved_bytes: what one step copies of it in each direction.
        out_s: seconds of the copy to the host, all trips.
        in_s: seconds of the copy back, all trips.
        recompute_s: seconds to make it again, all trips; None if that cannot be done.
        own_s: the part of them that no other candidate's recomputation shares.
        shared: the rest, as positions in `Timeline.shared_s`.
        recompute_bytes: what is there besides while it is made again.
        spared: ops that do not run if it is not kept: they write it to a loop's stack, or read
            it from there.
        spared_s: seconds of them.
        lean_s: what loops are spared besides if it is made again, since XLA fuses more.
        can_offload: whether it may be in host memory.
        leaves_always: whether it is gone between its loops, however close they are.
        hands_on: whether its reload may start, and end, in the trip before the one that needs
            it, which hands it on.
        forward: the scope it is made in, as a position in `Timeline.scopes`.
        backward: the scope it is needed in.
        common: the innermost scope that holds both.
        parents: what it is recomputed from.
    """

    producer: int
    made_first: int
    read_end: int
    needed: int
    last: int
    kept_first: int
    size_bytes: int
    kept_bytes: int
    back_bytes: int
    host_bytes: int
    moved_bytes: int
    out_s: float
    in_s: float
    recompute_s: float | None
    own_s: float
    shared: tuple[int, ...]
    recompute_bytes: int
    spared: tuple[int, ...]
    spared_s: float
    lean_s: float
    can_offload: bool
    leaves_always: bool
    hands_on: bool
    forward: int
    backward: int
    common: int
    parents: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A step on a device, ready to be simulated.

    Attributes:
        op_s: seconds of each op, all trips, under any plan that is not empty.
        implicit_s: what comes to that if the plan is empty: writing and reading implicit values.
        fixed_bytes: device bytes at each op besides the candidates and the op's scratch, under
            any plan that is not empty.
        implicit_bytes: what comes to that if the plan is empty, less what is written over
            operands.
        scratch_bytes: what each op needs only while it runs.
        in_loop: which ops are in loops.
        tracks: the candidates.
        shared_s: seconds of each op that several candidates' recomputations share: it runs a
            second time only once, for the first of them that needs it.
        scopes: the step, and then its loops.
        to_host_fraction: what is left of the rate of offloads while reloads run.
        to_device_fraction: what is left of the rate of reloads while offloads run.
        written: the timeline of `Program.written`, which is what an empty plan runs.
    """

    op_s: Floats
    implicit_s: Floats
    fixed_bytes: Ints
    implicit_bytes: Ints
    scratch_bytes: Ints
    in_loop: NDArray[np.bool_]
    tracks: tuple[Track, ...]
    shared_s: Floats
    scopes: tuple[Scope, ...]
    to_host_fraction: float
    to_device_fraction: float
    written: "Timeline | None" = None

    @property
    def num_ops(self) -> int:
        """How many ops the step has."""
        return len(self.op_s)


def build_timeline(program: Program, device: Device, efficiency: Efficiency = FITTED) -> Timeline:
    """Works out, once per program and device, what does not depend on the plan."""
    decided = {candidate.value for candidate in program.candidates}
    seconds = lambda op, cost: kernel_s(device, cost, efficiency) * op.trips
    unplanned_s = np.array([seconds(op, op.cost) for op in program.ops], dtype=np.float64)
    costs = planned_costs(program)
    op_s = [seconds(op, cost) for op, cost in zip(program.ops, costs, strict=True)]
    again = time_recomputations(program, device, efficiency)
    sharers = Counter(op for each in again if each for op in each)
    shared = sorted(op for op, count in sharers.items() if count > 1)
    slots = {op: slot for slot, op in enumerate(shared)}
    shared_s = [max(each[op] for each in again if each and op in each) for op in shared]
    unplanned = _sum_fixed(program, liveness.find_lifetimes(program), decided)
    planned = _sum_fixed(program, liveness.find_lifetimes(program, is_planned=True), decided)
    lean_s = sum(kernel_s(device, cost, efficiency) * trips for cost, trips in program.lean)
    shares = share_lean(program, op_s, again, lean_s)
    reused = np.array([op.reused_bytes for op in program.ops], dtype=np.int64)
    return Timeline(
        op_s=np.array(op_s, dtype=np.float64),
        implicit_s=unplanned_s - np.array(op_s, dtype=np.float64),
        fixed_bytes=planned + program.base_bytes,
        implicit_bytes=unplanned - planned - reused,
        scratch_bytes=np.array([op.scratch_bytes for op in program.ops], dtype=np.int64),
        in_loop=np.array([op.loop is not None for op in program.ops], dtype=bool),
        tracks=tuple(
            _build_track(program, candidate, device, op_s, seconds, share, slots, shared_s)
            for candidate, seconds, share in zip(program.candidates, again, shares, strict=True)
        ),
        shared_s=np.array(shared_s, dtype=np.float64),
        scopes=tuple(_build_scope(program, s) for s in (None, *range(len(program.loops)))),
        to_host_fraction=device.to_host.both_fraction,
        to_device_fraction=device.to_device.both_fraction,
        written=program.written and build_timeline(program.written, device, efficiency),
    )


def find_speedup(loops_s, lean_s):
    """What is left of the time of each op in loops, of `loops_s` in all that `lean_s` are spared.

    Takes numbers or arrays.
    """
    return np.maximum(1.0 - lean_s / np.maximum(loops_s, 1e-30), 0.0)


def slowed_end_s(start_s, copy_s, other_end_s, fraction):
    """When a copy ends that runs at `fraction` of its rate while the other direction is busy.

    Only the copy that starts later is slowed, by what is left of the other direction's queue
    then. Takes numbers or arrays.
    """
    overlap_s = np.minimum(np.maximum(other_end_s - start_s, 0.0), copy_s / fraction)
    return start_s + copy_s + overlap_s * (1.0 - fraction)


def _sum_fixed(program: Program, lifetimes: list[liveness.Lifetime], decided: set[int]) -> Ints:
    fixed = [life for life in lifetimes if life.value not in decided]
    return np.array(liveness.sum_lifetimes(fixed, len(program.ops)), dtype=np.int64)


def _build_scope(program: Program, loop: int | None) -> Scope:
    num_ops = len(program.ops)
    first, end, loops = 0, num_ops, _list_loops(program, loop)
    if loop is not None:
        first, end = program.loops[loop].first_op, program.loops[loop].last_op + 1
    spans = [liveness.span_from(program, op, loop) for op in range(num_ops)]
    heavy = {spans[op] for op in range(first, end) if program.ops[op].is_heavy}
    turns = sorted(heavy)
    ends = np.array([last + 1 for _, last in turns], dtype=np.int64)
    return Scope(
        first_op=first,
        end=end,
        trips=math.prod(program.loops[held - 1].trips for held in loops),
        loops=loops,
        turn_starts=np.array([start for start, _ in turns] + [end], dtype=np.int64),
        turn_ends=np.concatenate([[first], ends]).astype(np.int64),
        turns_before=np.searchsorted(ends, np.arange(num_ops + 1), side="right"),
        lift_first=np.array([span[0] for span in spans], dtype=np.int64),
        lift_last=np.array([span[1] for span in spans], dtype=np.int64),
    )


def _list_loops(program: Program, loop: int | None) -> tuple[int, ...]:
    found: list[int] = []
    while loop is not None:
        found.append(_position(loop))
        loop = program.loops[loop].parent
    return tuple(found)


def _build_track(
    program: Program,
    candidate: Candidate,
    device: Device,
    op_s: list[float],
    again: dict[int, float] | None,
    lean_s: float,
    slots: dict[int, int],
    shared_s: list[float],
) -> Track:
    value = program.values[candidate.value]
    producer = 0 if value.producer is None else value.producer
    common, forward, backward = _find_scopes(program, candidate, producer)
    stacked = liveness.count_stacked(program, value)
    later = [op for op in value.readers if op > candidate.last_forward]
    last = max(candidate.last_backward, *later, candidate.first_backward)
    in_base = value.is_argument or value.is_output
    depth = len(liveness.loop_chain(program, candidate.first_backward))
    is_whole = depth < len(liveness.loop_chain(program, producer))
    own_s = float(sum(s for op, s in (again or {}).items() if op not in slots))
    shared = tuple(slots[op] for op in again or () if op in slots)
    spared = find_spared(program, candidate)
    size = 0 if in_base else value.size_bytes
    made_first, made_last = liveness.span_from(program, producer, forward)
    return Track(
        producer=made_last,
        made_first=made_first,
        read_end=liveness.span_from(program, candidate.last_forward, forward)[1] + 1,
        needed=liveness.span_from(program, candidate.first_backward, backward)[0],
        last=liveness.span_from(program, last, backward)[1],
        kept_first=liveness.span_from(program, producer, common)[0],
        size_bytes=size,
        kept_bytes=size * stacked,
        back_bytes=size * (stacked if is_whole else 1),
        host_bytes=size * stacked,
        moved_bytes=size * value.trips,
        out_s=value.trips * transfer_s(device, float(size), "to_host"),
        in_s=value.trips * transfer_s(device, float(size), "to_device"),
        recompute_s=None if again is None else own_s + sum(shared_s[slot] for slot in shared),
        own_s=own_s,
        shared=shared,
        recompute_bytes=candidate.recompute_bytes,
        spared=spared,
        spared_s=sum(op_s[op] for op in spared),
        lean_s=lean_s,
        can_offload=candidate.can_offload and not in_base,
        leaves_always=forward != backward,
        hands_on=value.is_stacked and _is_loop_pair(program, producer, candidate.first_backward),
        forward=_position(forward),
        backward=_position(backward),
        common=_position(common),
        parents=candidate.parents,
    )


def _is_loop_pair(program: Program, producer: int, needed: int) -> bool:
    """Whether an op of a loop hands values to one of another, neither in further loops."""
    made_in, needed_in = (liveness.loop_chain(program, op) for op in (producer, needed))
    is_pair = len(made_in) == len(needed_in) > 0 and made_in[:-1] == needed_in[:-1]
    return is_pair and made_in != needed_in and program.loops[needed_in[-1]].trips > 1


def _position(loop: int | None) -> int:
    return 0 if loop is None else loop + 1


def _find_scopes(
    program: Program, candidate: Candidate, producer: int
) -> tuple[int | None, int | None, int | None]:
    """The loops that hold all uses of a candidate, its making, and its return."""
    value = program.values[candidate.value]
    common = liveness.common_loop(program, (producer, *value.readers, candidate.first_backward))
    if not value.is_stacked:
        return common, common, common
    made_in = liveness.loop_chain(program, producer)
    needed_in = liveness.loop_chain(program, candidate.first_backward)[: len(made_in)]
    forward = made_in[-1] if made_in else None
    return common, forward, needed_in[-1] if needed_in else None
