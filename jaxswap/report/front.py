"""Front: what would other budgets cost, and what JAX's own policies?

Input: a `Program`, its `Device` and the plan that was chosen. Output: points of bytes against
step time, all forecast: the step as written, quick plans for other budgets, JAX's policies
(`policies.py`) and the plan.
"""

from collections.abc import Iterable

from jaxswap.model.device import Device
from jaxswap.model.simulate import Forecast
from jaxswap.plan.greedy import build_ladder
from jaxswap.plan.plan import Plan
from jaxswap.plan.problem import Problem
from jaxswap.program.ir import Program
from jaxswap.report.policies import forecast_policies
from jaxswap.report.rows import FrontPoint, PointKind

# Ops times candidates, above which plans for other budgets take longer than all of the report.
_MAX_WORK = 5 * 10**6


def find_front(
    program: Program, device: Device, plan: Plan, *, num_budgets: int = 8
) -> tuple[FrontPoint, ...]:
    """The plan, among what other budgets and JAX's policies would give.

    Args:
        program: the step.
        device: what it runs on.
        plan: the plan of the report, shown among them.
        num_budgets: how many budgets to plan for, from the floor to what the step takes as
            written; 0 for none. Steps of very many ops get none.

    Example:
        >>> from jaxswap.model.simulate import Forecast
        >>> plan = Plan(decisions={}, values={}, forecast=Forecast(peak_bytes=7, step_s=1e-3),
        ...             budget_bytes=8, device="t4")
        >>> program = Program(ops=(), values=(), candidates=(), base_bytes=7)
        >>> [p.label for p in find_front(program, Device.named("t4"), plan)]
        ['as written', 'this plan']
    """
    problem = Problem(
        program=program,
        device=device,
        budget_bytes=plan.budget_bytes,
        host_budget_bytes=plan.host_budget_bytes,
    )
    unplanned = plan.forecast.baseline or problem.baseline
    points = [_point("as written", unplanned, kind="written")]
    if program.candidates:
        if num_budgets and len(program.ops) * len(program.candidates) <= _MAX_WORK:
            points += _plan_budgets(problem, num_budgets)
        written = problem.timeline.written  # which a policy leaves as it is
        points += forecast_policies(program.written or program, written or problem.timeline)
    return (*points, _point("this plan", plan.forecast, kind="chosen"))


def _plan_budgets(problem: Problem, num_budgets: int) -> Iterable[FrontPoint]:
    """The fastest of many quick plans for each of some budgets."""
    found = problem.evaluate(build_ladder(problem))
    low, high = int(found.peak_bytes.min()), int(found.peak_bytes.max())
    plans: dict[tuple[int, float], None] = {}
    # Between the two: at the floor itself, time is no object and the scale of the picture.
    for k in range(1, 2 * num_budgets, 2):
        budget_bytes = low + (high - low) * k // (2 * num_budgets)
        best = int(problem.at_budget(budget_bytes).costs(found).argmin())
        plans[int(found.peak_bytes[best]), float(found.step_s[best])] = None
    for size_bytes, step_s in plans:
        yield FrontPoint(label="greedy plan", size_bytes=size_bytes, step_s=step_s)


def _point(label: str, forecast: Forecast, *, kind: PointKind) -> FrontPoint:
    return FrontPoint(
        label=label, size_bytes=forecast.peak_bytes, step_s=forecast.step_s, kind=kind
    )
