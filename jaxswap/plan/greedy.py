"""Greedy: what leaves first, if the cheapest bytes leave first?

Input: a `Problem`. Output: the fastest of a few hundred plans that fit. Candidates leave one
after the other, the most bytes per second first, in several orders (recompute first, offload
first, offload as much as the link can carry, recompute only from what stays); each order is
simulated at every length. Then what turned out not to be needed is given back, at each of a
ladder of budgets.

None of the plans depends on the budget, which only picks among them: so a tighter budget never
gets a faster plan.
"""

from dataclasses import dataclass

import numpy as np

from jaxswap.model.device import Progress
from jaxswap.plan.base import Solution, make_solution
from jaxswap.plan.improve import give_back
from jaxswap.plan.problem import (
    FIRST_OFFLOAD_GENE,
    KEEP_GENE,
    RECOMPUTE_GENE,
    Genes,
    Problem,
)

_MAX_LENGTHS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """The cheapest bytes first.

    Attributes:
        num_levels: budgets at which plans are refined, between the lowest peak and that of
            the unplanned step.

    Example:
        >>> Greedy().name
        'greedy'
    """

    num_levels: int = 8

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return "greedy"

    def solve(
        self, problem: Problem, rng: np.random.Generator, progress: Progress | None
    ) -> Solution:
        """The fastest plan of the ladder that fits; the lowest one if none does."""
        genes = build_ladder(problem, self.num_levels)
        costs = problem.costs_of(genes)
        best = genes[int(costs.argmin())]
        return make_solution(problem, best, self.name, evaluations=len(genes))


def build_ladder(problem: Problem, num_levels: int = 8) -> Genes:
    """Plans of all sizes, from keeping everything to the lowest peak, whatever the budget."""
    genes = np.unique(np.concatenate(list_orders(problem)), axis=0)
    forecasts = problem.evaluate(genes)
    if problem.host_budget_bytes is not None:
        on_host = forecasts.host_bytes <= problem.host_budget_bytes
        genes = genes[on_host]
        forecasts = problem.evaluate(genes)
    lowest, highest = int(forecasts.peak_bytes.min()), int(forecasts.peak_bytes.max())
    refined = []
    for level in range(num_levels):
        budget_bytes = lowest + (highest - lowest) * level // num_levels
        rung = problem.at_budget(budget_bytes)
        best = genes[int(rung.costs(forecasts).argmin())]
        refined.append(give_back(rung, best))
    return np.concatenate([genes, np.array(refined)])


def list_orders(problem: Problem) -> list[Genes]:
    """For each order, the plans in which its first k candidates leave."""
    allowed = problem.options.is_allowed
    num_spreads = len(problem.spreads)
    can_recompute = allowed[:, RECOMPUTE_GENE]
    plans = []
    for spread in range(num_spreads):
        away = _nearest_offload(allowed, spread, num_spreads)
        either = np.where(can_recompute, RECOMPUTE_GENE, away)
        mixes = [np.where(away != KEEP_GENE, away, either)]
        mixes += [_share_link(problem, away, either, share) for share in (0.25, 0.5, 0.75, 1.0)]
        if spread == 0:
            mixes += [either, _keep_parents(problem, either)]
        for choice in mixes:
            plans.append(_cut(choice, _order_by_rate(problem, choice)))
    earliest = np.arange(problem.num_candidates)
    plans.append(_cut(plans[0][-1], earliest))
    return plans


def _nearest_offload(allowed: np.ndarray, spread: int, num_spreads: int) -> Genes:
    """The offload of that spread both ways, or the next shorter one that is allowed."""
    found = np.full(len(allowed), KEEP_GENE)
    for s in range(spread + 1):
        gene = FIRST_OFFLOAD_GENE + s * num_spreads + s
        found = np.where(allowed[:, gene], gene, found)
    return found


def _share_link(problem: Problem, away: Genes, either: Genes, share: float) -> Genes:
    """Offloads what costs most to recompute, as far as the link and the host can take it."""
    tracks = problem.timeline.tracks
    again_s = np.array([np.inf if t.recompute_s is None else t.recompute_s for t in tracks])
    copy_s = np.array([max(t.in_s, t.out_s) for t in tracks])
    room_s = share * float(problem.timeline.op_s.sum()) / 2
    room_bytes = np.inf if problem.host_budget_bytes is None else problem.host_budget_bytes
    choice = np.where(problem.options.is_allowed[:, RECOMPUTE_GENE], either, KEEP_GENE)
    for index in np.argsort(-again_s / np.maximum(copy_s, 1e-30), kind="stable"):
        host_bytes = tracks[index].host_bytes
        has_room = copy_s[index] <= room_s and host_bytes <= room_bytes
        if away[index] != KEEP_GENE and has_room:
            choice[index] = away[index]
            room_s -= copy_s[index]
            room_bytes -= host_bytes
    return choice


def _keep_parents(problem: Problem, choice: Genes) -> Genes:
    """Recomputes nothing from what is recomputed: the best rate first, its relatives stay.

    Whole chains of recomputed values come back at once; single ones one by one.
    """
    tracks = problem.timeline.tracks
    kept: set[int] = set()
    chosen = np.full_like(choice, KEEP_GENE)
    for index in _order_by_rate(problem, choice).tolist():
        parents = tracks[index].parents
        is_free = index not in kept and all(chosen[p] != RECOMPUTE_GENE for p in parents)
        if choice[index] == RECOMPUTE_GENE and is_free:
            chosen[index] = RECOMPUTE_GENE
            kept.update(parents)
    return chosen


def _order_by_rate(problem: Problem, choice: Genes) -> np.ndarray:
    """Candidates by bytes × idle seconds that leave per second that it costs, best first."""
    tracks = problem.timeline.tracks
    ends_s = np.concatenate([[0.0], np.cumsum(problem.timeline.op_s)])
    idle_s = np.array([ends_s[t.needed] - ends_s[t.read_end] for t in tracks])
    size = np.array([t.kept_bytes for t in tracks], dtype=np.float64)
    again_s = np.array([max((t.recompute_s or 0.0) - t.spared_s - t.lean_s, 0.0) for t in tracks])
    copy_s = np.array([t.in_s + t.out_s for t in tracks])
    exposed_s = np.where(choice == RECOMPUTE_GENE, again_s, np.maximum(copy_s - idle_s, 0.0))
    rate = size * (idle_s + 1e-12) / (exposed_s + 0.01 * copy_s + 1e-12)
    return np.argsort(-rate, kind="stable")


def _cut(choice: Genes, order: np.ndarray) -> Genes:
    order = order[choice[order] != KEEP_GENE]
    count = len(order)
    lengths = np.unique(np.linspace(0, count, min(count + 1, _MAX_LENGTHS)).astype(int))
    rank = np.full(len(choice), len(choice) + 1)
    rank[order] = np.arange(count)
    return np.where(rank[None] < lengths[:, None], choice[None], KEEP_GENE)
