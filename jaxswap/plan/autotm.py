"""AutoTM: which values go to the host, by integer programming alone?

Input: a `Problem`. Output: the plan of the linear model of `milp.py` with recomputation
forbidden, at the spread of windows and distances that simulates best.
"""

from dataclasses import dataclass

import numpy as np

from jaxswap.model.device import Progress
from jaxswap.plan.base import Solution, make_solution
from jaxswap.plan.exact import choose_ops, list_answers
from jaxswap.plan.milp import solve_relaxed
from jaxswap.plan.problem import FIRST_OFFLOAD_GENE, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoTM:
    """Offload only, by integer program (Hildebrand et al., AutoTM, ASPLOS 2020).

    What differs: AutoTM places tensors of a CPU's program in DRAM or persistent memory, with
    measured kernel times for either; here a value is on the device or on the host, and
    kernels read the device only. Its synchronous and asynchronous moves are windows and
    distances here. Where the linear model's plan does not fit, the budget is tightened.

    Attributes:
        node_limit: nodes of HiGHS's search tree.
        max_rounds: how often the budget is tightened by what is too much.
        time_limit_s: when to stop; the answer then depends on the machine.

    Example:
        >>> AutoTM().name
        'autotm'
    """

    node_limit: int = 100
    max_rounds: int = 4
    time_limit_s: float | None = None

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return "autotm"

    def solve(
        self, problem: Problem, rng: np.random.Generator, progress: Progress | None
    ) -> Solution:
        """The plan of the linear model that fits."""
        everything = np.full(problem.num_candidates, FIRST_OFFLOAD_GENE)
        best = problem.allowed(everything)
        best_cost = float(problem.costs_of(best)[0])
        ops = choose_ops(problem)
        for _ in range(self.max_rounds):
            relaxed = solve_relaxed(
                problem,
                ops,
                with_recompute=False,
                node_limit=self.node_limit,
                time_limit_s=self.time_limit_s,
            )
            trials = list_answers(problem, relaxed)
            if not len(trials):
                break
            forecasts = problem.evaluate(trials)
            costs = problem.costs(forecasts)
            at = int(costs.argmin())
            if costs[at] < best_cost:
                best, best_cost = trials[at], float(costs[at])
            if problem.fits(forecasts).any():
                break
            ops = np.unique(np.append(ops, forecasts.peak_op))
        return make_solution(problem, best, self.name)
