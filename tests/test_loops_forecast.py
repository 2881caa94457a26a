"""Forecasts of reloads that one trip of a loop hands on to the next, solved by hand.

The loops are those of `programs.looped`: ops start | h z end | loss | dz dh | dx, one second each
in the forward pass and two in the backward pass, and a link of one byte per second.
"""

import dataclasses

import numpy as np
import programs
import pytest

from jaxswap.apply.decision import ACTIONS, Decision
from jaxswap.model.simulate import list_stays, settle_courses, simulate, simulate_many
from jaxswap.model.timeline import build_timeline
from jaxswap.plan.base import run_planner
from jaxswap.plan.problem import Problem
from jaxswap.program.ir import Loop


def offload(ahead):
    return Decision(action="offload", window_ops=9, reload_ahead_ops=ahead)


def run(program, **decisions):
    return simulate(program, decisions, programs.UNIT, efficiency=programs.EXACT)


def test_a_trip_reloads_for_the_next_and_waits_at_its_own_end():
    program = programs.looped(trips=4, size=3, forward_s=3.0)
    # z goes beside `end`. It is needed by dz, the first op of a trip: three bytes, and nothing
    # to hide behind but the trip before.
    assert run(program, z=offload(0)).stall_s == 4 * 3
    assert run(program, z=offload(1)).stall_s == 4 * (3 - 2)
    assert run(program, z=offload(2)).stall_s == 0
    assert run(program, z=offload(9)).stall_s == 0


def test_what_is_handed_on_is_there_twice_while_both_are():
    program = programs.looped(trips=4, size=3)
    kept = run(program).bytes_at
    # Kept, z is twelve bytes from its loop to the end of the other. Offloaded it is three: from
    # z to the loop's end, and with dz; and for the next trip with dh, or with both.
    gone = [b - (12 if 1 <= op <= 6 else 0) for op, b in enumerate(kept)]
    add = lambda *more: tuple(b + m for b, m in zip(gone, more, strict=True))
    assert run(program, z=offload(0)).bytes_at == add(0, 0, 3, 3, 0, 3, 0, 0)
    assert run(program, z=offload(1)).bytes_at == add(0, 0, 3, 3, 0, 3, 3, 0)
    assert run(program, z=offload(2)).bytes_at == add(0, 0, 3, 3, 0, 6, 3, 0)


def test_a_value_of_one_trip_is_not_handed_on():
    program = programs.looped(trips=1, size=3, forward_s=3.0)
    assert run(program, z=offload(1)).stall_s == 3


@pytest.mark.parametrize("size", [1, 3, 10])
@pytest.mark.parametrize("trips", [1, 2, 5])
def test_many_plans_at_once_equal_one_at_a_time(size, trips):
    program = programs.looped(trips=trips, size=size)
    timeline = build_timeline(program, programs.UNIT, programs.EXACT)
    pairs = [(h, z) for h in range(5) for z in range(5)]
    column = lambda number: np.full((len(pairs), 2), number)
    many = simulate_many(timeline, column(ACTIONS.index("offload")), column(9), pairs)
    for at, (h, z) in enumerate(pairs):
        one = run(program, h=offload(h), z=offload(z))
        assert many.peak_bytes[at] == one.peak_bytes
        assert many.step_s[at] == pytest.approx(one.step_s)
        assert many.stall_s[at] == pytest.approx(one.stall_s)


def test_a_step_that_ends_with_its_loop_waits_there():
    draft = programs.Draft()
    stacked = {"trips": 2, "is_stacked": True}
    draft.op("f", 1, "forward", [], [("x", 3, stacked)], trips=2, loop=0)
    draft.op("f2", 3, "forward", ["x"], [], trips=2, loop=0)
    draft.op("loss", 1, "forward", [], [("loss", 1)])
    draft.op("b", 1, "backward", ["x", "loss"], [], trips=2, loop=1)
    draft.loops += [programs.Loop(first_op=0, last_op=1, trips=2)]
    draft.loops += [programs.Loop(first_op=3, last_op=3, trips=2)]
    draft.candidate("x")
    program = draft.finish()
    forecast = run(program, x=offload(1))
    assert forecast.stall_s == 2 * (3 - 1)
    timeline = build_timeline(program, programs.UNIT, programs.EXACT)
    many = simulate_many(timeline, [[ACTIONS.index("offload")]], [[9]], [[1]])
    assert many.step_s[0] == forecast.step_s


def beside_loops():
    """A value of eight bytes around two loops that last as long, at two seconds a trip."""
    draft = programs.Draft()
    stacked = {"trips": 4, "is_stacked": True}
    draft.op("big", 1, "forward", [], [("big", 8)])
    draft.op("h", 1, "forward", [], [("h", 1, stacked)], trips=4, loop=0)
    draft.op("end", 1, "forward", ["h"], [], trips=4, loop=0)
    draft.op("loss", 1, "forward", [], [("loss", 1)])
    draft.op("d", 1, "backward", ["loss"], [], trips=4, loop=1)
    draft.op("dh", 1, "backward", ["h"], [], trips=4, loop=1)
    draft.op("dbig", 1, "backward", ["big"], [])
    draft.loops += [programs.Loop(first_op=1, last_op=2, trips=4)]
    draft.loops += [programs.Loop(first_op=4, last_op=5, trips=4)]
    draft.candidate("big")
    draft.candidate("h")
    return draft.finish()


