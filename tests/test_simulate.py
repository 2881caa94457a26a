"""The simulator against steps solved by hand, its promises, and the many-plans version."""

import dataclasses

import hypothesis as hp
import hypothesis.strategies as hps
import numpy as np
import programs
import pytest

from jaxswap._errors import BadArgumentError
from jaxswap.apply.decision import ACTIONS, Decision
from jaxswap.model.simulate import simulate, simulate_many
from jaxswap.model.timeline import build_timeline
from jaxswap.program import liveness
from jaxswap.program.ir import Loop

KEEP = Decision(action="keep")
RECOMPUTE = Decision(action="recompute")


def offload(window=1, ahead=0):
    return Decision(action="offload", window_ops=window, reload_ahead_ops=ahead)


def run(program, device=programs.UNIT, **decisions):
    return simulate(program, decisions, device, efficiency=programs.EXACT)


@hps.composite
def plans(draw, program):
    decision = hps.builds(
        Decision,
        action=hps.sampled_from(ACTIONS),
        window_ops=hps.integers(1, 4),
        reload_ahead_ops=hps.integers(0, 3),
    )
    return {name: draw(decision) for name in program.candidate_names}


@hps.composite
def programs_and_plans(draw):
    program = draw(programs.programs())
    return program, [draw(plans(program)) for _ in range(draw(hps.integers(1, 4)))]


def test_a_step_without_a_plan_is_the_sum_of_its_ops_and_the_memory_curve():
    program = programs.chain([3, 5, 7], base_bytes=2)
    forecast = run(program)
    assert forecast.step_s == 3 * 1 + 3 * 2
    assert forecast.bytes_at == liveness.memory_curve(program).bytes_at
    assert forecast.bytes_at == (5, 10, 17, 17, 10, 5)
    assert (forecast.peak_bytes, forecast.peak_op) == (17, 2)
    assert forecast.baseline == dataclasses.replace(forecast, baseline=None)
    assert (forecast.host_bytes, forecast.stall_s, forecast.recompute_s) == (0, 0, 0)


def test_an_offload_with_a_window_of_one_makes_the_next_op_wait():
    # f0 ends at 1, the copy of 4 bytes at 5: f1 waits 4. Ops: f0 f1 f2 b2 b1 b0.
    forecast = run(programs.chain([4, 1, 1]), a0=offload())
    # a0 is read by f1, so it is there until then; the reload runs during nothing: b0 waits 4.
    assert forecast.stall_s == 4 + 4
    assert forecast.step_s == 9 + 8
    assert forecast.bytes_at == (4, 5, 2, 2, 1, 4)
    assert forecast.host_bytes == forecast.offload_bytes == 4


def test_a_wider_window_and_an_earlier_reload_hide_the_copies():
    # The copy may take f1 and f2 (2 s of its 4): b2 waits 2. Reload while b1 runs (2 of 4 s).
    forecast = run(programs.chain([4, 1, 1]), a0=offload(window=3, ahead=1))
    assert forecast.stall_s == 2 + 2
    assert forecast.bytes_at == (4, 5, 6, 2, 5, 4)


def test_light_ops_are_no_turns_and_a_distance_of_none_starts_at_the_use():
    draft = programs.Draft()
    draft.op("f", 1, "forward", [], [("x", 2)])
    draft.op("light", 1, "forward", heavy=False)
    draft.op("heavy", 1, "forward")
    draft.op("turn", 1, "forward")
    draft.op("light", 1, "backward", heavy=False)
    draft.op("b", 1, "backward", ["x"])
    draft.candidate("x", again=1)
    program = draft.finish()
    # The window of one ends at `heavy`, 1 s too soon; the reload starts at `b`, for 2 s.
    late = run(program, x=offload())
    assert (late.bytes_at, late.stall_s) == ((2, 2, 0, 0, 0, 2), 1 + 2)
    # One turn ahead: it starts when `heavy` is done, beside `turn` and `light`.
    early = run(program, x=offload(ahead=1))
    assert (early.bytes_at, early.stall_s) == ((2, 2, 0, 2, 2, 2), 1)
    assert run(program, x=offload(ahead=2)).stays == ("x",)


