"""Planners: how is one asked for a plan, and what has its answer to hold?

Input: a `Problem`, a planner (settings with a pure `solve`) or its name, and a seed. Output: a
`Solution`, or `BudgetInfeasibleError`. One driver, `run_planner`, is in front of all of them:
where the unplanned step fits, the answer is to do nothing, and no planner is asked.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from jaxswap._errors import BadArgumentError, BudgetInfeasibleError
from jaxswap._units import format_bytes
from jaxswap.apply.decision import Decision
from jaxswap.model.device import Progress
from jaxswap.model.simulate import Forecast
from jaxswap.plan.problem import Genes, Problem


@dataclass(frozen=True, kw_only=True)
class Solution:
    """What a planner answers.

    Attributes:
        genes: its choice for each candidate, see `Problem`.
        decisions: the same as decisions, for what is not kept.
        forecast: of the simulator, for these decisions.
        planner: the name of the planner.
        bound_s: seconds that no plan within the budget can beat; None if not known.
        is_optimal: whether no choice of options is faster in the simulator.
        evaluations: how many plans were simulated, where that is counted.
        rival: the decisions of another planner that it asked, if they are other ones and nearly
            as good: the compiler may have it the other way round.
    """

    genes: tuple[int, ...]
    decisions: Mapping[str, Decision]
    forecast: Forecast
    planner: str
    bound_s: float | None = None
    is_optimal: bool = False
    evaluations: int = 0
    rival: Mapping[str, Decision] | None = None

    @property
    def gap(self) -> float | None:
        """By which part of the bound the answer may be slower than the best there is."""
        if self.bound_s is None or self.bound_s <= 0:
            return None
        return max(self.forecast.step_s / self.bound_s - 1.0, 0.0)


class Planner(Protocol):
    """Settings of a planner. `solve` is pure: equal arguments give equal answers."""

    @property
    def name(self) -> str:
        """What it is called in the registry and in plans."""
        ...

    def solve(
        self, problem: Problem, rng: np.random.Generator, progress: Progress | None
    ) -> Solution:
        """The best answer it finds, within the budget or not."""
        ...


def make_solution(
    problem: Problem,
    genes: Genes,
    planner: str,
    *,
    bound_s: float | None = None,
    is_optimal: bool = False,
    evaluations: int = 0,
) -> Solution:
    """Makes a solution from genes, with its forecast by the plain simulator."""
    genes = problem.allowed(genes)
    return Solution(
        genes=tuple(genes.tolist()),
        decisions=problem.decide(genes),
        forecast=problem.forecast(genes),
        planner=planner,
        bound_s=bound_s,
        is_optimal=is_optimal,
        evaluations=evaluations,
    )


def planners() -> dict[str, Callable[[], Planner]]:
    """All planners by name, each with its default settings.

    Example:
        >>> sorted(planners())[:3]
        ['autotm', 'capuchin', 'chen']
    """
    from jaxswap.plan import autotm, exact, genetic, greedy, literature

    own = (genetic.Genetic, exact.Exact, greedy.Greedy, autotm.AutoTM)
    return {make().name: make for make in (*own, *literature.PLANNERS)}


def find_planner(planner: "str | Planner") -> "Planner":
    """The planner of that name, or the planner itself."""
    if not isinstance(planner, str):
        return planner
    known = planners()
    if planner not in known:
        names = ", ".join(f'"{name}"' for name in sorted(known))
        raise BadArgumentError(f"`planner={planner!r}` is not known: write one of {names}.")
    return known[planner]()


def run_planner(
    problem: Problem,
    planner: "str | Planner" = "genetic",
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> Solution:
    """Asks a planner for the fastest plan within the budget.

    Args:
        problem: what to decide.
        planner: its name, or its settings.
        seed: of everything random. With no time limit, equal seeds give equal answers.
        time_limit_s: when to stop searching, where the planner has such a setting.
        progress: called as `progress(done, total, label)`.

    Returns:
        A solution that fits.

    Raises:
        BudgetInfeasibleError: the planner finds no plan that fits.

    Example:
        >>> from jaxswap.model.device import Device
        >>> from jaxswap.program.ir import Program
        >>> program = Program(ops=(), values=(), candidates=())
        >>> problem = Problem(program=program, device=Device.named("t4"), budget_bytes=1)
        >>> dict(run_planner(problem, "greedy").decisions)
        {}
    """
    chosen = find_planner(planner)
    if problem.fits_unplanned:
        bound_s = problem.baseline.step_s
        return make_solution(
            problem, problem.empty_genes(), chosen.name, bound_s=bound_s, is_optimal=True
        )
    if time_limit_s is not None and hasattr(chosen, "time_limit_s"):
        chosen = dataclasses.replace(chosen, time_limit_s=time_limit_s)  # pyright: ignore
    if problem.num_candidates == 0:
        floor = problem.baseline
        message = explain_infeasible(problem, chosen.name, floor)
        raise BudgetInfeasibleError(message, floor_bytes=floor.peak_bytes)
    solution = chosen.solve(problem, np.random.default_rng(seed), progress)
    if solution.forecast.fits(problem.budget_bytes, problem.host_budget_bytes):
        return solution
    from jaxswap.plan.improve import find_floor

    floor = find_floor(problem)
    message = explain_infeasible(problem, chosen.name, floor)
    if floor.fits(problem.budget_bytes, problem.host_budget_bytes):
        message = explain_infeasible(problem, chosen.name, solution.forecast)
        size = format_bytes(floor.peak_bytes)
        message += f' Other planners can: `planner="genetic"` gets to {size}.'
    raise BudgetInfeasibleError(message, floor_bytes=floor.peak_bytes)


def run_ladder(
    problem: Problem,
    budgets_bytes: Sequence[int],
    planner: "str | Planner" = "genetic",
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Solution | None]:
    """Plans for several budgets, none of which is slower than that of a tighter one.

    A search may miss at a wide budget what it found at a tight one. So the budgets are solved
    from the tightest on, and each gets the fastest plan found so far.

    Args:
        problem: what to decide; its own budget does not matter.
        budgets_bytes: the budgets, in any order.
        planner: as for `run_planner`.
        seed: likewise.
        progress: likewise, over the budgets.

    Returns:
        A solution for each budget, in the order given; None where none fits.

    Example:
        >>> from jaxswap.model.device import Device
        >>> from jaxswap.program.ir import Program
        >>> program = Program(ops=(), values=(), candidates=(), base_bytes=5)
        >>> problem = Problem(program=program, device=Device.named("t4"), budget_bytes=1)
        >>> [found is None for found in run_ladder(problem, [9, 4], "greedy")]
        [False, True]
    """
    found: dict[int, Solution | None] = {}
    fastest: Solution | None = None
    for done, budget_bytes in enumerate(sorted(set(budgets_bytes))):
        if progress is not None:
            progress(done, len(set(budgets_bytes)), format_bytes(budget_bytes))
        try:
            solution = run_planner(problem.at_budget(budget_bytes), planner, seed=seed)
        except BudgetInfeasibleError:
            solution = None
        if solution and (not fastest or solution.forecast.step_s <= fastest.forecast.step_s):
            fastest = solution
        found[budget_bytes] = fastest
    return [found[budget_bytes] for budget_bytes in budgets_bytes]


def explain_infeasible(problem: Problem, planner: str, floor: Forecast) -> str:
    """Says why no plan fits: the floor, the op that sets it, and what would help."""
    budget = format_bytes(problem.budget_bytes)
    over_host = problem.host_budget_bytes is not None and floor.peak_bytes <= problem.budget_bytes
    if over_host:
        return (
            f"No plan of `{planner}` fits `budget={budget}` with "
            f"`host_budget={format_bytes(problem.host_budget_bytes or 0)}`: its best one needs "
            f"{format_bytes(floor.host_bytes)} of host memory. Raise `host_budget` to that, "
            "raise `budget`, or use a smaller batch."
        )
    where, program = "", problem.program
    ops = (program.written or program).ops if floor.is_unplanned else program.ops
    if ops:
        op = ops[floor.peak_op]
        at = ", ".join(part for part in (op.label, op.source) if part)
        where = f", set by op {floor.peak_op}, `{op.name}`" + (f" ({at})" if at else "")
    host = ""
    if problem.host_budget_bytes is not None:
        host = f", raise `host_budget` ({format_bytes(problem.host_budget_bytes)})"
    return (
        f"No plan of `{planner}` fits `budget={budget}`: the lowest peak it finds is "
        f"{format_bytes(floor.peak_bytes)}{where}. Raise `budget` to at least "
        f"{format_bytes(floor.peak_bytes)}{host}, or make that op smaller (for example with a "
        "smaller batch); arguments and outputs take "
        f"{format_bytes(problem.program.base_bytes)} of it, less if they are donated."
    )
