"""Improve: how does an answer get better by small changes?

Input: an answer (a row of genes, see `Problem`). Output: one that is no worse. Every trial of a
round is simulated in one batch, because a hundred plans cost hardly more than one.
"""

from collections.abc import Callable

import numpy as np

from jaxswap.model.simulate import Forecast
from jaxswap.model.timeline import Floats
from jaxswap.plan.problem import (
    FIRST_OFFLOAD_GENE,
    KEEP_GENE,
    RECOMPUTE_GENE,
    Genes,
    Problem,
)

Costs = Callable[[Genes], Floats]
EPSILON = 1e-12  # relative: below it, a difference in seconds is rounding


def descend(
    problem: Problem,
    genes: Genes,
    rng: np.random.Generator,
    *,
    costs_of: Costs | None = None,
    max_rounds: int = 20,
    max_trials: int = 3000,
    with_pairs: bool = False,
) -> Genes:
    """Changes one choice at a time, all that help at once, until none helps.

    Args:
        problem: what to decide.
        genes: where to start.
        rng: which changes are tried when there are more than `max_trials`.
        costs_of: what to minimise; by default `Problem.costs_of`.
        max_rounds: when to give up.
        max_trials: how many plans to simulate per round.
        with_pairs: whether to try two changes together when single ones no longer help.
    """
    costs_of = costs_of or problem.costs_of
    best_cost = float(costs_of(genes[None])[0])
    for _ in range(max_rounds):
        trials = _list_single_changes(problem, genes, rng, max_trials)
        found, cost = _take_best(genes, trials, costs_of, best_cost)
        if found is None and with_pairs:
            trials = _list_pairs(problem, genes, rng, max_trials)
            found, cost = _take_best(genes, trials, costs_of, best_cost)
        if found is None:
            return genes
        genes, best_cost = found, cost
    return genes


def _list_single_changes(
    problem: Problem, genes: Genes, rng: np.random.Generator, max_trials: int
) -> Genes:
    is_new = problem.options.is_allowed.copy()
    is_new[np.arange(len(genes)), genes] = False
    who, what = np.nonzero(is_new)
    if len(who) > max_trials:
        chosen = np.sort(rng.choice(len(who), max_trials, replace=False))
        who, what = who[chosen], what[chosen]
    trials = np.repeat(genes[None], len(who), axis=0)
    trials[np.arange(len(who)), who] = what
    return trials


def _list_pairs(problem: Problem, genes: Genes, rng: np.random.Generator, max_trials: int) -> Genes:
    singles = _list_single_changes(problem, genes, rng, max_trials)
    count = len(singles)
    if count < 2:
        return singles[:0]
    first, second = np.triu_indices(count, k=1)
    if len(first) > max_trials:
        chosen = np.sort(rng.choice(len(first), max_trials, replace=False))
        first, second = first[chosen], second[chosen]
    return np.where(singles[first] != genes, singles[first], singles[second])


def _take_best(
    genes: Genes, trials: Genes, costs_of: Costs, best_cost: float
) -> tuple[Genes | None, float]:
    """The best of the trials, or of what the best of them give together."""
    if not len(trials):
        return None, best_cost
    costs = costs_of(trials)
    limit = best_cost * (1.0 - EPSILON)
    order = np.argsort(costs, kind="stable")
    better = [int(k) for k in order[:64] if costs[k] < limit]
    if not better:
        return None, best_cost
    together = np.repeat(genes[None], len(better), axis=0)
    for row, k in enumerate(better):
        together[row:] = np.where(
            (trials[k] != genes) & (together[row:] == genes), trials[k], together[row:]
        )
    joint = costs_of(together)
    if joint.min() < costs[better[0]]:
        return together[int(joint.argmin())], float(joint.min())
    return trials[better[0]], float(costs[better[0]])


def give_back(problem: Problem, genes: Genes, *, max_rounds: int = 8) -> Genes:
    """Keeps again what need not leave: whatever fits so, and is no slower.

    Each round tries every candidate by itself, and then the most rewarding ones together.
    """
    cost = float(problem.costs_of(genes[None])[0])
    for _ in range(max_rounds):
        moved = np.flatnonzero(genes != KEEP_GENE)
        if not len(moved):
            break
        trials = np.repeat(genes[None], len(moved), axis=0)
        trials[np.arange(len(moved)), moved] = KEEP_GENE
        costs = problem.costs_of(trials)
        limit = cost * (1.0 + EPSILON)
        order = [int(k) for k in np.argsort(costs, kind="stable") if costs[k] <= limit]
        if not order:
            break
        together = np.repeat(genes[None], len(order), axis=0)
        for row, k in enumerate(order):
            together[row:, moved[k]] = KEEP_GENE
        joint = problem.costs_of(together)
        # The longest row that is no slower; the first, a single change, always is one.
        row = int(np.flatnonzero(joint <= limit)[-1])
        row = int(joint.argmin()) if joint.min() < joint[row] * (1.0 - EPSILON) else row
        genes, cost = together[row], min(float(joint[row]), cost)
    return genes


def find_floor(problem: Problem) -> Forecast:
    """The forecast of the plan with the lowest peak that a search for it finds."""
    return problem.forecast(find_lowest(problem))


def find_lowest(problem: Problem) -> Genes:
    """The plan with the lowest peak that a search for it finds, whatever it costs in time."""
    rng = np.random.default_rng(0)
    aggressive = problem.allowed(
        np.array(
            [
                np.full(problem.num_candidates, FIRST_OFFLOAD_GENE),
                np.full(problem.num_candidates, RECOMPUTE_GENE),
                np.where(
                    problem.options.is_allowed[:, FIRST_OFFLOAD_GENE],
                    FIRST_OFFLOAD_GENE,
                    RECOMPUTE_GENE,
                ),
            ]
        )
    )

    def peaks_of(genes: Genes) -> Floats:
        forecasts = problem.evaluate(genes)
        over = 0
        if problem.host_budget_bytes is not None:
            over = np.maximum(forecasts.host_bytes - problem.host_budget_bytes, 0)
        return (forecasts.peak_bytes + over).astype(np.float64)

    start = aggressive[int(peaks_of(aggressive).argmin())]
    return descend(problem, start, rng, costs_of=peaks_of, with_pairs=problem.num_candidates < 40)