@pytest.mark.parametrize(
    ("big", "h", "stall_s"),
    [
        ((2, 1), None, 0),  # there and back beside the loops
        (None, (2, 1), 0),  # there beside `end`, and back beside `d`
        # All but a trip of either copy has to be over before the loop has its own.
        # The reloads start together and so arrive together, two seconds after `d` is over.
        ((2, 1), (2, 1), 2 * (8 - 2) + 2),
        ((2, 0), (2, 1), (8 - 2) + 8),
    ],
)
def test_a_loop_with_copies_waits_for_what_its_link_still_carries(big, h, stall_s):
    program = beside_loops()
    asked = {"big": big, "h": h}
    decisions = {
        name: Decision(action="offload", window_ops=each[0], reload_ahead_ops=each[1])
        for name, each in asked.items()
        if each
    }
    forecast = run(program, **decisions)
    assert forecast.stall_s == stall_s
    timeline = build_timeline(program, programs.UNIT, programs.EXACT)
    actions = [[ACTIONS.index("offload" if each else "keep") for each in asked.values()]]
    windows, aheads = ([[each[i] if each else 1 for each in asked.values()]] for i in (0, 1))
    assert simulate_many(timeline, actions, windows, aheads).stall_s[0] == pytest.approx(stall_s)


def test_trips_of_a_loop_in_a_loop_are_those_of_both():
    """An op's seconds are of all its trips, and one trip's are shared out among all."""
    program = programs.looped(trips=4, size=1)
    outer = Loop(first_op=0, last_op=len(program.ops) - 1, trips=8)
    inner = [dataclasses.replace(loop, parent=len(program.loops)) for loop in program.loops]
    nested = dataclasses.replace(program, loops=(*inner, outer))
    scopes = build_timeline(nested, programs.UNIT, programs.EXACT).scopes
    assert [scope.trips for scope in scopes] == [1, *[4 * 8] * len(inner), 8]


def test_stays_are_what_the_forecast_counts():
    program = programs.looped(trips=4, size=3)
    timeline = build_timeline(program, programs.UNIT, programs.EXACT)
    courses = settle_courses(timeline, [offload(0), offload(1)])
    stays = [[list(ops) for ops, _ in list_stays(timeline, course)] for course in courses]
    assert stays == [[[1, 2, 3], [6]], [[2, 3], [6], [5]]]


def test_planners_may_ask_for_the_trip_before_where_one_is_too_short():
    program = programs.looped(trips=4, size=3)
    problem = Problem(
        program=program,
        device=programs.UNIT,
        budget_bytes=10**6,
        efficiency=programs.EXACT,
        spreads=(0.0, 0.5, 1.0),
    )
    # Three bytes each: dz, two seconds, is ahead of h in its own trip; ahead of z is none.
    aheads = problem.options.aheads[:, -3:].tolist()
    assert aheads == [[0, 1, 3], [0, 1, 2]]


# ---- what a loop that stacks nothing is spared ----


def stacks(lean_s):
    """Two values of 3 and 1 bytes that a loop of 2 trips stacks, made again in a second each."""
    draft = programs.Draft()
    stacked = {"trips": 2, "is_stacked": True}
    draft.op("f", 4, "forward", [], [("x", 3, stacked)], trips=2, loop=0)
    draft.op("g", 4, "forward", [], [("y", 1, stacked)], trips=2, loop=0)
    draft.op("loss", 1, "forward", [], [("loss", 1)])
    draft.op("b", 4, "backward", ["x", "y", "loss"], [], trips=2, loop=1)
    draft.loops += [programs.Loop(first_op=0, last_op=1, trips=2)]
    draft.loops += [programs.Loop(first_op=3, last_op=3, trips=2)]
    draft.candidate("x", again=1)
    draft.candidate("y", again=1)
    return draft.finish(lean_s=lean_s)


@pytest.mark.parametrize(
    ("lean_s", "both", "only_x"),
    [
        (0.0, 29, 27),  # not known: 25 seconds, and each again in two trips
        (29.0, 29, 27),  # as expected
        (40.0, 29, 27),  # nothing is spared
        (21.0, 21, 27 - 6),  # eight are: six for the six bytes of x, two for those of y
    ],
)
def test_what_is_spared_is_shared_by_stacked_bytes(lean_s, both, only_x):
    program = stacks(lean_s)
    again = Decision(action="recompute")
    assert run(program).step_s == pytest.approx(25)
    assert run(program, x=again, y=again).step_s == pytest.approx(both)
    assert run(program, x=again).step_s == pytest.approx(only_x)
    assert run(program, x=again).recompute_s == 2  # what runs a second time runs all the same
    assert run(program, x=offload(0)).step_s >= 25  # it has to be written, to be copied


def test_a_plan_may_be_faster_than_the_step_as_written():
    program = stacks(10.0)
    problem = Problem(
        program=program, device=programs.UNIT, budget_bytes=10**6, efficiency=programs.EXACT
    )
    for planner in ("exact", "greedy", "genetic"):
        found = run_planner(problem.at_budget(6), planner)
        assert found.forecast.step_s == pytest.approx(10), planner
