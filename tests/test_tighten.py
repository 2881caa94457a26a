"""Tightened plans: the same copies, no slower and no larger, in windows that follow each other."""

import hypothesis as hp
import programs
from test_plan_planners import decided_programs, make_problem

from jaxswap.apply.decision import Decision
from jaxswap.model.simulate import simulate
from jaxswap.plan.problem import Problem
from jaxswap.plan.tighten import tighten


def problem_of(program):
    return Problem(
        program=program, device=programs.UNIT, budget_bytes=10**6, efficiency=programs.EXACT
    )


def run(program, decisions):
    return simulate(program, decisions, programs.UNIT, efficiency=programs.EXACT)


@hp.given(decided_programs())
def test_a_tightened_plan_is_no_slower_no_larger_and_shorter(drawn):
    program, decisions = drawn
    found = tighten(problem_of(program), decisions)
    before, after = run(program, decisions), run(program, found)
    assert after.step_s <= before.step_s * (1 + 1e-3)
    assert after.peak_bytes <= before.peak_bytes
    for name, decision in decisions.items():
        assert found[name].action == decision.action
        assert found[name].window_ops <= decision.window_ops
        assert found[name].reload_ahead_ops <= decision.reload_ahead_ops


def test_a_window_ends_when_the_copy_does():
    # a0 is copied in 2 s, while f1 and f2 run; f3 could wait for it, but f4, f5 … need not.
    program = programs.chain([2, 1, 1, 1, 1, 1, 1])
    found = tighten(problem_of(program), {"a0": Decision(action="offload", window_ops=6)})
    # With a tenth to spare it is over when f4, the fourth heavy op behind it, starts.
    assert found["a0"].window_ops == 4


def test_a_reload_is_issued_no_sooner_than_it_has_to_be():
    program = programs.chain([3, 1, 1, 1, 1, 1, 1])
    early = Decision(action="offload", window_ops=4, reload_ahead_ops=5)
    found = tighten(problem_of(program), {"a0": early})
    # 3 s, and 2.1 s to spare, beside backward ops of 2 s: three of them.
    assert found["a0"].reload_ahead_ops == 3
    assert run(program, found).stall_s == 0


def test_reloads_that_queue_are_issued_one_before_the_other():
    program = programs.chain([3, 3, 1, 1, 1, 1, 1, 1, 1])
    early = Decision(action="offload", window_ops=7, reload_ahead_ops=7)
    found = tighten(problem_of(program), {"a0": early, "a1": early})
    # a1 is needed 2 s before a0, and the link is a0's for the last 3.3 s.
    assert found["a1"].reload_ahead_ops >= 2
    assert run(program, found).stall_s == run(program, {"a0": early, "a1": early}).stall_s == 0


def test_a_planners_answer_stays_within_its_budget():
    problem = make_problem(programs.blocks(5), 0.5)
    decisions = {
        name: Decision(action="offload", window_ops=3, reload_ahead_ops=3)
        for name in problem.program.candidate_names
    }
    before = simulate(
        problem.program, decisions, problem.device, efficiency=problem.efficiency
    ).peak_bytes
    after = simulate(
        problem.program, tighten(problem, decisions), problem.device, efficiency=problem.efficiency
    ).peak_bytes
    assert after <= before
