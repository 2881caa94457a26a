"""The public functions: plan a step, apply a plan.

`plan` runs the stages (program → model → plan → apply → verify) for one step and one set of
arguments, and goes round again until the *compiled* step is within the budget.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxswap._collect import rare_collections
from jaxswap._config import cache_dir, find_versions
from jaxswap._confirm import Adjust, Compile, Search, confirm_plan, mark_confirmed
from jaxswap._step import Step
from jaxswap._terminal import shown_progress
from jaxswap.apply.step import apply_decisions, apply_traced
from jaxswap.model.device import Device, Progress
from jaxswap.model.presets import find_device
from jaxswap.plan.adjust import adjust as adjust_decisions
from jaxswap.plan.base import find_planner, run_planner
from jaxswap.plan.budget import Budget, parse_budget
from jaxswap.plan.cache import PlanCache
from jaxswap.plan.plan import Plan, make_plan, redecide
from jaxswap.plan.problem import Problem
from jaxswap.verify.verify import Verified, verify_together

# Forecast bytes that are this near may fit once compiled: the step itself is compiled first.
_NEARLY = 1.15


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
    cache: bool = True,
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
        cache: whether to look for the plan on disk first, and to keep it there
            (`JAXSWAP_CACHE_DIR`, or `~/.cache/jaxswap`).
        progress: called as `progress(done, total, label)`; by default a bar is shown where
            standard error is a terminal.

    Returns:
        The plan; empty if the step fits as it is.

    Raises:
        BudgetInfeasibleError: no plan fits. The message names the floor.
    """
    target = Device.detect() if device is None else find_device(device)
    host_bytes = None
    if host_budget is not None:
        host_bytes = parse_budget(host_budget, target, name="host_budget")
    find_planner(planner)  # an unknown one is an error before anything is traced
    donated = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    step = Step(fn=fn, make_args=lambda: args, donated=donated, device=target)
    asked = Asked(
        planner=planner, seed=seed, time_limit_s=time_limit_s, host_bytes=host_bytes,
        confirm=confirm,
    )  # fmt: skip
    budget_bytes = parse_budget(budget, target)
    return plan_to_beat(math.inf, step, budget_bytes, asked, progress, cache=cache)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a plan is asked for besides its step and its budget; see `plan`."""

    planner: str
    seed: int = 0
    time_limit_s: float | None = None
    host_bytes: int | None = None
    confirm: bool = True


def plan_to_beat(
    to_beat_s: float,
    step: Step,
    budget_bytes: int,
    asked: Asked,
    progress: Progress | None,
    *,
    cache: bool = True,
) -> Plan:
    """`plan`, of what it was asked; `TooSlowError` where no plan takes less than `to_beat_s`."""
    fn, args = step.fn, step.make_args()
    with rare_collections(), shown_progress("planning", progress) as show:
        show(0, 0, "tracing the step")
        plans = open_cache(step, asked) if cache else None
        known = plans.load(budget_bytes) if plans else None
        if known is not None:
            return known
        problem = Problem(
            program=step.program,
            device=step.device,
            budget_bytes=budget_bytes,
            host_budget_bytes=asked.host_bytes,
        )

        def search(aim_bytes: int, slowness: float = 1.0) -> Plan:
            aimed = problem.with_slower_link(slowness).at_budget(aim_bytes)
            found = run_planner(
                aimed, asked.planner, seed=asked.seed, time_limit_s=asked.time_limit_s,
                progress=show,
            )  # fmt: skip
            return make_plan(problem, found, seed=asked.seed)

        def adjust(found: Plan, aim_bytes: int, slowness: float) -> Plan | None:
            allowed = problem.with_slower_link(slowness)
            decisions = adjust_decisions(allowed, found.decisions, aim_bytes)
            return None if decisions is None else redecide(problem, found, decisions)

        def as_planned(found: Plan) -> tuple[Callable, Mapping[str, Any] | None]:
            if found.is_empty:
                return fn, None
            rest = found.rest_as_written
            planned = apply_traced(fn, step.traced, found.all_decisions, rest_as_written=rest)
            return planned, found.compiler_options()

        def compile_plans(tried: Sequence[Plan]) -> list[Verified]:
            show(0, 0, f"compiling for {step.device.name}")
            steps = [as_planned(each) for each in tried]
            return verify_together(steps, args, step.device, step.donated)

        if asked.confirm:
            found = _search_and_confirm(problem, search, adjust, compile_plans, to_beat_s)
        else:
            found = search(budget_bytes)
    if plans is None:
        return found
    plans.store(found)
    return plans.improve(found)


def open_cache(step: Step, asked: Asked) -> PlanCache:
    """The plans that were made of a step before, if they were asked for in the same way."""
    parts = {"step": step.fingerprint, "device": step.device, "asked": (asked, step.donated)}
    return PlanCache(cache_dir() / "plans", parts | find_versions())


def _search_and_confirm(
    problem: Problem,
    search: Search,
    adjust: Adjust,
    compile_plans: Compile,
    to_beat_s: float,
) -> Plan:
    budget_bytes, peak_bytes = problem.budget_bytes, problem.baseline.peak_bytes
    if budget_bytes < peak_bytes <= _NEARLY * budget_bytes:
        [verified] = compile_plans([empty := search(peak_bytes, 1.0)])
        if verified.device_bytes <= budget_bytes:
            return mark_confirmed(empty, verified)
    return confirm_plan(search, compile_plans, budget_bytes, to_beat_s, adjust)


def apply(fn: Callable, plan: Plan) -> Callable:
    """A step that does what `fn` does, and follows the plan while it does.

    Args:
        fn: the step that the plan was made for.
        plan: from `jaxswap.plan`, or loaded from a file.

    Returns:
        A function with the signature and pytrees of `fn`, pure and traceable, for `jax.jit`.
        An empty plan gives `fn` itself.

    Raises:
        BadArgumentError: when traced, if the plan was made for another step or other shapes.
        CheckError: when traced, if the rewritten step is not what was planned.
    """
    from jaxswap._match import check_match

    if plan.is_empty:
        return fn
    inspect = lambda values, step, arrays: check_match(plan, values, step, arrays)
    return apply_decisions(
        fn, plan.all_decisions, rest_as_written=plan.rest_as_written, inspect=inspect
    )
