"""Population: what do many plans cost, simulated at once?

Input: a `Timeline` and three arrays `[plans, candidates]`: actions, windows, reload
distances. Output: `Forecasts`, an array per figure. The same as `simulate` in every figure,
but all plans go through the candidates, and then through the ops, side by side.

Arrays inside are `[ops, plans]`: each step of a loop then works on one row. Bytes are
integers, so that peaks are exact.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxswap.apply.decision import ACTIONS
from jaxswap.model.timeline import Floats, Ints, Timeline, Track, find_speedup, slowed_end_s

KEEP, OFFLOAD, RECOMPUTE = range(3)
assert ACTIONS == ("keep", "offload", "recompute")

# Ops × plans at a time: about 1 GB of tables. Every op costs some calls, however few the plans.
_CHUNK_ELEMENTS = 12_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecasts:
    """A figure per plan, each an array. See `Forecast` for what they mean.

    `peak_op` is of the program's own ops, of a plan that keeps everything as well.
    """

    peak_bytes: Ints
    step_s: Floats
    host_bytes: Ints
    offload_bytes: Ints
    recompute_s: Floats
    stall_s: Floats
    peak_op: Ints


class _Tables:
    """What happens at each op, in every plan of a chunk: arrays `[ops + 1, plans]`, flat."""

    def __init__(
        self, num_ops: int, num_plans: int, scratch_bytes: Ints, num_shared: int, num_scopes: int
    ):
        size = (num_ops + 1) * num_plans
        self.num_plans = num_plans
        self.change_bytes = np.zeros(size, dtype=np.int64)
        self.scratch_bytes = np.repeat(scratch_bytes, num_plans)
        self.again_s = np.zeros(size)  # recomputation before an op, less what it is spared
        self.out_s = np.zeros(size)  # offloads issued behind it
        self.in_s = np.zeros(size)  # reloads issued before it
        # The op that issued the last of the copies an op waits for; -1: it waits for none.
        self.awaits_out = np.full(size, -1, dtype=np.int32)
        self.awaits_in = np.full(size, -1, dtype=np.int32)
        self.host_bytes = np.zeros(num_plans, dtype=np.int64)
        self.moved_bytes = np.zeros(num_plans, dtype=np.int64)
        self.recompute_s = np.zeros(num_plans)
        self.lean_s = np.zeros(num_plans)  # what loops are spared besides
        # Which loops, by their scopes, have offloads of their own, and which have reloads.
        self.has_out = np.zeros((num_scopes, num_plans), dtype=bool)
        self.has_in = np.zeros((num_scopes, num_plans), dtype=bool)
        self.first_in_s = np.zeros((num_scopes, num_plans))  # of these, at the loop's first op
        # Of the ops that recomputations share: whether it runs again already.
        self.is_done = np.zeros((num_shared, num_plans), dtype=bool)

    def rows(self, flat: NDArray[Any]) -> NDArray[Any]:
        return flat.reshape(-1, self.num_plans)

    def at(self, op: Any, plans: Ints) -> Ints:
        return op * self.num_plans + plans


def simulate_many(
    timeline: Timeline, actions: ArrayLike, windows: ArrayLike, aheads: ArrayLike
) -> Forecasts:
    """Predicts time and memory of many plans.

    Args:
        timeline: the step on its device.
        actions: `[plans, candidates]`, as positions in `ACTIONS`.
        windows: likewise, the `window_ops` of each decision.
        aheads: likewise, the `reload_ahead_ops`.

    Returns:
        A figure per plan. Decisions that are not possible count as "keep".
    """
    shape = (-1, len(timeline.tracks))
    columns = [
        np.ascontiguousarray(np.asarray(each, dtype=np.int64).reshape(shape).T)
        for each in (actions, windows, aheads)
    ]
    num_plans = columns[0].shape[1] if timeline.tracks else len(np.asarray(actions))
    chunk = max(_CHUNK_ELEMENTS // (timeline.num_ops + 1), 16)
    parts = [
        _simulate_chunk(timeline, *(each[:, at : at + chunk] for each in columns))
        for at in range(0, max(num_plans, 1), chunk)
    ]
    if not timeline.tracks:
        parts = [_simulate_chunk(timeline, *(np.zeros((0, num_plans), np.int64),) * 3)]
    return Forecasts(
        **{
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in Forecasts.__dataclass_fields__
        }
    )


def _simulate_chunk(timeline: Timeline, actions: Ints, windows: Ints, aheads: Ints) -> Forecasts:
    num_plans = actions.shape[1]
    num_shared = len(timeline.shared_s)
    num_scopes = len(timeline.scopes)
    tables = _Tables(timeline.num_ops, num_plans, timeline.scratch_bytes, num_shared, num_scopes)
    _fill_tables(timeline, tables, actions, windows, aheads)
    bytes_at = np.cumsum(tables.rows(tables.change_bytes)[:-1], axis=0)
    bytes_at += tables.rows(tables.scratch_bytes)
    bytes_at += timeline.fixed_bytes[:, None]
    is_empty = (actions == KEEP).all(axis=0)
    if is_empty.any():
        bytes_at[:, is_empty] += timeline.implicit_bytes[:, None]
    peak_op = bytes_at.argmax(axis=0)
    op_s = _time_ops(timeline, tables)
    step_s, busy_s = _run_clocks(timeline, tables, op_s), op_s.sum(axis=0)
    # Without copies nothing waits, so what is implicit can be added behind the clocks.
    step_s[is_empty] += timeline.implicit_s.sum()
    busy_s[is_empty] += timeline.implicit_s.sum()
    peak_bytes = bytes_at[peak_op, np.arange(num_plans)]
    if timeline.written is not None and is_empty.any():
        kept = np.full((len(timeline.written.tracks), 1), KEEP)
        written = _simulate_chunk(timeline.written, kept, np.ones_like(kept), np.zeros_like(kept))
        peak_bytes[is_empty], step_s[is_empty] = written.peak_bytes, written.step_s
        busy_s[is_empty] = written.step_s
    return Forecasts(
        peak_bytes=peak_bytes,
        step_s=step_s,
        host_bytes=tables.host_bytes,
        offload_bytes=tables.moved_bytes,
        recompute_s=tables.recompute_s,
        stall_s=np.maximum(step_s - busy_s, 0.0),
        peak_op=peak_op,
    )


def _fill_tables(
    timeline: Timeline, tables: _Tables, actions: Ints, windows: Ints, aheads: Ints
) -> None:
    """Goes through the candidates, children first, for they need their parents."""
    column = lambda ops: np.repeat(np.array(ops, dtype=np.int64)[:, None], tables.num_plans, 1)
    needed = column([track.needed for track in timeline.tracks])
    last = column([track.last for track in timeline.tracks])
    for index in reversed(range(len(timeline.tracks))):
        track = timeline.tracks[index]
        kept = np.ones(tables.num_plans, dtype=bool)
        # Few of many plans do anything with a value, and each call costs as much as many plans.
        if track.can_offload and len(out := np.flatnonzero(actions[index] == OFFLOAD)):
            out = _add_offloads(
                timeline, tables, track, out,
                windows[index, out], aheads[index, out], needed[index, out], last[index, out],
            )  # fmt: skip
            kept[out] = False
        is_recomputable = track.recompute_s is not None
        if is_recomputable and len(again := np.flatnonzero(actions[index] == RECOMPUTE)):
            again = _add_recomputed(
                timeline, tables, track, again, needed[index, again], last[index, again]
            )
            kept[again] = False
            tables.lean_s[again] += track.lean_s
            for parent in track.parents:
                scope = timeline.scopes[timeline.tracks[parent].backward]
                first = scope.lift_first[needed[index, again]]
                needed[parent, again] = np.minimum(needed[parent, again], first)
                end = scope.lift_last[needed[index, again]]
                last[parent, again] = np.maximum(last[parent, again], end)
        stay = np.flatnonzero(kept)
        end = timeline.scopes[track.common].lift_last[last[index, stay]] + 1
        tables.change_bytes[tables.at(track.kept_first, stay)] += track.kept_bytes
        tables.change_bytes[tables.at(end, stay)] -= track.kept_bytes
        if track.spared:
            away = np.flatnonzero(~kept)
            for op in track.spared:
                tables.again_s[tables.at(op, away)] -= timeline.op_s[op]


def _add_offloads(
    timeline: Timeline,
    tables: _Tables,
    track: Track,
    plans: Ints,
    windows: Ints,
    aheads: Ints,
    needed: Ints,
    last: Ints,
) -> Ints:
    """Enters an offload into the tables of `plans`; returns those in which it happens."""
    forward, backward = timeline.scopes[track.forward], timeline.scopes[track.backward]
    leave_turn = windows + (int(forward.turns_before[track.producer + 1]) - 1)
    return_turn = backward.turns_before[needed] - aheads
    if not track.leaves_always:
        read_turn = int(forward.turns_before[track.read_end])
        gone = np.flatnonzero(np.maximum(leave_turn, read_turn) < return_turn)
        plans, needed, last = plans[gone], needed[gone], last[gone]
        leave_turn, return_turn, aheads = leave_turn[gone], return_turn[gone], aheads[gone]
    due = forward.turn_starts[np.minimum(leave_turn, len(forward.turn_starts) - 1)]
    returns = np.where(aheads > 0, backward.turn_ends[np.maximum(return_turn, 0)], needed)
    first, back_by = returns, needed
    if track.hands_on:
        is_early = return_turn < 0
        start = np.where(is_early, np.maximum(return_turn + backward.num_turns, 0), 0)
        returns = np.where(is_early, backward.turn_ends[start], returns)
        back_by = np.where(is_early, backward.end, needed)
    change, at = tables.change_bytes, tables.at
    change[at(track.made_first, plans)] += track.size_bytes
    change[at(np.maximum(due, track.read_end), plans)] -= track.size_bytes
    change[at(first, plans)] += track.back_bytes
    change[at(last + 1, plans)] -= track.back_bytes
    handed_on = back_by > needed
    change[at(returns, plans)] += track.back_bytes * handed_on
    change[at(back_by, plans)] -= track.back_bytes * handed_on
    tables.out_s[at(track.producer, plans)] += track.out_s
    tables.in_s[at(returns, plans)] += track.in_s
    due_at, back_at = at(due, plans), at(back_by, plans)
    tables.awaits_out[due_at] = np.maximum(tables.awaits_out[due_at], track.producer)
    tables.awaits_in[back_at] = np.maximum(tables.awaits_in[back_at], returns)
    for loop in forward.loops:
        tables.has_out[loop, plans] = True
    for loop in backward.loops:
        tables.has_in[loop, plans] = True
        is_first = returns == timeline.scopes[loop].first_op
        tables.first_in_s[loop, plans] += track.in_s * is_first
    tables.host_bytes[plans] += track.host_bytes
    tables.moved_bytes[plans] += track.moved_bytes
    return plans


def _add_recomputed(
    timeline: Timeline, tables: _Tables, track: Track, plans: Ints, needed: Ints, last: Ints
) -> Ints:
    """Enters a recomputation into the tables of `plans`; returns those in which it happens."""
    forward, backward = timeline.scopes[track.forward], timeline.scopes[track.backward]
    if not track.leaves_always:
        read_turn = int(forward.turns_before[track.read_end])
        gone = np.flatnonzero(read_turn < backward.turns_before[needed])
        plans, needed, last = plans[gone], needed[gone], last[gone]
    change, at = tables.change_bytes, tables.at
    change[at(track.made_first, plans)] += track.size_bytes
    change[at(track.read_end, plans)] -= track.size_bytes
    again_at = at(needed, plans)
    change[again_at] += track.back_bytes
    change[at(last + 1, plans)] -= track.back_bytes
    seconds = np.full(len(plans), track.own_s)
    for slot in track.shared:
        is_done = tables.is_done[slot]
        seconds += timeline.shared_s[slot] * ~is_done[plans]
        is_done[plans] = True
    tables.again_s[again_at] += seconds
    tables.recompute_s[plans] += seconds
    if track.recompute_bytes:
        scratch = np.maximum(tables.scratch_bytes[again_at], track.recompute_bytes)
        tables.scratch_bytes[again_at] = scratch
    return plans


def _time_ops(timeline: Timeline, tables: _Tables) -> Floats:
    """Seconds of each op in each plan, with what is made again in front of it."""
    op_s = tables.rows(tables.again_s)[:-1] + timeline.op_s[:, None]
    if tables.lean_s.any():
        op_s[timeline.in_loop] *= find_speedup(op_s[timeline.in_loop].sum(axis=0), tables.lean_s)
    return op_s


def _run_clocks(timeline: Timeline, tables: _Tables, op_s: Floats) -> Floats:
    """Seconds of the step: three clocks per plan, the device's and one per direction."""
    num_ops, num_plans = timeline.num_ops, tables.num_plans
    now_s, to_host_s, to_device_s = (np.zeros(num_plans) for _ in range(3))
    # When the copies issued at an op arrive; the last row is for those that wait for none.
    out_end_s, in_end_s = (np.zeros((num_ops + 1, num_plans)) for _ in range(2))
    out_s, in_s = tables.rows(tables.out_s), tables.rows(tables.in_s)
    awaited_out, awaited_in = tables.rows(tables.awaits_out), tables.rows(tables.awaits_in)
    is_out, is_in = _find_rows(out_s > 0), _find_rows(in_s > 0)
    awaits_out, awaits_in = _find_rows(awaited_out >= 0), _find_rows(awaited_in >= 0)
    plans = np.arange(num_plans)
    out_limits = _limit_queues(timeline, op_s, tables.has_out, np.zeros_like(tables.first_in_s))
    in_limits = _limit_queues(timeline, op_s, tables.has_in, tables.first_in_s)
    for op in range(num_ops):
        for limit_s in out_limits.get(op, ()):
            np.maximum(now_s, to_host_s - limit_s, out=now_s)
        if awaits_out[op]:
            np.maximum(now_s, out_end_s[awaited_out[op], plans], out=now_s)
        if is_in[op]:
            copy_s = in_s[op]
            start_s = np.maximum(now_s, to_device_s)
            end_s = slowed_end_s(start_s, copy_s, to_host_s, timeline.to_device_fraction)
            to_device_s = np.where(copy_s > 0, end_s, to_device_s)
            in_end_s[op] = to_device_s
        for limit_s in in_limits.get(op, ()):
            np.maximum(now_s, to_device_s - limit_s, out=now_s)
        if awaits_in[op]:
            np.maximum(now_s, in_end_s[awaited_in[op], plans], out=now_s)
        now_s += op_s[op]
        if is_out[op]:
            copy_s = out_s[op]
            start_s = np.maximum(now_s, to_host_s)
            end_s = slowed_end_s(start_s, copy_s, to_device_s, timeline.to_host_fraction)
            to_host_s = np.where(copy_s > 0, end_s, to_host_s)
            out_end_s[op] = to_host_s
    # A trip of a loop that ends the step.
    return np.maximum(now_s, in_end_s[awaited_in[num_ops], plans])


def _limit_queues(
    timeline: Timeline, op_s: Floats, has_copies: NDArray[np.bool_], own_s: Floats
) -> dict[int, list[Floats]]:
    """By a loop's first op: how much the link may have to carry then, a trip and the loop's own.

    It is endless in plans in which the loop has no copies.
    """
    found: dict[int, list[Floats]] = {}
    for loop in np.flatnonzero(has_copies.any(axis=1)):
        scope = timeline.scopes[loop]
        limit_s = np.where(has_copies[loop], scope.time_trip(op_s) + own_s[loop], np.inf)
        found.setdefault(scope.first_op, []).append(limit_s)
    return found


def _find_rows(is_any: NDArray[np.bool_]) -> list[bool]:
    """Which ops concern any plan at all."""
    return np.asarray(is_any.any(axis=1)).tolist()
