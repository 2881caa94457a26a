"""Breed: how do plans become rows of genes, and generations of rows?

Input: rows to start from, and a function that says how fit rows are. Output: nothing; who
wants the best rows remembers them in that function. pygad does the breeding.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from jaxswap.plan.problem import Genes, Problem

_CUTS = 8  # of how many equal parts a group of equal values is cut


class OwnGenes:
    """One gene per candidate: its choice."""

    def __init__(self, problem: Problem):
        allowed = problem.options.is_allowed
        self.spaces = [np.flatnonzero(row).tolist() for row in allowed]

    def decode(self, genes: Genes) -> Genes:
        """The answers that rows of genes stand for."""
        return genes

    def encode(self, answers: Genes) -> Genes:
        """The rows of genes that stand for answers."""
        return answers


class SharedGenes:
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
        """The answers that rows of genes stand for."""
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


def run_pygad(
    start: Genes,
    spaces: list[list[int]],
    fitness: Callable[[Any, Any, Any], list[float]],
    on_generation: Callable[[Any], str | None],
    *,
    num_generations: int,
    mutation_probability: float,
    seed: int,
) -> None:
    """Breeds rows.

    Args:
        start: the first generation, `[rows, genes]`.
        spaces: the values that each gene can have.
        fitness: of a batch of rows, the higher the better.
        on_generation: called after each; "stop" ends the search.
        num_generations: at most so many.
        mutation_probability: of each gene.
        seed: of all that is random.
    """
    import pygad

    with _global_random_kept():
        search = pygad.GA(
            num_generations=num_generations,
            num_parents_mating=max(len(start) // 4, 2),
            initial_population=start,
            fitness_func=fitness,
            fitness_batch_size=len(start),
            gene_space=spaces,
            gene_type=int,
            parent_selection_type="tournament",
            keep_elitism=2,
            crossover_type="uniform",
            mutation_type="random",
            mutation_probability=mutation_probability,
            random_seed=seed,
            on_generation=on_generation,
            suppress_warnings=True,
        )
        search.run()


@contextmanager
def _global_random_kept() -> Iterator[None]:
    """Puts the global generators back, which pygad before 3.9 seeds."""
    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
