"""Trade: what can leave for nothing, so that something dear can stay?

Input: an answer within its budget. Output: one that is no slower.
A copy that hides behind compute costs no time, and to offload one more value changes nothing by
itself: a search that only takes what helps does not see it. Here such values leave first, as
many as the link has room for; what they leave is then spent on what takes longest to make again.
"""

import numpy as np

from jaxswap.model.timeline import Floats
from jaxswap.plan.improve import Costs, give_back
from jaxswap.plan.problem import (
    FIRST_OFFLOAD_GENE,
    KEEP_GENE,
    RECOMPUTE_GENE,
    Genes,
    Problem,
)

_EPSILON = 1e-12  # relative: below it, a difference in seconds is rounding
_MAX_TRIALS = 1500
_MAX_ROUNDS = 6
_MAX_CONFLICTS = 12


def trade(problem: Problem, genes: Genes, costs_of: Costs) -> Genes:
    """Offloads what can leave for nothing and keeps what is dear, until that gains nothing."""
    cost = float(costs_of(genes[None])[0])
    for _ in range(_MAX_ROUNDS):
        found = _spend(problem, _fill_link(problem, genes, costs_of), costs_of)
        found_cost = float(costs_of(found[None])[0])
        if found_cost >= cost * (1.0 - _EPSILON):
            break
        genes, cost = found, found_cost
    return give_back(problem, genes)


def _fill_link(problem: Problem, genes: Genes, costs_of: Costs) -> Genes:
    """The answer with everything offloaded, of what it keeps, that costs no time."""
    limit = float(costs_of(genes[None])[0]) * (1.0 + _EPSILON)
    for who, what in _list_free(problem, genes, costs_of, limit):
        genes = _add_in_turn(genes, who, what, costs_of, limit)
    return genes


def _list_free(problem: Problem, genes: Genes, costs_of: Costs, limit: float):
    """Candidates that can leave for nothing, by themselves, the largest first; in two goes.

    First those whose copies have the most time: they get in each other's way least.
    """
    sizes = np.array([track.kept_bytes for track in problem.timeline.tracks])
    allowed = problem.options.is_allowed.copy()
    allowed[:, :FIRST_OFFLOAD_GENE] = False
    allowed[genes != KEEP_GENE] = False
    num_options = allowed.shape[1]
    last = num_options - 1 - np.argmax(allowed[:, ::-1], axis=1)
    middle = np.where(allowed, np.abs(np.arange(num_options) - num_options // 2), num_options)
    for options in (last, middle.argmin(axis=1)):
        who = np.flatnonzero(allowed.any(axis=1))
        who = who[np.argsort(-sizes[who], kind="stable")][:_MAX_TRIALS]
        trials = np.repeat(genes[None], len(who), axis=0)
        trials[np.arange(len(who)), who] = options[who]
        is_free = costs_of(trials) <= limit if len(who) else np.zeros(0, dtype=bool)
        yield who[is_free], options[who[is_free]]


def _add_in_turn(genes: Genes, who: Genes, what: Genes, costs_of: Costs, limit: float) -> Genes:
    """Makes changes one after another, and leaves out those that cost time with the others."""
    for _ in range(_MAX_CONFLICTS):
        still = np.flatnonzero(genes[who] == KEEP_GENE)
        if not len(still):
            return genes
        together = np.repeat(genes[None], len(still), axis=0)
        for row, k in enumerate(still):
            together[row:, who[k]] = what[k]
        is_over = costs_of(together) > limit
        count = int(np.argmax(is_over)) if is_over.any() else len(still)
        if count:
            genes = together[count - 1]
        who, what = np.delete(who, still[: count + 1]), np.delete(what, still[: count + 1])
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
