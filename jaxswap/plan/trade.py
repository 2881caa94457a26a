"""Trade: what can leave for nothing, so that something dear can stay?

Input: an answer within its budget. Output: one that is no slower.
A copy that hides behind compute costs no time, and to offload one more value changes nothing by
itself: a search that only takes what helps does not see it. Here such values leave first, as
many as the link has room for; what they leave is then spent on what takes longest to make again.
"""

import numpy as np

from jaxswap.model.timeline import Floats
from jaxswap.plan.improve import EPSILON, Costs, give_back
from jaxswap.plan.in_turn import change_in_turn
from jaxswap.plan.problem import (
    FIRST_OFFLOAD_GENE,
    KEEP_GENE,
    RECOMPUTE_GENE,
    Genes,
    Problem,
)

_MAX_ROUNDS = 6
_MAX_CONFLICTS = 12


def trade(problem: Problem, genes: Genes, costs_of: Costs) -> Genes:
    """Offloads what can leave for nothing and keeps what is dear, until that gains nothing."""
    cost = float(costs_of(genes[None])[0])
    for _ in range(_MAX_ROUNDS):
        found = _spend(problem, _fill_link(problem, genes, costs_of), costs_of)
        found_cost = float(costs_of(found[None])[0])
        if found_cost >= cost * (1.0 - EPSILON):
            break
        genes, cost = found, found_cost
    return give_back(problem, genes)


def _fill_link(problem: Problem, genes: Genes, costs_of: Costs) -> Genes:
    """The answer with everything offloaded, of what it keeps, that costs no time.

    The largest first; each in the way in which its copies have the most time, and if that does
    not do in one between, since copies with much time are on the device for long.
    """
    limit = float(costs_of(genes[None])[0]) * (1.0 + EPSILON)
    is_slower = lambda rows: costs_of(rows) > limit
    sizes = np.array([track.kept_bytes for track in problem.timeline.tracks])
    allowed = problem.options.is_allowed[:, FIRST_OFFLOAD_GENE:]
    longest = allowed.shape[1] - 1 - np.argmax(allowed[:, ::-1], axis=1)
    from_middle = np.abs(np.arange(allowed.shape[1]) - allowed.shape[1] // 2)
    between = np.where(allowed, from_middle, allowed.shape[1]).argmin(axis=1)
    for option in (longest, between):
        who = np.flatnonzero((genes == KEEP_GENE) & allowed.any(axis=1))
        if not len(who):
            break
        who = who[np.argsort(-sizes[who], kind="stable")]
        what = FIRST_OFFLOAD_GENE + option[who]
        alone = np.repeat(genes[None], len(who), axis=0)
        alone[np.arange(len(who)), who] = what
        is_free = ~is_slower(alone)
        free = [((int(k),), int(gene)) for k, gene in zip(who[is_free], what[is_free], strict=True)]
        genes = change_in_turn(genes, free, is_slower, max_harmful=_MAX_CONFLICTS)
    return genes


def _spend(problem: Problem, genes: Genes, costs_of: Costs) -> Genes:
    """The answer with as much kept, of what it recomputes, as the budget allows."""
    again = np.flatnonzero(genes == RECOMPUTE_GENE)
    if not len(again):
        return genes
    sizes = np.array([track.kept_bytes for track in problem.timeline.tracks])[again]
    trials = np.repeat(genes[None], len(again), axis=0)
    trials[np.arange(len(again)), again] = KEEP_GENE
    saved_s: Floats = problem.evaluate(genes).step_s[0] - problem.evaluate(trials).step_s
    rows = []
    for worth in (saved_s / np.maximum(sizes, 1), saved_s):
        row = genes
        for k in np.argsort(-worth, kind="stable"):
            row = row.copy()
            row[again[k]] = KEEP_GENE
            rows.append(row)
    together = np.array([genes, *rows])
    return together[int(costs_of(together).argmin())]