def test_copies_in_one_direction_queue():
    # a0 is on the link from 1 to 5, a1 from 5 to 9: f3 starts at 9 instead of 3.
    forecast = run(programs.chain([4, 4, 1, 1]), a0=offload(3), a1=offload(2))
    assert forecast.bytes_at[3] == 2
    waits_at_f3 = 9 - 3
    # Both reloads are issued at the end of the op before their use: 4 s each.
    assert forecast.stall_s == waits_at_f3 + 4 + 4


def test_a_copy_that_starts_while_the_other_direction_is_busy_is_slowed():
    # f1 waits for a0 until 9 and ends at 10; a1 is on the link from 10 to 18. The reload of a0
    # is issued after b4, at 15: 3 s beside a1 at half its rate, so it ends at 23 + 1.5.
    program = programs.chain([8, 8, 1, 1, 1])
    plan = {"a0": offload(1, ahead=3), "a1": offload(window=6)}
    # b2 waits until 18 and ends at 20, then a1 is reloaded: 8 s, b1 and b0 2 s each.
    assert run(program, **plan).step_s == 23 + 8 + 2 + 2
    assert run(program, programs.make_device(0.5), **plan).step_s == 24.5 + 8 + 2 + 2


def test_a_recomputed_value_costs_its_kernels_and_needs_its_parents():
    forecast = run(programs.chain([3, 5, 7]), a1=RECOMPUTE)
    assert forecast.recompute_s == 1
    assert forecast.step_s == 9 + 1
    # a1 is gone at b2 only; a0, its parent, is needed later anyway.
    assert forecast.bytes_at == (3, 8, 15, 10, 8, 3)
    assert forecast.peak_bytes == 15


def test_recomputing_a_chain_brings_all_of_it_back_at_once():
    program = programs.chain([3, 5, 7, 2])
    forecast = run(program, a0=RECOMPUTE, a1=RECOMPUTE, a2=RECOMPUTE)
    # At b2 all of a0, a1, a2 are made again, and they leave one by one.
    assert forecast.recompute_s == 3
    assert forecast.bytes_at == (3, 8, 12, 9, 2, 15, 8, 3)


def test_an_op_that_recomputations_share_runs_again_only_once():
    draft = programs.Draft()
    draft.op("f", 4, "forward", [], [("x", 1), ("y", 1)])
    draft.op("g", 1, "forward", ["x", "y"], [("z", 1)])
    draft.op("bz", 1, "backward", ["z"])
    draft.op("by", 1, "backward", ["y"])
    draft.op("bx", 1, "backward", ["x"])
    draft.candidate("x", again=4, recompute_ops=(0,))
    draft.candidate("y", again=3, recompute_ops=(0,))
    program = draft.finish()
    # The shared op counts with the most that any of its sharers needs of it.
    assert run(program, x=RECOMPUTE).recompute_s == 4
    assert run(program, y=RECOMPUTE).recompute_s == 4
    both = run(program, x=RECOMPUTE, y=RECOMPUTE)
    assert (both.recompute_s, both.step_s) == (4, 8 + 4)


def test_an_implicit_value_is_there_only_while_nothing_is_planned():
    draft = programs.Draft()
    draft.op("f", 1, "forward", [], [("x", 4), ("u", 16, {"is_implicit": True})])
    draft.op("g", 1, "forward", ["u"])
    draft.op("h", 1, "forward")
    draft.op("b", 1, "backward", ["x", "u"])
    draft.candidate("x", again=1)
    program = draft.finish()
    assert run(program).bytes_at == (20, 20, 20, 20)
    assert run(program, x=RECOMPUTE).bytes_at == (20, 16, 0, 4)


def test_a_parent_that_is_offloaded_comes_back_for_its_child():
    forecast = run(programs.chain([3, 5, 7, 2]), a0=offload(), a1=RECOMPUTE)
    # f1 waits for the offload of a0. a1 is needed at b1, and a0 with it: b1 waits again.
    assert forecast.bytes_at == (3, 8, 12, 9, 9, 7, 8, 3)
    assert forecast.stall_s == 3 + 3
    assert forecast.recompute_s == 1


