"""Repair: how does an answer that needs too much get within its budget?

Input: answers (rows of genes, see `Problem`). Output: answers that exceed the budget by less, if at
all. What lies idle at an answer's peak leaves, until as many bytes have left as are too many.
"""

from collections.abc import Callable

import numpy as np

from jaxswap.model.population import Forecasts
from jaxswap.model.timeline import Floats, Ints
from jaxswap.plan.problem import (
    FIRST_OFFLOAD_GENE,
    KEEP_GENE,
    RECOMPUTE_GENE,
    Genes,
    Problem,
)

Free = Callable[[Genes, Forecasts], Genes]
"""Answers in which more leaves than in these, of the given forecasts, which need too much."""


def repair(
    problem: Problem,
    genes: Genes,
    rng: np.random.Generator,
    *,
    max_rounds: int = 3,
    free: Free | None = None,
) -> tuple[Genes, Floats]:
    """Brings answers `[answers, candidates]` closer to the budget, where they exceed it.

    Args:
        problem: what to decide.
        genes: answers.
        rng: of what is random.
        max_rounds: how often something may leave.
        free: what leaves; by default anything that lies idle at the peak, the largest first with
            some chance.

    Returns:
        The answers, and what they cost.
    """
    free = free or (lambda rows, forecasts: _free_any(problem, rows, forecasts, rng))
    genes = genes.copy()
    forecasts = problem.evaluate(genes)
    costs = problem.costs(forecasts)
    for _ in range(max_rounds):
        over = np.flatnonzero(problem.overshoot_bytes(forecasts) > 0)
        if not len(over):
            break
        subset = _pick(forecasts, over)
        trial = _spare_host(problem, free(genes[over], subset), subset, rng)
        again = problem.evaluate(trial)
        new_costs = problem.costs(again)
        better = new_costs < costs[over]
        genes[over[better]] = trial[better]
        costs[over[better]] = new_costs[better]
        if not better.any():
            break
        for name in Forecasts.__dataclass_fields__:
            getattr(forecasts, name)[over[better]] = getattr(again, name)[better]
    return genes, costs


def _pick(forecasts: Forecasts, rows: Ints) -> Forecasts:
    names = Forecasts.__dataclass_fields__
    return Forecasts(**{name: getattr(forecasts, name)[rows] for name in names})


def choose_freeing(problem: Problem, rng: np.random.Generator, num_plans: int) -> Genes:
    """For each plan and candidate, a choice by which it leaves; "keep" where there is none."""
    allowed = problem.options.is_allowed
    num_candidates, num_options = allowed.shape
    weights = rng.random((num_plans, num_candidates, num_options)) * allowed
    weights[:, :, KEEP_GENE] = 0.0
    # As likely recomputed as offloaded, in whichever way.
    weights[:, :, RECOMPUTE_GENE] **= 1.0 / max(num_options - FIRST_OFFLOAD_GENE, 1)
    best = weights.argmax(axis=2)
    return np.where(weights.max(axis=2) > 0, best, KEEP_GENE)


def free_idle(
    problem: Problem, genes: Genes, forecasts: Forecasts, choice: Genes, rank: Floats
) -> Genes:
    """Has what lies idle at the peak leave until enough bytes have, the lowest rank first.

    Args:
        problem: what to decide.
        genes: answers.
        forecasts: theirs.
        choice: how each candidate would leave; "keep" for those that stay.
        rank: of each candidate.
    """
    tracks = problem.timeline.tracks
    left = np.array([t.read_end for t in tracks])
    needed = np.array([t.needed for t in tracks])
    size = np.array([t.kept_bytes for t in tracks])
    peak = forecasts.peak_op[:, None]
    is_idle = (left <= peak) & (peak < needed) & (genes == KEEP_GENE) & (choice != KEEP_GENE)
    order = np.argsort(np.where(is_idle, rank, np.inf), axis=1, kind="stable")
    freed = np.cumsum(np.take_along_axis(size * is_idle, order, axis=1), axis=1)
    needs_more = np.concatenate([np.zeros((len(genes), 1)), freed[:, :-1]], axis=1)
    needs_more = needs_more < _too_many(problem, forecasts)
    leaves = np.zeros(genes.shape, dtype=bool)
    np.put_along_axis(leaves, order, needs_more, axis=1)
    return np.where(leaves & is_idle, choice, genes)


def _too_many(problem: Problem, forecasts: Forecasts) -> Ints:
    return np.maximum(forecasts.peak_bytes - problem.budget_bytes, 0)[:, None]


def _free_any(
    problem: Problem, genes: Genes, forecasts: Forecasts, rng: np.random.Generator
) -> Genes:
    """Has anything idle leave; where nothing is, the copies that are on the device for longest."""
    choice = choose_freeing(problem, rng, len(genes))
    size = np.array([t.kept_bytes for t in problem.timeline.tracks])
    freed = free_idle(problem, genes, forecasts, choice, -size * rng.uniform(0.2, 1.0, genes.shape))
    stuck = (freed == genes).all(axis=1, keepdims=True) & (_too_many(problem, forecasts) > 0)
    shortest = problem.options.is_allowed[:, FIRST_OFFLOAD_GENE]
    shrinks = stuck & (genes > FIRST_OFFLOAD_GENE) & shortest
    return np.where(shrinks, FIRST_OFFLOAD_GENE, freed)


def _spare_host(
    problem: Problem, genes: Genes, forecasts: Forecasts, rng: np.random.Generator
) -> Genes:
    if problem.host_budget_bytes is None:
        return genes
    is_over = (forecasts.host_bytes > problem.host_budget_bytes)[:, None]
    back = np.where(problem.options.is_allowed[:, RECOMPUTE_GENE], RECOMPUTE_GENE, KEEP_GENE)
    drops = is_over & (genes >= FIRST_OFFLOAD_GENE) & (rng.random(genes.shape) < 0.5)
    return np.where(drops, back, genes)
