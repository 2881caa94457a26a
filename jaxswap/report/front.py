"""Front: what would other budgets cost?

Input: a `Program`, its `Device` and the plan that was chosen. Output: points of bytes against
step time, all forecast.
JAX's policies are not among them: how they are applied, block by block or to all at once, is not
the program's to say. Who has compiled some gives them to `Report.of` as points of their own.
"""

from jaxswap.model.device import Device, Progress
from jaxswap.model.simulate import Forecast
from jaxswap.plan.base import run_ladder
from jaxswap.plan.improve import find_floor
from jaxswap.plan.plan import Plan
from jaxswap.plan.problem import Problem
from jaxswap.program.ir import Program
from jaxswap.report.rows import FrontPoint, PointKind


def find_front(
    program: Program,
    device: Device,
    plan: Plan,
    *,
    num_budgets: int = 8,
    planner: str = "greedy",
    progress: Progress | None = None,
) -> tuple[FrontPoint, ...]:
    """Plans for budgets from the floor to what the step takes as written.

    Args:
        program: the step.
        device: what it runs on.
        plan: the plan of the report, shown among them.
        num_budgets: how many budgets to plan for.
        planner: who plans for them; quick ones are good enough to see the shape.
        progress: called as `progress(done, total, label)`.

    Example:
        >>> from jaxswap.model.simulate import Forecast
        >>> plan = Plan(decisions={}, values={}, forecast=Forecast(peak_bytes=7, step_s=1e-3),
        ...             budget_bytes=8, device="t4")
        >>> program = Program(ops=(), values=(), candidates=(), base_bytes=7)
        >>> [p.label for p in find_front(program, Device.named("t4"), plan)]
        ['as written', 'this plan']
    """
    problem = Problem(program=program, device=device, budget_bytes=plan.budget_bytes)
    points = [_point("as written", problem.baseline, kind="written")]
    if program.candidates:
        low, high = find_floor(problem).peak_bytes, problem.baseline.peak_bytes
        steps = max(num_budgets, 1)
        # Between the two: at the floor itself, time is no object and the scale of the picture.
        budgets = sorted({low + (high - low) * (2 * k + 1) // (2 * steps) for k in range(steps)})
        found = run_ladder(problem, budgets, planner, progress=progress)
        forecasts = [solution.forecast for solution in found if solution is not None]
        plans = {(f.peak_bytes, f.step_s): f for f in forecasts}
        points += [_point(f"{planner} plan", f) for f in plans.values()]
    return (*points, _point("this plan", plan.forecast, kind="chosen"))


def _point(label: str, forecast: Forecast, *, kind: PointKind = "plan") -> FrontPoint:
    return FrontPoint(
        label=label, size_bytes=forecast.peak_bytes, step_s=forecast.step_s, kind=kind
    )
