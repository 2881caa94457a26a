"""The public functions: plan a step, apply a plan.

`plan` runs the stages (program → model → plan → apply → verify) for one step and one set of
arguments, and goes round again until the *compiled* step is within the budget.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Any

from jaxswap._attempt import Asked, Attempts
from jaxswap._collect import rare_collections
from jaxswap._config import cache_dir, find_versions
from jaxswap._confirm import confirm_plan, mark_confirmed
from jaxswap._errors import BudgetInfeasibleError, CompileError, MissingCompilerError
from jaxswap._step import Step
from jaxswap._terminal import shown_progress
from jaxswap.apply.step import apply_decisions
from jaxswap.model.device import Device, Progress
from jaxswap.model.presets import find_device
from jaxswap.plan.base import Solution, find_planner
from jaxswap.plan.budget import Budget, parse_budget
from jaxswap.plan.cache import PlanCache
from jaxswap.plan.plan import Plan
from jaxswap.plan.problem import Problem

# Forecast bytes that are this near may fit once compiled: the step itself is compiled first.
NEARLY = 1.15


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


def plan_to_beat(
    to_beat_s: float,
    step: Step,
    budget_bytes: int,
    asked: Asked,
    progress: Progress | None,
    *,
    cache: bool = True,
    known: Solution | None = None,
) -> Plan:
    """`plan`, of what it was asked; `TooSlowError` where no plan takes less than `to_beat_s`.

    Args:
        to_beat_s: seconds of a step from which on a plan is of no use.
        step: what is planned.
        budget_bytes: what the compiled step may need.
        asked: what of the plan.
        progress: as in `plan`.
        cache: likewise.
        known: what that planner answers for this step and budget, where it was asked before.
    """
    args = step.make_args()
    with rare_collections(), shown_progress("planning", progress) as show:
        show(0, 0, "tracing the step")
        plans = open_cache(step, asked) if cache else None
        kept = plans.load(budget_bytes) if plans else None
        if kept is not None:
            return kept
        problem = Problem(
            program=step.program,
            device=step.device,
            budget_bytes=budget_bytes,
            host_budget_bytes=asked.host_bytes,
        )
        attempts = Attempts(
            step=step, args=args, asked=asked, problem=problem, known=known, show=show
        )
        if asked.confirm:
            found = _search_and_confirm(attempts, to_beat_s)
        else:
            found = attempts.search(budget_bytes)
    if plans is None:
        return found
    plans.store(found)
    return plans.improve(found)


def open_cache(step: Step, asked: Asked) -> PlanCache:
    """The plans that were made of a step before, if they were asked for in the same way."""
    parts = {"step": step.fingerprint, "device": step.device, "asked": (asked, step.donated)}
    return PlanCache(cache_dir() / "plans", parts | find_versions())


def _search_and_confirm(attempts: Attempts, to_beat_s: float) -> Plan:
    problem = attempts.problem
    budget_bytes, peak_bytes = problem.budget_bytes, problem.baseline.peak_bytes
    is_near = budget_bytes < peak_bytes <= NEARLY * budget_bytes
    if is_near and (written := _find_as_written(attempts)):
        return written
    try:
        # Where a plan has to beat another batch size, its own planner's is enough.
        find_rival = attempts.find_rival if to_beat_s == math.inf else None
        return confirm_plan(
            attempts.search,
            attempts.compile_plans,
            budget_bytes,
            to_beat_s,
            attempts.adjust,
            find_rival,
        )
    except BudgetInfeasibleError:
        # A forecast may be far too high, and an answer that nothing fits is the last word.
        is_untried = peak_bytes > NEARLY * budget_bytes >= NEARLY * problem.program.base_bytes
        if is_untried and to_beat_s == math.inf:
            with contextlib.suppress(CompileError, MissingCompilerError):
                if written := _find_as_written(attempts):
                    return written
        raise


def _find_as_written(attempts: Attempts) -> Plan | None:
    """The empty plan, if the step fits once compiled as it is written."""
    problem = attempts.problem
    empty = attempts.search(problem.baseline.peak_bytes)
    [verified] = attempts.compile_plans([empty])
    fits = verified.device_bytes <= problem.budget_bytes
    return mark_confirmed(empty, verified) if fits else None


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
