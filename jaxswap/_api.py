"""The public functions: plan a step, apply a plan.

`plan` runs the stages (program → model → plan → apply → verify) for one step and one set of
arguments, and goes round again until the *compiled* step is within the budget.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxswap._errors import BudgetInfeasibleError
from jaxswap._units import format_bytes
from jaxswap.apply.step import apply_decisions
from jaxswap.model.device import Device, Progress
from jaxswap.model.presets import find_device
from jaxswap.plan.base import run_planner
from jaxswap.plan.budget import Budget, parse_budget
from jaxswap.plan.plan import Plan, make_plan
from jaxswap.plan.problem import Problem
from jaxswap.program.trace import trace_program
from jaxswap.verify.verify import verify

_ROUNDS = 4
# Aim this much lower than the last excess: bytes come in whole values.
_OVERSHOOT = 1.1


def plan(
    fn: Callable,
    *args: Any,
    budget: Budget,
    device: Device | str | None = None,
    planner: str = "genetic",
    donate_argnums: int | tuple[int, ...] = (),
    host_budget: Budget | None = None,
    confirm: bool = True,
    seed: int = 0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Decides for every activation of a step: keep, offload or recompute.

    Args:
        fn: the step: any traceable function with a gradient in it.
        *args: its arguments, arrays or `jax.ShapeDtypeStruct`s. Nothing runs on the device.
        budget: device bytes of the whole step: `"10GiB"`, a number of bytes, or a share of the
            device (`0.8`).
        device: a name from `jaxswap.devices()`, a `Device`, or a device file; the attached
            GPU by default.
        planner: `"genetic"`, `"exact"`, `"greedy"`, or a strategy from the papers.
        donate_argnums: as in `jax.jit`.
        host_budget: likewise for pinned host memory; no limit by default.
        confirm: compile the planned step, and plan again until the compiled bytes are within
            the budget. Without, the plan says that it is not confirmed.
        seed: of everything random.
        time_limit_s: when to stop searching.
        progress: called as `progress(done, total, label)`.

    Returns:
        The plan; empty if the step fits as it is.

    Raises:
        BudgetInfeasibleError: no plan fits. The message names the floor.
    """
    target = Device.detect() if device is None else find_device(device)
    donated = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    problem = Problem(
        program=trace_program(fn, *args, donate_argnums=donated),
        device=target,
        budget_bytes=parse_budget(budget, target),
        host_budget_bytes=_parse_host_budget(host_budget, target),
    )

    def search(budget_bytes: int) -> Plan:
        aimed = problem.at_budget(budget_bytes)
        solution = run_planner(
            aimed, planner, seed=seed, time_limit_s=time_limit_s, progress=progress
        )
        found = make_plan(aimed, solution, seed=seed)
        return dataclasses.replace(found, budget_bytes=problem.budget_bytes)

    if not confirm:
        return search(problem.budget_bytes)

    def compiled_bytes(found: Plan) -> int:
        return verify(apply(fn, found), *args, device=target, donate_argnums=donated).device_bytes

    return _confirm(search, compiled_bytes, problem.budget_bytes)


def apply(fn: Callable, plan: Plan) -> Callable:
    """A step that does what `fn` does, and follows the plan while it does.

    Args:
        fn: the step that the plan was made for.
        plan: from `jaxswap.plan`, or loaded from a file.

    Returns:
        A function with the signature and pytrees of `fn`, pure and traceable, for `jax.jit`.
        An empty plan gives `fn` itself.
    """
    if plan.is_empty:
        return fn
    return apply_decisions(fn, plan.decisions)


def _confirm(
    search: Callable[[int], Plan], compiled_bytes: Callable[[Plan], int], budget_bytes: int
) -> Plan:
    """Plans, compiles and compares; aims lower by what the compiled step has too much."""
    aim, lowest = budget_bytes, None
    for _ in range(_ROUNDS):
        found = search(aim)
        needed = compiled_bytes(found)
        if needed <= budget_bytes:
            return dataclasses.replace(found, is_confirmed=True)
        lowest = min(needed, lowest or needed)
        aim -= int((needed - budget_bytes) * _OVERSHOOT)
    raise BudgetInfeasibleError(
        f"No plan fits `budget={format_bytes(budget_bytes)}` once compiled: the lowest of "
        f"{_ROUNDS} plans needs {format_bytes(lowest or 0)}. Raise `budget` to that."
    )


def _parse_host_budget(host_budget: Budget | None, device: Device) -> int | None:
    return None if host_budget is None else parse_budget(host_budget, device, name="host_budget")
