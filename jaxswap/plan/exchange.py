"""Exchange: what if one choice were another, and the cheapest of the rest made up for it?

Input: an answer within its budget. Output: such answers, itself among them, and what they cost.
To keep one large value may take the place of ten small ones that then have to leave: no single
change gets there, since what exceeds the budget is no answer, nor do random ones. Here each
choice is changed in turn, and what exceeds the budget by it leaves in the order of what a byte
costs.
"""

import numpy as np

from jaxswap.model.timeline import Floats
from jaxswap.plan.problem import FIRST_OFFLOAD_GENE, KEEP_GENE, Genes, Problem
from jaxswap.plan.repair import free_idle, repair

_COPIES = 2  # of each change: windows, and the order in which others leave, are random in part
_ROUNDS = 5  # until it fits; the peak may be elsewhere each time
_NOISE = 0.3  # of prices, as the logarithm's deviation
_LEAST = 1e-7  # of a step: what is cheaper to free has no price but its size


def exchange(problem: Problem, genes: Genes, rng: np.random.Generator) -> tuple[Genes, Floats]:
    """The answer, and others with a choice changed and brought within the budget; and their costs.

    Args:
        problem: what to decide.
        genes: where to start.
        rng: of what is random.
    """
    choice, price = _price_leaving(problem, genes)
    changed = _change_each(problem, genes, rng)
    by_price = lambda rows, forecasts: free_idle(
        problem, rows, forecasts, choice, price * rng.lognormal(0.0, _NOISE, rows.shape)
    )
    return repair(problem, changed, rng, max_rounds=_ROUNDS, free=by_price)


def _price_leaving(problem: Problem, genes: Genes) -> tuple[Genes, Floats]:
    """How each kept candidate leaves at least cost, and its seconds per byte; "keep" for others."""
    allowed = problem.options.is_allowed & (genes == KEEP_GENE)[:, None]
    allowed[:, KEEP_GENE] = False
    who, what = np.nonzero(allowed)
    trials = np.repeat(genes[None], 1 + len(who), axis=0)
    trials[np.arange(1, len(trials)), who] = what
    before_s, *after_s = problem.evaluate(trials).step_s
    added_s = np.full(allowed.shape, np.inf)
    added_s[who, what] = np.maximum(np.array(after_s) - before_s, _LEAST * before_s)
    choice = np.where(allowed.any(axis=1), added_s.argmin(axis=1), KEEP_GENE)
    sizes = np.array([track.kept_bytes for track in problem.timeline.tracks])
    return choice, added_s.min(axis=1) / np.maximum(sizes, 1)


def _change_each(problem: Problem, genes: Genes, rng: np.random.Generator) -> Genes:
    """The answer, and the answer with another action for one candidate, a few times for each."""
    rows = [genes]
    for index, (allowed, gene) in enumerate(
        zip(problem.options.is_allowed, genes.tolist(), strict=True)
    ):
        options = np.flatnonzero(allowed)
        for action in range(FIRST_OFFLOAD_GENE + 1):
            same = options[np.minimum(options, FIRST_OFFLOAD_GENE) == action]
            if len(same) and min(gene, FIRST_OFFLOAD_GENE) != action:
                for other in rng.choice(same, _COPIES):
                    rows.append(genes.copy())
                    rows[-1][index] = other
    return np.array(rows)
