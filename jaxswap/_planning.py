"""Planning for the decorator: which plan does this call of a step get, and what is said of it?

Input: a step, a `Call` and the settings of `swap_offload`. Output: a plan, or None where the
step is to be jitted as it is, and a line in the log or a warning that says why.
"""

import functools
import logging
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxswap import _api
from jaxswap._arguments import Call
from jaxswap._errors import BudgetInfeasibleError, MissingCompilerError
from jaxswap._units import format_bytes, format_seconds
from jaxswap.apply.step import name_values
from jaxswap.model.device import Device
from jaxswap.plan.budget import DEFAULT_SHARE
from jaxswap.plan.plan import Plan

_log = logging.getLogger("jaxswap")
_SEARCH = ("planner", "host_budget", "seed", "confirm", "cache", "progress")


def plan_call(
    fn: Callable,
    call: Call,
    settings: Mapping[str, Any],
    device: Device | None,
    budget_bytes: int | None = None,
) -> Plan | None:
    """Plans one call of a step, and logs one line.

    Args:
        fn: the step.
        call: its arguments.
        settings: those of `swap_offload`.
        device: the device to plan for; the attached GPU by default.
        budget_bytes: instead of the budget in the settings.

    Returns:
        The plan; None where the step is jitted as it is.
    """
    name = getattr(fn, "__name__", "step")
    if device is None and jax.default_backend() != "gpu":
        _log.warning(
            "%s runs as it is: memory kinds do nothing on the %s backend. To plan for a GPU, "
            'pass its name, such as `device="rtx4090"`.', name, jax.default_backend(),
        )  # fmt: skip
        return None
    start = time.perf_counter()
    device = device or Device.detect()
    budget = settings["budget"] if budget_bytes is None else budget_bytes
    if budget is None:
        budget = int(DEFAULT_SHARE * device.memory_bytes)
    step = as_function_of_arrays(fn, call)
    try:
        plan = _api.plan(
            step, *call.shapes, budget=budget, device=device, donate_argnums=call.donated,
            **{key: settings[key] for key in _SEARCH},
        )  # fmt: skip
    except BudgetInfeasibleError:
        if has_gradient(step, call):
            raise
        plan = None
    if plan is None or (not plan.decisions and not has_gradient(step, call)):
        warnings.warn(
            f"`{name}` takes no gradient, so that there is nothing to offload or recompute: it "
            "is jitted as it is. Decorate the step that calls `jax.grad`.",
            stacklevel=2,
        )
        return None
    spent = format_seconds(time.perf_counter() - start)
    _log.info("%s on %s: %s (planned in %s)", name, device.name, summarise(plan), spent)
    return plan


def as_function_of_arrays(fn: Callable, call: Call) -> Callable:
    """The step as a function of its arrays alone, all else as in the call."""

    def step(*arrays: Any) -> Any:
        args, kwargs = call.rebuild(arrays)
        return fn(*args, **kwargs)

    return step


def has_gradient(step: Callable, call: Call) -> bool:
    """Whether a step differentiates anything backwards."""
    return bool(name_values(step, *call.shapes))


def summarise(plan: Plan) -> str:
    """One line: what it needs now, what it costs."""
    if plan.is_empty:
        return f"fits as it is, {format_bytes(plan.forecast.peak_bytes)} (forecast)"
    before, after = plan.forecast.baseline, plan.forecast
    said = f"{format_bytes(after.peak_bytes)}, {format_seconds(after.step_s)} (forecast)"
    if before is not None:
        said += f" instead of {format_bytes(before.peak_bytes)}, {format_seconds(before.step_s)}"
    confirmed = "confirmed by the compiler" if plan.is_confirmed else "not confirmed"
    return f"{said}; {len(plan.names('offload'))} values offloaded, " + (
        f"{len(plan.names('recompute'))} recomputed; {confirmed}"
    )


def make_report(
    fn: Callable, call: Call, plan: Plan, device: Device | None, *, is_compiled: bool
) -> Any:
    """The `Report` of a plan for one call, with the compiler's word where there is one."""
    from jaxswap.report.make import make_report as build_report

    build = functools.partial(
        build_report,
        as_function_of_arrays(fn, call),
        *call.shapes,
        plan=plan,
        device=device,
        donate_argnums=call.donated,
        title=getattr(fn, "__name__", "step"),
    )
    if is_compiled:
        try:
            return build(verify=True)
        except MissingCompilerError as error:
            _log.info("the report has no compiled numbers: %s", error)
    return build(verify=False)
