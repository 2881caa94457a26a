"""`swap_offload`: one line on a training step, and it fits.

Input: a step. Output: a callable that behaves like `jax.jit(step)`.
Planning happens while `jit` traces the step, so that there is one plan per abstract signature,
and a call that `jit` knows already costs what a call of `jit` costs.
"""

import functools
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any

import jax

from jaxswap import _api, _compat
from jaxswap._errors import BadArgumentError
from jaxswap._units import format_bytes, format_seconds
from jaxswap.model.device import Device, Progress
from jaxswap.model.presets import find_device
from jaxswap.plan.budget import Budget
from jaxswap.plan.plan import Plan

_log = logging.getLogger("jaxswap")
# What is left of the device when no budget is given: fragmentation and library workspaces.
_DEFAULT_SHARE = 0.95


def swap_offload(
    fn: Callable | None = None,
    *,
    budget: Budget | None = None,
    device: Device | str | None = None,
    planner: str = "genetic",
    host_budget: Budget | None = None,
    seed: int = 0,
    plan: Plan | None = None,
    confirm: bool = True,
    progress: Progress | None = None,
    **jit_kwargs: Any,
) -> Any:
    """Jits a training step so that it fits its budget, as fast as it can.

    Args:
        fn: the step: any JAX function with a gradient in it.
        budget: device bytes of the whole step; 95 % of the device by default.
        device: the device to plan for; the attached GPU by default. On a CPU, and with no
            device given, the step is jitted as it is, and the log says so.
        planner: as in `jaxswap.plan`.
        host_budget: pinned host bytes; no limit by default.
        seed: of everything random.
        plan: a plan made before, for this step: nothing is planned.
        confirm: compile the planned step and plan again until its bytes are within the budget.
        progress: called as `progress(done, total, label)`.
        **jit_kwargs: for `jax.jit`, such as `donate_argnums` and `static_argnums`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> @swap_offload(donate_argnums=0)
        ... def train_step(w, x):
        ...     return w - jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        >>> train_step(jnp.eye(2), jnp.ones((1, 2))).shape
        (2, 2)
    """
    settings = {
        "planner": planner, "host_budget": host_budget, "seed": seed,
        "confirm": confirm, "progress": progress,
    }  # fmt: skip
    make = functools.partial(
        SwappedStep, budget=budget, device=device, plan=plan, settings=settings,
        jit_kwargs=jit_kwargs,
    )  # fmt: skip
    return make if fn is None else make(fn)


class SwappedStep:
    """A jitted step that follows a plan; see `swap_offload`."""

    def __init__(
        self,
        fn: Callable,
        *,
        budget: Budget | None,
        device: Device | str | None,
        plan: Plan | None,
        settings: dict[str, Any],
        jit_kwargs: dict[str, Any],
    ):
        if not callable(fn):
            raise BadArgumentError(
                f"`swap_offload({fn!r})`: it takes a function. Its settings go by keyword, as in "
                '`@swap_offload(budget="10GiB")`.'
            )
        functools.update_wrapper(self, fn)
        self._fn, self._budget, self._plan = fn, budget, plan
        self._device = None if device is None else find_device(device)
        self._settings, self._jit_kwargs = settings, jit_kwargs
        self._plans: dict[Any, Plan | None] = {}

        @functools.wraps(fn)  # `jit` finds the names of static arguments in the signature
        def planned(*args: Any, **kwargs: Any) -> Any:
            return self._planned_call(args, kwargs)

        self._jitted = jax.jit(planned, **jit_kwargs)
        self.lower, self.trace = self._jitted.lower, self._jitted.trace

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the step, planned on the first call with these shapes."""
        return self._jitted(*args, **kwargs)

    def plan_for(self, *args: Any, **kwargs: Any) -> Plan | None:
        """The plan for these arguments, made now if need be; None where nothing is planned."""
        self._jitted.trace(*args, **kwargs)
        return self._plans.get(_signature(args, kwargs))

    def _planned_call(self, args: tuple, kwargs: dict) -> Any:
        """The step as `jit` traces it."""
        if _compat.is_jit_disabled():
            return self._fn(*args, **kwargs)
        key = _signature(args, kwargs)
        if key not in self._plans:
            self._plans[key] = self._make_plan(args, kwargs)
        plan = self._plans[key]
        step = self._fn if plan is None else _api.apply(self._fn, plan)
        return step(*args, **kwargs)

    def _make_plan(self, args: tuple, kwargs: dict) -> Plan | None:
        if self._plan is not None:
            return self._plan
        name = getattr(self._fn, "__name__", "step")
        if self._device is None and jax.default_backend() != "gpu":
            _log.warning(
                "%s runs as it is: memory kinds do nothing on the %s backend. To plan for a GPU, "
                'pass its name, such as `device="rtx4090"`.', name, jax.default_backend(),
            )  # fmt: skip
            return None
        start = time.perf_counter()
        device = self._device or Device.detect()
        shapes, rebuild = _split_arguments(args, kwargs)
        plan = _api.plan(
            lambda *leaves: _call(self._fn, rebuild(leaves)),
            *shapes,
            budget=_DEFAULT_SHARE if self._budget is None else self._budget,
            device=device,
            donate_argnums=self._donated_leaves(args, kwargs),
            **self._settings,
        )
        spent = format_seconds(time.perf_counter() - start)
        _log.info("%s on %s: %s (planned in %s)", name, device.name, _summary(plan), spent)
        return plan

    def _donated_leaves(self, args: tuple, kwargs: dict) -> tuple[int, ...]:
        """Which of the flattened arguments `jit` may overwrite."""
        numbers = self._jit_kwargs.get("donate_argnums") or ()
        names = self._jit_kwargs.get("donate_argnames") or ()
        numbers = {numbers} if isinstance(numbers, int) else set(numbers)
        names = {names} if isinstance(names, str) else set(names)
        bound = inspect.signature(self._fn).bind(*args, **kwargs).arguments
        numbers |= {k for k, name in enumerate(bound) if name in names}
        flags = [
            *(k in numbers for k, each in enumerate(args) for x in jax.tree.leaves(each)),
            *(k in names for k, each in sorted(kwargs.items()) for x in jax.tree.leaves(each)),
        ]
        leaves = jax.tree.leaves((args, kwargs))
        arrays = [flag for flag, x in zip(flags, leaves, strict=True) if _is_array(x)]
        return tuple(k for k, flag in enumerate(arrays) if flag)


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _split_arguments(args: tuple, kwargs: dict) -> tuple[list, Callable]:
    """The shapes of the arrays among the arguments, and how to put all together again."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves if _is_array(x)]

    def rebuild(arrays: Any) -> tuple[tuple, dict]:
        rest = iter(arrays)
        return jax.tree.unflatten(tree, [next(rest) if _is_array(x) else x for x in leaves])

    return shapes, rebuild


def _call(fn: Callable, arguments: tuple[tuple, dict]) -> Any:
    args, kwargs = arguments
    return fn(*args, **kwargs)


def _signature(args: tuple, kwargs: dict) -> Any:
    leaves, tree = jax.tree.flatten((args, kwargs))
    kinds = tuple((x.shape, str(x.dtype)) if _is_array(x) else x for x in leaves)
    return tree, kinds


def _summary(plan: Plan) -> str:
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
