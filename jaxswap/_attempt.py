"""Attempt: how is a plan for a step searched, changed a little, and compiled?

Input: a step, what is asked of its plan, and the problem that it poses. Output: `Attempts`, whose
methods are what `_confirm.py` goes round with.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxswap._step import Step
from jaxswap.apply.step import apply_traced
from jaxswap.model.device import Progress
from jaxswap.plan.adjust import adjust
from jaxswap.plan.base import Solution, run_planner
from jaxswap.plan.plan import Plan, make_plan, redecide
from jaxswap.plan.problem import Problem
from jaxswap.verify.verify import Verified, verify_together


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a plan is asked for besides its step and its budget; see `plan`."""

    planner: str
    seed: int = 0
    time_limit_s: float | None = None
    host_bytes: int | None = None
    confirm: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Attempts:
    """Plans for a step on its device.

    Attributes:
        step: what is planned.
        args: its arguments.
        asked: what of the plan.
        problem: the step as a problem with its budget.
        known: what the planner answers to that problem, where it was asked before.
        show: is told what is under way.
        rivals: plans that are forecast to be hardly slower, by what the others were searched for.
    """

    step: Step
    args: tuple[Any, ...]
    asked: Asked
    problem: Problem
    known: Solution | None
    show: Progress
    rivals: dict[tuple[int, float], Plan] = field(default_factory=dict)

    def search(self, aim_bytes: int, slowness: float = 1.0) -> Plan:
        """A plan for so many bytes, on a link that is so many times slower."""
        asked, problem = self.asked, self.problem
        if self.known is not None and (aim_bytes, slowness) == (problem.budget_bytes, 1.0):
            return make_plan(problem, self.known, seed=asked.seed)
        aimed = problem.with_slower_link(slowness).at_budget(aim_bytes)
        limits = {"time_limit_s": asked.time_limit_s, "progress": self.show}
        found = run_planner(aimed, asked.planner, seed=asked.seed, **limits)
        if found.rival is not None:
            rival = dataclasses.replace(found, decisions=found.rival)
            self.rivals[aim_bytes, slowness] = make_plan(problem, rival, seed=asked.seed)
        return make_plan(problem, found, seed=asked.seed)

    def find_rival(self, aim_bytes: int, slowness: float) -> Plan | None:
        """Another planner's plan beside the one that was searched, if it is nearly as good."""
        return self.rivals.get((aim_bytes, slowness))

    def adjust(self, found: Plan, aim_bytes: int, slowness: float) -> Plan | None:
        """The plan with a few more values gone; None if that does not do."""
        allowed = self.problem.with_slower_link(slowness)
        decisions = adjust(allowed, found.decisions, aim_bytes)
        return None if decisions is None else redecide(self.problem, found, decisions)

    def compile_plans(self, plans: Sequence[Plan]) -> list[Verified]:
        """The step under each of some plans, compiled."""
        step = self.step
        self.show(0, 0, f"compiling for {step.device.name}")
        return verify_together(
            [self._follow(each) for each in plans], self.args, step.device, step.donated
        )

    def _follow(self, found: Plan) -> tuple[Callable, Mapping[str, Any] | None]:
        """The step as it follows a plan, and the compiler options for that."""
        fn, rest = self.step.fn, found.rest_as_written
        if found.is_empty:
            return fn, None
        followed = apply_traced(fn, self.step.traced, found.all_decisions, rest_as_written=rest)
        return followed, found.compiler_options()
