"""Exchange: one choice for many others, which no single change gets to."""

import hypothesis as hp
import hypothesis.strategies as hps
import numpy as np
import programs
from test_plan_planners import make_problem

from jaxswap.plan.exchange import exchange
from jaxswap.plan.improve import descend
from jaxswap.plan.problem import KEEP_GENE, RECOMPUTE_GENE, Problem
from jaxswap.plan.repair import repair


def one_or_ten():
    """A value of ten bytes that takes 5 s to make again, ten of a byte, 0.3 s, and two of 3 s."""
    draft = programs.Draft()
    again = {"large": 5.0, "dear0": 3.0, **{f"small{k}": 0.3 for k in range(10)}, "dear1": 3.0}
    names = list(again)
    for name in names:
        draft.op(name, 1, "forward", [], [(name, 10 if name == "large" else 1)])
    draft.op("loss", 1, "forward", [], [("loss", 0)])
    for name in reversed(names):
        draft.op(f"d_{name}", 2, "backward", [name, "loss"])
    for name in names:
        draft.candidate(name, again=again[name], can_offload=False)
    whole = Problem(
        program=draft.finish(), device=programs.UNIT, budget_bytes=0, efficiency=programs.EXACT
    )
    return whole.at_budget(whole.baseline.peak_bytes - 9)


def test_a_large_value_stays_and_cheap_ones_make_up_for_it():
    problem = one_or_ten()
    start = problem.empty_genes()
    start[0] = RECOMPUTE_GENE
    stuck = descend(problem, start, np.random.default_rng(0), with_pairs=True)
    assert (stuck == start).all()  # neither one change nor two help
    found, costs = exchange(problem, start, np.random.default_rng(0))
    best = found[costs.argmin()]
    assert best[0] == KEEP_GENE
    assert (best[2:-1] == RECOMPUTE_GENE).sum() == 9
    added_s = problem.forecast(best).step_s - problem.baseline.step_s
    assert np.isclose(added_s, 9 * 0.3)


@hp.given(programs.programs(), hps.floats(0.3, 0.9), hps.integers(0, 2**31))
def test_answers_are_allowed_and_cost_what_is_said(program, share, seed):
    problem = make_problem(program, share)
    rng = np.random.default_rng(seed)
    options = problem.options.is_allowed.shape[1]
    start = problem.allowed(rng.integers(0, options, problem.num_candidates))
    start = repair(problem, start[None], rng)[0][0]
    found, costs = exchange(problem, start, rng)
    assert (problem.allowed(found) == found).all()
    assert np.allclose(costs, problem.costs_of(found))
    assert (found[0] == start).all() or costs[0] < problem.costs_of(start[None])[0]
