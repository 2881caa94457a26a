"""Exchange: one choice for many others, which no single change gets to."""

import hypothesis as hp
import hypothesis.strategies as hps
import numpy as np
import programs
import pytest
from test_plan_planners import make_problem

from jaxswap.plan.base import run_planner
from jaxswap.plan.exchange import exchange
from jaxswap.plan.genetic import Genetic
from jaxswap.plan.improve import descend
from jaxswap.plan.problem import KEEP_GENE, RECOMPUTE_GENE, Problem
from jaxswap.plan.repair import repair


def one_or_many(num_wide, num_small):
    """A value of 10 bytes that takes 5 s to make again, and many others. All but 9 bytes fit.

    Wide ones of 4 bytes take 0.4 s each, small ones of one byte take 0.3 s: less, but more per
    byte. One more takes 3 s.
    """
    draft = programs.Draft()
    sizes = {"large": 10, "dear": 1, **{f"wide{k}": 4 for k in range(num_wide)}}
    sizes |= {f"small{k}": 1 for k in range(num_small)}
    again = {"large": 5.0, "dear": 3.0, "wide": 0.4, "small": 0.3}
    for name, size in sizes.items():
        draft.op(name, 1, "forward", [], [(name, size)])
    draft.op("loss", 1, "forward", [], [("loss", 0)])
    for name in reversed(sizes):
        draft.op(f"d_{name}", 2, "backward", [name, "loss"])
    for name in sizes:
        draft.candidate(name, again=again[name.rstrip("0123456789")], can_offload=False)
    whole = Problem(
        program=draft.finish(), device=programs.UNIT, budget_bytes=0, efficiency=programs.EXACT
    )
    return whole.at_budget(whole.baseline.peak_bytes - 9)


@pytest.mark.parametrize("seed", range(5))
def test_a_large_value_stays_and_the_cheapest_per_byte_make_up_for_it(seed):
    problem = one_or_many(3, 6)
    start = problem.empty_genes()
    start[0] = RECOMPUTE_GENE
    stuck = descend(problem, start, np.random.default_rng(seed), with_pairs=True)
    assert (stuck == start).all()  # neither one change nor two help
    found, costs = exchange(problem, start, np.random.default_rng(seed))
    best = found[costs.argmin()]
    assert best[0] == best[1] == KEEP_GENE
    added_s = problem.forecast(best).step_s - problem.baseline.step_s
    assert added_s <= 3 * 0.4 + 1e-9  # by price alone six small ones and one wide, 2.2 s, would go


@pytest.mark.parametrize("seed", range(5))
def test_the_genetic_search_exchanges(seed):
    """Started from nothing but greedy's ladder, without breeding and kicks."""
    problem = one_or_many(0, 11)
    alone = Genetic(population=4, num_generations=1, patience=0, seeds=())
    found = run_planner(problem, alone, seed=seed)
    assert np.isclose(found.forecast.step_s - problem.baseline.step_s, 9 * 0.3)


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
