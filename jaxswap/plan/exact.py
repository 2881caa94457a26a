"""Exact: how close to the best possible plan is this one?

Input: a `Problem`. Output: a plan with a bound that no plan beats. Few enough combinations are
simulated one and all (`enumerate_all`), and the answer is then the optimum of the simulator,
over the options there are. Otherwise the linear model of `milp.py` gives the bound and a first
answer; windows and distances, which that model has not, are then found by a descent on the
simulator, from there and from greedy's ladder. Such an answer is proven only as far as its
`gap` says.
"""

import itertools
import time
from dataclasses import dataclass

import numpy as np

from jaxswap.model.device import Progress
from jaxswap.model.simulate import forecast_kept
from jaxswap.model.timeline import Ints
from jaxswap.plan.base import Solution, make_solution
from jaxswap.plan.greedy import build_ladder
from jaxswap.plan.improve import descend, give_back
from jaxswap.plan.milp import Relaxed, solve_relaxed
from jaxswap.plan.problem import (
    FIRST_OFFLOAD_GENE,
    KEEP_GENE,
    RECOMPUTE_GENE,
    Genes,
    Problem,
)
from jaxswap.plan.repair import repair

_MAX_ROWS = 300
_BATCH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Enumeration where it is possible, integer programming where it is not.

    Attributes:
        max_enumerated: combinations up to which all are simulated.
        max_cuts: how often to solve again with the budget enforced at the op that broke it.
        node_limit: nodes of HiGHS's search tree, so that equal problems get equal answers.
        time_limit_s: when to stop; the answer then depends on the machine.

    Example:
        >>> Exact().name
        'exact'
    """

    max_enumerated: int = 60_000
    max_cuts: int = 2
    node_limit: int = 200
    time_limit_s: float | None = None

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return "exact"

    def solve(
        self, problem: Problem, rng: np.random.Generator, progress: Progress | None
    ) -> Solution:
        """The best plan found, and the bound."""
        if count_combinations(problem) <= self.max_enumerated:
            genes = enumerate_all(problem)
            solution = make_solution(problem, genes, self.name)
            fits = solution.forecast.fits(problem.budget_bytes, problem.host_budget_bytes)
            bound_s = solution.forecast.step_s if fits else None
            return make_solution(problem, genes, self.name, bound_s=bound_s, is_optimal=fits)
        starts, bound_s = self._relax(problem, rng, progress)
        ladder = build_ladder(problem)
        starts.append(ladder[int(problem.costs_of(ladder).argmin())])
        order = np.argsort(problem.costs_of(np.array(starts)), kind="stable")[:2]
        found = [descend(problem, starts[k], rng, max_trials=1500) for k in order]
        best = found[int(problem.costs_of(np.array(found)).argmin())]
        best = give_back(problem, best)
        step_s = float(problem.evaluate(best).step_s[0])
        is_optimal = step_s <= bound_s * (1.0 + 1e-9)
        return make_solution(problem, best, self.name, bound_s=bound_s, is_optimal=is_optimal)

    def _relax(
        self, problem: Problem, rng: np.random.Generator, progress: Progress | None
    ) -> tuple[list[Genes], float]:
        """Plans of the linear model, and the best bound it gives."""
        report = progress or (lambda done, total, label: None)
        limit_s = self.time_limit_s
        deadline_s = np.inf if limit_s is None else time.monotonic() + limit_s
        ops = choose_ops(problem)
        starts, bound_s = [], 0.0
        for cut in range(self.max_cuts + 1):
            report(cut, self.max_cuts + 1, "integer program")
            left_s = None if limit_s is None else deadline_s - time.monotonic()
            relaxed = solve_relaxed(problem, ops, node_limit=self.node_limit, time_limit_s=left_s)
            bound_s = max(bound_s, min(relaxed.bound_s, problem.worst_s))
            trials = list_answers(problem, relaxed)
            if not len(trials):
                break
            forecasts = problem.evaluate(trials)
            costs = problem.costs(forecasts)
            if cut == 0 or not starts:
                starts.append(repair(problem, trials, rng)[0][int(costs.argmin())])
            starts.append(trials[int(costs.argmin())])
            worst = int(forecasts.peak_op[int(costs.argmin())])
            is_late = time.monotonic() > deadline_s
            if problem.fits(forecasts).any() or worst in ops or is_late:
                break
            ops = np.append(ops, worst)
        return starts, bound_s


def count_combinations(problem: Problem) -> int:
    """How many different answers there are."""
    return int(np.prod(problem.options.is_allowed.sum(axis=1).astype(object)))


def enumerate_all(problem: Problem) -> Genes:
    """The best of all answers, by trying them all; the first of equal ones."""
    spaces = [np.flatnonzero(row).tolist() for row in problem.options.is_allowed]
    best, best_cost = problem.empty_genes(), np.inf
    rows = itertools.product(*spaces)
    while batch := list(itertools.islice(rows, _BATCH)):
        genes = np.array(batch, dtype=np.int64)
        costs = problem.costs_of(genes)
        at = int(costs.argmin())
        if costs[at] < best_cost:
            best, best_cost = genes[at], float(costs[at])
    return best


def choose_ops(problem: Problem, max_rows: int = _MAX_ROWS) -> Ints:
    """The ops at which a step that keeps all needs most, one of each run of equal occupants."""
    edges = set()
    for track in problem.timeline.tracks:
        edges |= {track.kept_first, track.read_end, track.needed, track.last + 1}
    group = np.searchsorted(np.array(sorted(edges)), np.arange(problem.timeline.num_ops), "right")
    curve = np.array(forecast_kept(problem.program, problem.timeline).bytes_at)
    order = np.lexsort((-curve, group))
    firsts = order[np.unique(group[order], return_index=True)[1]]
    return np.sort(firsts[np.argsort(-curve[firsts], kind="stable")][:max_rows])


def list_answers(problem: Problem, relaxed: Relaxed) -> Genes:
    """What the linear model chose, once for each spread of windows and distances."""
    if relaxed.offloads is None or relaxed.recomputes is None:
        return np.zeros((0, problem.num_candidates), dtype=np.int64)
    allowed, num_spreads = problem.options.is_allowed, len(problem.spreads)
    rows = []
    for spread in range(num_spreads):
        genes = np.where(relaxed.recomputes, RECOMPUTE_GENE, KEEP_GENE)
        any_offload = FIRST_OFFLOAD_GENE + allowed[:, FIRST_OFFLOAD_GENE:].argmax(axis=1)
        genes = np.where(relaxed.offloads, any_offload, genes)
        for s in range(spread + 1):
            gene = FIRST_OFFLOAD_GENE + s * num_spreads + s
            genes = np.where(relaxed.offloads & allowed[:, gene], gene, genes)
        rows.append(genes)
    return problem.allowed(np.unique(np.array(rows), axis=0))