def test_what_is_wanted_again_before_it_has_left_stays():
    program = programs.chain([3, 5, 7])
    kept = run(program)
    for decision in (RECOMPUTE, offload(), offload(ahead=3)):
        forecast = run(program, a2=decision)
        assert forecast.stays == ("a2",)
        assert (forecast.peak_bytes, forecast.step_s) == (kept.peak_bytes, kept.step_s)
    assert run(program, a0=offload(window=4, ahead=1)).stays == ("a0",)
    assert run(program, a0=offload(window=4, ahead=0)).stays == ()


def test_a_decision_that_is_not_possible_counts_as_keep():
    draft = programs.Draft()
    draft.op("f", 1, "forward", [], [("x", 4)])
    draft.op("g", 1, "forward")
    draft.op("b", 1, "backward", ["x"])
    draft.candidate("x", again=None, can_offload=False)
    program = draft.finish()
    assert run(program, x=RECOMPUTE).stays == ("x",)
    assert run(program, x=offload()).stays == ("x",)


def test_scratch_of_a_recomputation_is_there_with_its_op():
    draft = programs.Draft()
    draft.op("f", 1, "forward", [], [("x", 4)])
    draft.op("g", 1, "forward")
    draft.op("b", 1, "backward", ["x"], scratch_bytes=3)
    draft.candidate("x", again=1, recompute_bytes=9)
    program = draft.finish()
    assert run(program).bytes_at == (4, 4, 7)
    assert run(program, x=RECOMPUTE).bytes_at == (4, 0, 4 + 9)


def test_a_loop_stacks_what_it_keeps_and_not_what_it_offloads():
    program = programs.looped(trips=4, size=10)
    kept = run(program)
    # start | h z end | loss | dz dh | dx: h and z are 40 bytes each, x is 5, loss and dz 1.
    assert kept.bytes_at == (5, 85, 85, 85, 6 + 80, 87, 87, 5)
    assert kept.step_s == 1 + 12 + 1 + 16 + 2
    forecast = run(program, h=offload(window=9))
    assert forecast.bytes_at == (5, 55, 55, 55, 6 + 40, 47, 57, 5)
    assert (forecast.host_bytes, forecast.offload_bytes) == (40, 40)
    # Each trip copies 10 bytes beside z and end (2 s), and back while nothing runs (dh waits).
    assert forecast.stall_s == 4 * (10 - 2) + 4 * 10


def test_a_reload_in_a_loop_starts_within_its_trip():
    program = programs.looped(trips=4, size=1, forward_s=2.0)
    # One byte beside z and end, and one beside dz: all hidden.
    assert run(program, h=offload(window=9, ahead=9)).stall_s == 0
    assert run(program, h=offload(window=9, ahead=0)).stall_s == 4 * 1


def test_recomputing_in_a_loop_happens_in_each_trip():
    forecast = run(programs.looped(trips=4, size=10), z=RECOMPUTE)
    assert forecast.recompute_s == 4
    assert forecast.bytes_at == (5, 45, 55, 55, 46, 57, 47, 5)


def test_what_writes_a_stack_and_reads_it_is_spared_where_the_value_is_not_kept():
    draft = programs.Draft()
    inside, stacked = {"trips": 3, "loop": 0}, {"trips": 3, "is_stacked": True}
    draft.op("h", 1, "forward", [], [("h", 1, {"trips": 3})], **inside)
    draft.op("stack", 2, "forward", ["h"], [("hs", 10, stacked)], heavy=False, **inside)
    draft.op("turn", 1, "forward")
    inside = {"trips": 3, "loop": 1}
    sliced = ("s", 1, {"trips": 3})
    draft.op("dynamic_slice", 4, "backward", ["hs"], [sliced], heavy=False, **inside)
    draft.op("dh", 1, "backward", ["s"], **inside)
    draft.loops += [Loop(first_op=0, last_op=1, trips=3), Loop(first_op=3, last_op=4, trips=3)]
    draft.candidate("hs", again=1)
    program = draft.finish()
    assert run(program).step_s == 3 + 6 + 1 + 12 + 3
    planned = run(program, hs=RECOMPUTE)
    assert (planned.step_s, planned.recompute_s) == (3 + 1 + 3 + 3, 3)


