"""Adjusted plans: what was decided stays, and as little more leaves as a lower budget asks for."""

import dataclasses

import hypothesis as hp
import hypothesis.strategies as hps
import programs
import pytest
from test_plan_planners import decided_programs

from jaxswap.apply.decision import Decision
from jaxswap.model.simulate import simulate
from jaxswap.plan.adjust import adjust
from jaxswap.plan.problem import Problem


def problem_of(program, **more):
    return Problem(
        program=program, device=programs.UNIT, budget_bytes=10**6, efficiency=programs.EXACT, **more
    )


def run(program, decisions):
    return simulate(program, decisions, programs.UNIT, efficiency=programs.EXACT)


@hp.given(decided_programs(), hps.floats(0.5, 1.0))
def test_an_adjusted_plan_fits_and_takes_nothing_back(drawn, share):
    program, decisions = drawn
    budget_bytes = int(share * run(program, decisions).peak_bytes)
    found = adjust(problem_of(program), decisions, budget_bytes)
    if found is None:
        return
    assert run(program, found).peak_bytes <= budget_bytes
    for name, decision in decisions.items():
        if decision.action != "keep":
            assert found[name] == decision


def test_what_fits_is_left_alone():
    program = programs.chain([2, 1, 1, 1])
    assert adjust(problem_of(program), {}, run(program, {}).peak_bytes) == {}


def test_the_cheapest_value_that_is_enough_leaves():
    # All are as cheap to make again as their op; a1 is the smallest that frees a byte.
    program = programs.chain([4, 4, 4, 4, 4, 4])
    before = run(program, {})
    found = adjust(problem_of(program), {}, before.peak_bytes - 1)
    assert found is not None
    assert len(found) == 1
    one_by_one = [
        run(program, {name: Decision(action=action)})
        for name in program.candidate_names
        for action in ("recompute", "offload")
    ]
    fitting = [each.step_s for each in one_by_one if each.peak_bytes < before.peak_bytes]
    assert run(program, found).step_s <= min(fitting)


def test_where_a_few_more_do_not_do_there_is_none():
    program = programs.chain([4, 4, 4])
    assert adjust(problem_of(program), {}, 0) is None
    nothing = dataclasses.replace(program, candidates=())
    assert adjust(problem_of(nothing), {}, 0) is None


@pytest.mark.parametrize("host_budget_bytes", [0, 4])
def test_the_host_is_asked_too(host_budget_bytes):
    program = programs.chain([4, 4, 4, 4, 4, 4])
    problem = problem_of(program, host_budget_bytes=host_budget_bytes)
    found = adjust(problem, {}, run(program, {}).peak_bytes - 4)
    assert found is not None
    assert run(program, found).host_bytes <= host_budget_bytes
