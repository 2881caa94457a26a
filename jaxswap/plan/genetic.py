"""Genetic: which mix of keep, offload and recompute is fastest, found by breeding plans?

Input: a `Problem`. Output: the fastest plan that the search finds, never slower than any it
started from. This is the default planner, after pommDNN (FGCS 152, 2024), which searches
offload plans with a genetic algorithm and a training simulator. What differs: recomputation
and the copies' windows and distances are genes too, the search starts from the answers of all
other planners, and it ends with a descent.

Two stages, both on pygad. First equal blocks share their genes: a choice for the first blocks,
one for the rest, and where the cut is. Then every candidate has a gene of its own. An answer
that exceeds the budget is bred by what it costs after a repair.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxswap.model.device import Progress
from jaxswap.plan.base import Planner, Solution, make_solution
from jaxswap.plan.greedy import build_ladder
from jaxswap.plan.improve import choose_freeing, descend, give_back, repair
from jaxswap.plan.problem import KEEP_GENE, Genes, Problem

_CUTS = 8  # of how many equal parts a group of equal values is cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Genetic:
    """A genetic search over plans, with seeds, repair, and a descent at its end.

    Attributes:
        population: plans per generation.
        num_generations: at most so many in each stage.
        patience: generations without a better plan after which a stage ends.
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
    patience: int = 10
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
        bound_s = search.add_seeds()
        if bound_s is not None and search.is_proven:
            report(4, 4, "done")
            return search.finish(bound_s)
        report(1, 4, "equal blocks together")
        search.breed(_SharedGenes(problem))
        report(2, 4, "each value by itself")
        search.breed(_OwnGenes(problem))
        report(3, 4, "descent")
        search.descend()
        report(4, 4, "done")
        return search.finish(bound_s)


class _OwnGenes:
    """One gene per candidate: its choice."""

    def __init__(self, problem: Problem):
        allowed = problem.options.is_allowed
        self.spaces = [np.flatnonzero(row).tolist() for row in allowed]

    def decode(self, genes: Genes) -> Genes:
        return genes

    def encode(self, answers: Genes) -> Genes:
        return answers


class _SharedGenes:
    """Three genes per group of equal values: two choices, and how many take the first."""

    def __init__(self, problem: Problem):
        repeats = [candidate.repeat for candidate in problem.program.candidates]
        allowed = problem.options.is_allowed
        self.group = np.unique(repeats, return_inverse=True)[1]
        self.rank = np.zeros(len(repeats))
        self.spaces: list[list[int]] = []
        for g in range(self.group.max() + 1):
            members = np.flatnonzero(self.group == g)
            self.rank[members] = (np.arange(len(members)) + 0.5) / len(members)
            choices = np.flatnonzero(allowed[members].any(axis=0)).tolist()
            self.spaces += [choices, choices, list(range(_CUTS + 1))]

    def decode(self, genes: Genes) -> Genes:
        first, rest, cut = (genes[:, 3 * self.group + k] for k in range(3))
        return np.where(self.rank * _CUTS < cut, first, rest)

    def encode(self, answers: Genes) -> Genes:
        """The most common choice of each group's first and second half."""
        rows = np.zeros((len(answers), len(self.spaces)), dtype=np.int64)
        for g in range(len(self.spaces) // 3):
            members = self.group == g
            for k, half in enumerate((self.rank <= 0.5, self.rank >= 0.5)):
                part = answers[:, members & half]
                rows[:, 3 * g + k] = [np.bincount(row).argmax() for row in part]
            rows[:, 3 * g + 2] = _CUTS // 2
        return rows


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
    is_proven: bool = False

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

    def add_seeds(self) -> float | None:
        """Asks the other planners; returns the best bound that one of them proves."""
        ladder = build_ladder(self.problem)
        self.add(ladder, self.problem.costs_of(ladder))
        bound_s = None
        for planner in self._list_seed_planners():
            solution = planner.solve(self.problem, self.rng, None)
            genes = np.array([solution.genes])
            self.add(genes, self.problem.costs_of(genes))
            self.is_proven |= solution.is_optimal
            if solution.bound_s is not None:
                bound_s = max(bound_s or 0.0, solution.bound_s)
        self._add_repaired()
        return bound_s

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

    def breed(self, coding: "_OwnGenes | _SharedGenes") -> None:
        """Runs one stage, and adds what it finds to the pool."""
        if time.monotonic() > self.deadline_s or max(map(len, coding.spaces)) < 2:
            return
        count = self.settings.population
        start = np.resize(coding.encode(self.pool), (count, len(coding.spaces)))

        def fitness(_: Any, rows: Any, __: Any) -> list[float]:
            genes = self.problem.allowed(coding.decode(np.array(rows, dtype=np.int64)))
            genes, costs = repair(self.problem, genes, self.rng, max_rounds=2)
            self.evaluations += len(genes)
            self.add(genes, costs)
            return (-costs / self.problem.worst_s).tolist()

        _run_pygad(self.settings, coding.spaces, start, fitness, self._watch(), self.rng)

    def _watch(self) -> Callable[[Any], str | None]:
        best, since = float(self.costs[0]), 0

        def on_generation(_: Any) -> str | None:
            nonlocal best, since
            is_better = self.costs[0] < best * (1.0 - 1e-9)
            best, since = float(self.costs[0]), 0 if is_better else since + 1
            is_late = time.monotonic() > self.deadline_s
            return "stop" if is_late or since >= self.settings.patience else None

        return on_generation

    def descend(self) -> None:
        """Improves the best few answers until no single change, or pair tried, helps."""
        for genes in self.pool[:3].copy():
            if time.monotonic() > self.deadline_s:
                break
            better = descend(self.problem, genes, self.rng, with_pairs=True)[None]
            self.add(better, self.problem.costs_of(better))
        spare = give_back(self.problem, self.pool[0])[None]
        cost = self.problem.costs_of(spare)
        if cost[0] <= self.costs[0]:
            self.pool[0], self.costs[0] = spare[0], cost[0]

    def finish(self, bound_s: float | None) -> Solution:
        return make_solution(
            self.problem,
            self.pool[0],
            self.settings.name,
            bound_s=bound_s,
            is_optimal=self.is_proven,
            evaluations=self.evaluations,
        )


def _run_pygad(
    settings: Genetic,
    spaces: list[list[int]],
    start: Genes,
    fitness: Callable[[Any, Any, Any], list[float]],
    on_generation: Callable[[Any], str | None],
    rng: np.random.Generator,
) -> None:
    import pygad

    with _global_random_kept():
        search = pygad.GA(
            num_generations=settings.num_generations,
            num_parents_mating=max(settings.population // 4, 2),
            initial_population=start,
            fitness_func=fitness,
            fitness_batch_size=settings.population,
            gene_space=spaces,
            gene_type=int,
            parent_selection_type="tournament",
            keep_elitism=2,
            crossover_type="uniform",
            mutation_type="random",
            mutation_probability=settings.mutation_probability,
            random_seed=int(rng.integers(2**31)),
            on_generation=on_generation,
            suppress_warnings=True,
        )
        search.run()


@contextmanager
def _global_random_kept() -> Iterator[None]:
    """pygad seeds the generators of `random` and `numpy.random`: puts them back afterwards."""
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
