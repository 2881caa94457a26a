"""Trade: values that leave for nothing pay for what is dear to make again."""

import hypothesis as hp
import hypothesis.strategies as hps
import numpy as np
import programs
from test_plan_planners import make_problem

from jaxswap.plan.problem import KEEP_GENE, RECOMPUTE_GENE, Problem
from jaxswap.plan.repair import repair
from jaxswap.plan.trade import trade


def test_what_leaves_for_nothing_pays_for_what_is_dear():
    # a0 … a2 hide behind ops that take ten times as long as their copies; a3, as large as the
    # three together, would be copied for too long, and takes 7 s to make again.
    draft_sizes = [2, 2, 2, 60, 1, 1, 1, 1]
    program = programs.chain(draft_sizes, forward_s=20.0, backward_s=20.0, again=7.0)
    whole = Problem(
        program=program, device=programs.UNIT, budget_bytes=0, efficiency=programs.EXACT
    )
    problem = whole.at_budget(whole.baseline.peak_bytes - 6)
    start = problem.empty_genes()
    start[3] = RECOMPUTE_GENE
    found = trade(problem, start, problem.costs_of)
    assert found[3] == KEEP_GENE
    assert sum(found[:3] > RECOMPUTE_GENE) == 3
    assert problem.forecast(found).step_s == problem.baseline.step_s
    assert problem.forecast(start).step_s == problem.baseline.step_s + 7.0


@hp.given(programs.programs(), hps.floats(0.3, 0.9), hps.integers(0, 2**31))
def test_a_trade_is_no_slower_and_fits(program, share, seed):
    problem = make_problem(program, share)
    rng = np.random.default_rng(seed)
    options = problem.options.is_allowed.shape[1]
    start = problem.allowed(rng.integers(0, options, problem.num_candidates))
    start = repair(problem, start[None], rng)[0][0]
    found = trade(problem, start, problem.costs_of)
    before, after = problem.costs_of(np.array([start, found]))
    assert after <= before * (1 + 1e-9)
    assert (problem.allowed(found) == found).all()
