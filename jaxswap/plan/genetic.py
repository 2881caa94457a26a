"""Genetic: which mix of keep, offload and recompute is fastest, found by breeding plans?

Input: a `Problem`. Output: the fastest plan that the search finds, never slower than any it
started from. This is the default planner, after pommDNN (FGCS 152, 2024), which searches
offload plans with a genetic algorithm and a training simulator. What differs: recomputation
and the copies' windows and distances are genes too, the search starts from the answers of all
other planners, and it ends with descents and exchanges (`exchange.py`).

Two stages, both on pygad. First equal blocks share their genes: a choice for the first blocks,
one for the rest, and where the cut is. Then every candidate has a gene of its own. An answer
that exceeds the budget is bred by what it costs after a repair.

Limitations:
    A search at a tight budget may be luckier than one at a wider budget. It never is compared
    with greedy's ladder, from which both start; for more, use `run_ladder`.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxswap.apply.decision import Decision
from jaxswap.model.device import Progress
from jaxswap.plan.base import Planner, Solution, make_solution
from jaxswap.plan.breed import OwnGenes, SharedGenes, run_pygad
from jaxswap.plan.exchange import exchange
from jaxswap.plan.greedy import build_ladder
from jaxswap.plan.improve import descend, find_lowest, give_back
from jaxswap.plan.problem import KEEP_GENE, Genes, Problem
from jaxswap.plan.repair import choose_freeing, repair
from jaxswap.plan.trade import trade

_STARTS = 4  # of descents
_WORTHWHILE = 1.0 - 1e-6  # of a cost: what gains less is not pursued
_RIVAL = 1.02  # times the best cost: within the error of a forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Genetic:
    """A genetic search over plans, with seeds, repair, and a descent at its end.

    Attributes:
        population: plans per generation.
        num_generations: at most so many in each stage.
        patience: generations without a better plan after which a stage ends.
        max_op_evaluations: ops simulated, over all plans that are tried (not over their repairs),
            after which no new descent or exchange starts.
        mutation_probability: of each gene.
        seeds: planners whose answers the search starts from, besides greedy's ladder; None
            for all of them.
        time_limit_s: when to stop; the answer then depends on the machine.

    Example:
        >>> Genetic(population=32).name
        'genetic'
    """

    population: int = 128
    num_generations: int = 60
    patience: int = 12
    max_op_evaluations: float = 5e7
    mutation_probability: float = 0.05
    seeds: tuple[str, ...] | None = None
    time_limit_s: float | None = None

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return "genetic"

    def solve(
        self, problem: Problem, rng: np.random.Generator, progress: Progress | None
    ) -> Solution:
        """The fastest plan found."""
        search = _Search(problem, self, rng, progress)
        report = progress or (lambda done, total, label: None)
        report(0, 4, "seeds")
        search.add_seeds()
        report(1, 4, "equal blocks together")
        search.breed(SharedGenes(problem))
        report(2, 4, "each value by itself")
        search.breed(OwnGenes(problem))
        report(3, 4, "descent")
        search.descend()
        report(4, 4, "done")
        return search.finish()


@dataclass
class _Search:
    """One run: the best answers so far, and what was spent on them."""

    problem: Problem
    settings: Genetic
    rng: np.random.Generator
    progress: Progress | None
    pool: Genes = field(init=False)
    costs: np.ndarray = field(init=False)
    evaluations: int = 0
    bound_s: float | None = None
    answers: list[Genes] = field(default_factory=list)  # of other planners

    def __post_init__(self) -> None:
        limit_s = self.settings.time_limit_s
        self.deadline_s = np.inf if limit_s is None else time.monotonic() + limit_s
        self.pool = self.problem.empty_genes()[None]
        self.costs = self.problem.costs_of(self.pool)

    def add(self, genes: Genes, costs: np.ndarray) -> None:
        """Keeps the best answers, each once."""
        pool, first = np.unique(np.concatenate([self.pool, genes]), axis=0, return_index=True)
        costs = np.concatenate([self.costs, costs])[first]
        order = np.argsort(costs, kind="stable")[: 2 * self.settings.population]
        self.pool, self.costs = pool[order], costs[order]

    def add_seeds(self) -> None:
        """Asks the other planners, and takes the best bound that one of them proves."""
        ladder = build_ladder(self.problem)
        self.add(ladder, self.problem.costs_of(ladder))
        for planner in self._list_seed_planners():
            solution = planner.solve(self.problem, self.rng, None)
            genes = np.array([solution.genes])
            self.add(genes, self.problem.costs_of(genes))
            if solution.bound_s is not None:
                self.bound_s = max(self.bound_s or 0.0, solution.bound_s)
            else:
                self.answers.append(genes[0])
        self._add_repaired()
        self._add_lowest()

    def _add_lowest(self) -> None:
        """Where nothing fits yet: the plan with the lowest peak, less what it need not do."""
        best = self.problem.forecast(self.pool[0])
        if not best.fits(self.problem.budget_bytes, self.problem.host_budget_bytes):
            genes = give_back(self.problem, find_lowest(self.problem))[None]
            self.add(genes, self.problem.costs_of(genes))

    def _list_seed_planners(self) -> list[Planner]:
        from jaxswap.plan.base import planners

        names = self.settings.seeds
        known = planners()
        chosen = [n for n in known if n not in ("genetic", "greedy")] if names is None else names
        return [known[name]() for name in chosen]

    def _add_repaired(self) -> None:
        """Random answers of every thickness, repaired."""
        count = self.settings.population
        leaving = choose_freeing(self.problem, self.rng, count)
        thickness = self.rng.random((count, 1))
        genes = np.where(self.rng.random(leaving.shape) < thickness, leaving, KEEP_GENE)
        self.add(*repair(self.problem, genes, self.rng))

    def breed(self, coding: OwnGenes | SharedGenes) -> None:
        """Runs one stage, and adds what it finds to the pool."""
        if self._is_spent() or max(map(len, coding.spaces)) < 2:
            return
        count = self.settings.population
        start = np.resize(coding.encode(self.pool), (count, len(coding.spaces)))

        def fitness(_: Any, rows: Any, __: Any) -> list[float]:
            genes = self.problem.allowed(coding.decode(np.array(rows, dtype=np.int64)))
            genes, costs = repair(self.problem, genes, self.rng, max_rounds=2)
            self.evaluations += len(genes)
            self.add(genes, costs)
            return (-costs / self.problem.worst_s).tolist()

        run_pygad(
            start,
            coding.spaces,
            fitness,
            self._watch(),
            num_generations=self.settings.num_generations,
            mutation_probability=self.settings.mutation_probability,
            seed=int(self.rng.integers(2**31)),
        )

    def _watch(self) -> Callable[[Any], str | None]:
        best, since = float(self.costs[0]), 0

        def on_generation(_: Any) -> str | None:
            nonlocal best, since
            is_better = self.costs[0] < best * (1.0 - 1e-9)
            best, since = float(self.costs[0]), 0 if is_better else since + 1
            return "stop" if self._is_spent() or since >= self.settings.patience else None

        return on_generation

    def descend(self) -> None:
        """Improves the best answers by small changes, then kicks the best about."""
        for genes in self._spread_out(_STARTS):
            self._exchange_from(self._descend_from(genes, with_pairs=True))
        while not self._is_spent():
            best = self.costs[0]
            for _ in range(self.settings.patience):
                self._descend_from(self._kick(self.pool[0]), with_pairs=False)
            if self.costs[0] >= best * (1.0 - 1e-9):
                break
        self._descend_from(self.pool[0], with_pairs=True)
        spare = give_back(self.problem, self.pool[0])[None]
        cost = self.problem.costs_of(spare)
        if cost[0] <= self.costs[0]:
            self.pool[0], self.costs[0] = spare[0], cost[0]

    def _exchange_from(self, genes: Genes) -> None:
        """Changes a choice, and others that make up for it, as long as that helps."""
        cost = float(self._count(genes[None])[0])
        while not self._is_spent():
            found, costs = exchange(self.problem, genes, self.rng)
            self.evaluations += len(found)
            self.add(found, costs)
            if costs.min() >= cost * _WORTHWHILE:
                break
            genes = self._descend_from(found[int(costs.argmin())], with_pairs=False)
            cost = float(self._count(genes[None])[0])

    def _spread_out(self, count: int) -> Genes:
        """The best answer, and others of the pool that differ most from those before them."""
        chosen = [self.pool[0]]
        half = self.pool[: max(len(self.pool) // 2, 1)]
        for _ in range(count - 1):
            apart = np.min([(half != genes).sum(axis=1) for genes in chosen], axis=0)
            chosen.append(half[int(apart.argmax())])
        return np.array(chosen)

    def _kick(self, genes: Genes) -> Genes:
        """The answer with a few choices made anew, repaired."""
        share = max(2.0 / len(genes), 0.08)
        other = choose_freeing(self.problem, self.rng, 1)[0]
        other = np.where(self.rng.random(len(genes)) < 0.5, other, KEEP_GENE)
        kicked = np.where(self.rng.random(len(genes)) < share, other, genes)
        return repair(self.problem, kicked[None], self.rng)[0][0]

    def _descend_from(self, genes: Genes, *, with_pairs: bool) -> Genes:
        if self._is_spent():
            return genes
        better = descend(
            self.problem,
            genes,
            self.rng,
            costs_of=self._count,
            with_pairs=with_pairs,
            max_trials=1500,
        )
        traded = trade(self.problem, better, self._count)
        found = np.array([better, traded])
        costs = self.problem.costs_of(found)
        self.add(found, costs)
        return found[int(costs.argmin())]

    def _count(self, genes: Genes) -> np.ndarray:
        self.evaluations += len(genes)
        return self.problem.costs_of(genes)

    def _is_spent(self) -> bool:
        """Whether time is up, or nothing better can be found."""
        spent = self.evaluations * self.problem.timeline.num_ops
        is_late = time.monotonic() > self.deadline_s
        return is_late or spent > self.settings.max_op_evaluations or self._is_proven()

    def _is_proven(self) -> bool:
        return self.bound_s is not None and self.costs[0] <= self.bound_s * (1.0 + 1e-9)

    def finish(self) -> Solution:
        solution = make_solution(
            self.problem,
            self.pool[0],
            self.settings.name,
            bound_s=self.bound_s,
            is_optimal=self._is_proven(),
            evaluations=self.evaluations,
        )
        return dataclasses.replace(solution, rival=self._find_rival())

    def _find_rival(self) -> dict[str, Decision] | None:
        """The fastest answer of another planner, if it is another one and hardly slower."""
        if not self.answers:
            return None
        answers = np.array(self.answers)
        costs = self.problem.costs_of(answers)
        at = int(costs.argmin())
        actions = self.problem.options.actions
        is_same = (actions[answers[at]] == actions[self.pool[0]]).all()
        if is_same or costs[at] > _RIVAL * self.costs[0]:
            return None
        return self.problem.decide(answers[at])