def test_a_name_that_is_no_candidate_is_refused():
    with pytest.raises(BadArgumentError, match=r"'nope'.*no candidate.*candidate_names"):
        run(programs.chain([1, 1]), nope=KEEP)


def test_a_forecast_reads_well_and_knows_whether_it_fits():
    forecast = run(programs.chain([4, 1, 1]), a0=offload(), a1=RECOMPUTE)
    assert str(forecast).endswith("4 B on the host (forecast)")
    assert "recomputing" in str(forecast)
    assert "waiting" in str(forecast)
    assert forecast.fits(forecast.peak_bytes, 4)
    assert not forecast.fits(forecast.peak_bytes, 3)
    assert not forecast.fits(forecast.peak_bytes - 1)


@hp.given(programs_and_plans(), hps.sampled_from([1.0, 0.6]))
def test_many_plans_at_once_equal_one_at_a_time(drawn, both_fraction):
    program, plans = drawn
    device = programs.make_device(both_fraction)
    timeline = build_timeline(program, device, programs.EXACT)
    arrays = [
        np.array([[field(plan[name]) for name in program.candidate_names] for plan in plans])
        for field in (
            lambda d: ACTIONS.index(d.action),
            lambda d: d.window_ops,
            lambda d: d.reload_ahead_ops,
        )
    ]
    many = simulate_many(timeline, *arrays)
    for k, plan in enumerate(plans):
        one = simulate(program, plan, device, efficiency=programs.EXACT)
        for name in ("peak_bytes", "host_bytes", "offload_bytes", "peak_op"):
            assert getattr(many, name)[k] == getattr(one, name), name
        for name in ("step_s", "recompute_s", "stall_s"):
            assert getattr(many, name)[k] == pytest.approx(getattr(one, name), abs=1e-9), name


@hp.given(programs_and_plans())
def test_time_is_work_plus_recomputation_plus_waiting(drawn):
    program, plans = drawn
    for plan in plans:
        forecast = run(program, **plan)
        tracks = build_timeline(program, programs.UNIT, programs.EXACT).tracks
        spared_s = sum(
            track.lean_s
            for track, name in zip(tracks, program.candidate_names, strict=True)
            if plan[name].action == "recompute" and name not in forecast.stays
        )
        busy_s = forecast.baseline.step_s + forecast.recompute_s
        found_s = forecast.step_s - forecast.stall_s
        assert busy_s - spared_s - 1e-6 <= found_s <= busy_s + 1e-6
        # Loops may be spared no more than they take.
        loops_s = sum(op.cost.vector_flops * op.trips for op in program.ops if op.loop is not None)
        if spared_s <= loops_s:
            assert found_s == pytest.approx(busy_s - spared_s)
        assert forecast.stall_s >= 0


@hp.given(programs_and_plans())
def test_offloading_raises_no_bytes_outside_its_own_lifetime(drawn):
    program, plans = drawn
    for plan in plans:
        only = {n: d if d.action == "offload" else KEEP for n, d in plan.items()}
        forecast = run(program, **only)
        assert all(
            a <= b for a, b in zip(forecast.bytes_at, forecast.baseline.bytes_at, strict=True)
        )


def test_chunks_of_plans_do_not_change_the_answer():
    program = programs.large_program(1000, 100)
    timeline = build_timeline(program, programs.UNIT, programs.EXACT)
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 3, (900, 100))
    windows, aheads = rng.integers(1, 5, (900, 100)), rng.integers(0, 5, (900, 100))
    many = simulate_many(timeline, actions, windows, aheads)
    tail = simulate_many(timeline, actions[-3:], windows[-3:], aheads[-3:])
    assert np.array_equal(many.peak_bytes[-3:], tail.peak_bytes)
    assert np.array_equal(many.step_s[-3:], tail.step_s)
