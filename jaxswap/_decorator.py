"""`swap_offload`: one line on a training step, and it fits.

Input: a step. Output: a callable that behaves like `jax.jit(step)`.
Planning happens while `jit` traces the step, so that there is one plan per abstract signature,
and a call that `jit` knows already costs what a call of `jit` costs.
"""

import functools
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

from jaxswap import _api, _compat
from jaxswap._arguments import (
    Call,
    commit_donated,
    describe_call,
    explain_bad_argument,
    trace_call,
)
from jaxswap._errors import BadArgumentError, BudgetInfeasibleError, OutOfMemoryError
from jaxswap._planning import make_report, plan_call
from jaxswap._self_check import check_first_run
from jaxswap._shortfall import find_shortfall, is_out_of_memory
from jaxswap._units import format_bytes
from jaxswap.model.device import Device, Progress
from jaxswap.model.presets import find_device
from jaxswap.plan.budget import Budget
from jaxswap.plan.plan import Plan

_log = logging.getLogger("jaxswap")
_jit = jax.jit


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
    cache: bool = True,
    self_check: bool = False,
    progress: Progress | None = None,
    **jit_kwargs: Any,
) -> Any:
    """Jits a training step so that it fits its budget, as fast as it can.

    Args:
        fn: the step: any JAX function with a gradient in it. Without one it is jitted as it
            is, with a warning.
        budget: device bytes of the whole step. By default what JAX may use of the device
            (`memory_stats()["bytes_limit"]`, which honours the preallocation fraction) less a
            reserve of 5 %.
        device: the device to plan for; the attached GPU by default. On a CPU, and with no
            device given, the step is jitted as it is, and the log says so.
        planner: as in `jaxswap.plan`.
        host_budget: pinned host bytes; no limit by default.
        seed: of everything random.
        plan: a plan made before, for this step: nothing is planned.
        confirm: compile the planned step and plan again until its bytes are within the budget.
        cache: look for plans on disk first, and keep them there, as in `jaxswap.plan`.
        self_check: on the first call with new shapes, run the step as written and as planned,
            on copies of the arguments, and raise `CheckError` if the results differ.
        progress: called as `progress(done, total, label)`.
        **jit_kwargs: for `jax.jit`, such as `donate_argnums` and `static_argnums`.

    Returns:
        A callable like `jax.jit(fn)`, with `lower`, `trace`, `eval_shape`, `plan_for` and
        `report`. Where the device runs out of memory all the same, it plans once more with what
        was missing, and then raises `OutOfMemoryError`, which has the plan and the report.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> @swap_offload(donate_argnums=0)
        ... def train_step(w, x):
        ...     return w - jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        >>> train_step(jnp.eye(2), jnp.ones((1, 2))).shape
        (2, 2)
    """
    settings = {
        "budget": budget, "device": device, "planner": planner, "host_budget": host_budget,
        "seed": seed, "plan": plan, "confirm": confirm, "cache": cache,
        "self_check": self_check, "progress": progress,
    }  # fmt: skip
    make = functools.partial(SwappedStep, settings=settings, jit_kwargs=jit_kwargs)
    return make if fn is None else make(fn)


class _OptionsNeededError(Exception):
    """A plan, made while `jit` traces, asks for compiler options, which `jit` takes only before."""

    def __init__(self, plan: Plan):
        self.plan = plan


def _is_on_gpu() -> bool:
    return jax.default_backend() == "gpu"


class SwappedStep:
    """A jitted step that follows a plan; see `swap_offload`."""

    def __init__(self, fn: Callable, *, settings: dict[str, Any], jit_kwargs: dict[str, Any]):
        if not callable(fn):
            raise BadArgumentError(
                f"`swap_offload({fn!r})`: it takes a function. Its settings go by keyword, as in "
                '`@swap_offload(budget="10GiB")`.'
            )
        functools.update_wrapper(self, fn)
        self._fn, self._settings, self._jit_kwargs = fn, settings, jit_kwargs
        device = settings["device"]
        self._device = None if device is None else find_device(device)
        self._plans: dict[Any, Plan | None] = {}
        self._budgets: dict[Any, int] = {}  # lowered, after running out of memory
        self._checked: set[Any] = set()
        self._options: dict[str, Any] = {}  # each as the first plan has it that asks for it
        self._start()

    def _start(self) -> None:
        """Forgets what is compiled, not what is planned."""

        @functools.wraps(self._fn)  # `jit` finds the names of static arguments in the signature
        def planned(*args: Any, **kwargs: Any) -> Any:
            return self._planned_call(args, kwargs)

        self._jitted = self._nested = _jit(planned, **self._jit_kwargs)
        self._run = self._jitted
        if self._options:
            options = self._options | dict(self._jit_kwargs.get("compiler_options") or {})
            kwargs: dict[str, Any] = self._jit_kwargs | {"compiler_options": options}
            self._jitted = _jit(planned, **kwargs)
            self._run = self._run_at_its_level
        if self._settings["self_check"]:
            self._run = self._run_checked

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the step, planned on the first call with these shapes."""
        try:
            return self._run(*args, **kwargs)
        except _OptionsNeededError as need:
            return self._restart(need.plan, "__call__", args, kwargs)
        except TypeError as error:
            self._explain(error, args, kwargs)
            raise
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return self._run_with_less(error, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds like a function: a method's `self` is the first argument of the step."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<swap_offload of {self._fn!r}>"

    def __reduce__(self) -> Any:
        # A decorated function is found by its name, as functions are.
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return name
        return _rebuild, (self._fn, self._settings, self._jit_kwargs)

    def _run_at_its_level(self, *args: Any, **kwargs: Any) -> Any:
        # The options of an outer `jit` hold for all of it, and are its caller's to give.
        return (self._jitted if _compat.is_at_top_level() else self._nested)(*args, **kwargs)

    # ---- as `jit` has them ----

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As of `jax.jit`."""
        return self._stage("lower", args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As of `jax.jit`."""
        return self._stage("trace", args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As of `jax.jit`."""
        return self._stage("eval_shape", args, kwargs)

    def clear_cache(self) -> None:
        """Forgets all that is compiled and planned."""
        self._plans.clear()
        self._budgets.clear()
        self._checked.clear()
        self._options = {}
        self._start()

    def _stage(self, name: str, args: tuple, kwargs: dict) -> Any:
        try:
            return getattr(self._jitted, name)(*args, **kwargs)
        except _OptionsNeededError as need:
            return self._restart(need.plan, name, args, kwargs)
        except TypeError as error:
            self._explain(error, args, kwargs)
            raise

    def _restart(self, plan: Plan, name: str, args: tuple, kwargs: dict) -> Any:
        """Jits again with the compiler options that a plan asks for."""
        self._options = plan.compiler_options() | self._options
        self._start()
        if name != "__call__":
            return self._stage(name, args, kwargs)
        if plan.names("offload"):
            args, kwargs = commit_donated(self._fn, args, kwargs, self._jit_kwargs)
        return self(*args, **kwargs)

    def _explain(self, error: TypeError, args: tuple, kwargs: dict) -> None:
        better = explain_bad_argument(self._fn, args, kwargs, self._jit_kwargs)
        if better is not None:
            raise better from error

    # ---- plans ----

    def plan_for(self, *args: Any, **kwargs: Any) -> Plan | None:
        """The plan for these arguments, made now if need be; None where nothing is planned."""
        self._stage("trace", args, kwargs)
        return self._plans.get(self._describe(args, kwargs).key)

    def report(self, *args: Any, **kwargs: Any) -> Any:
        """The `Report` of the plan for these arguments, arrays or shapes; nothing is run.

        The compiler's word is in it where `confirm` is on and the compiler is installed.
        """
        plan = self.plan_for(*args, **kwargs)
        if plan is None:
            raise BadArgumentError(
                f"`report` of `{self._name}`: nothing is planned, the step is jitted as it is. "
                'Plan for a GPU by name, as in `swap_offload(device="rtx4090")`.'
            )
        call, is_compiled = self._describe(args, kwargs), self._settings["confirm"]
        return make_report(self._fn, call, plan, self._device, is_compiled=is_compiled)

    @property
    def _name(self) -> str:
        return getattr(self._fn, "__name__", "step")

    def _describe(self, args: tuple, kwargs: dict) -> Call:
        return trace_call(self._fn, args, kwargs, self._jit_kwargs)

    def _planned_call(self, args: tuple, kwargs: dict) -> Any:
        """The step as `jit` traces it."""
        if _compat.is_jit_disabled():
            return self._fn(*args, **kwargs)
        call = describe_call(self._fn, args, kwargs, self._jit_kwargs)
        if call.key not in self._plans:
            self._plans[call.key] = self._settings["plan"] or plan_call(
                self._fn, call, self._settings, self._device, self._budgets.get(call.key)
            )
        plan = self._plans[call.key]
        asked = plan.compiler_options() if plan is not None and _is_on_gpu() else {}
        if plan is not None and not asked.keys() <= self._options.keys():
            raise _OptionsNeededError(plan)
        step = self._fn if plan is None else _api.apply(self._fn, plan)
        return step(*args, **kwargs)

    # ---- out of memory ----

    def _run_with_less(self, error: Exception, args: tuple, kwargs: dict) -> Any:
        """Plans once more, with the memory that was missing, and runs again."""
        call = self._describe(args, kwargs)
        plan = self._plans.get(call.key)
        if plan is None:
            raise error
        reason = self._why_not_again(call.key, args, kwargs)
        if reason:
            raise self._fail(plan, call, reason) from error
        shortfall = find_shortfall(error, plan.budget_bytes)
        budget_bytes = max(plan.budget_bytes - shortfall, 1)
        _log.warning(
            "%s ran out of memory: planning again for %s, %s less",
            self._name, format_bytes(budget_bytes), format_bytes(shortfall),
        )  # fmt: skip
        self._budgets[call.key] = budget_bytes
        del self._plans[call.key]
        self._options = {}
        self._start()
        try:
            try:
                return self._run(*args, **kwargs)
            except _OptionsNeededError as need:
                self._options = need.plan.compiler_options()
                self._start()
                return self._run(*args, **kwargs)
        except BudgetInfeasibleError as below:
            less = f"no plan needs {format_bytes(shortfall)} less"
            raise self._fail(plan, call, less) from below
        except jax.errors.JaxRuntimeError as again:
            if not is_out_of_memory(again):
                raise
            plan = self._plans.get(call.key) or plan
            less = f"a second plan, for {format_bytes(shortfall)} less, ran out of memory too"
            raise self._fail(plan, call, less) from again

    def _why_not_again(self, key: Any, args: tuple, kwargs: dict) -> str:
        if self._settings["plan"] is not None:
            return "its plan was given, and is not replaced"
        if key in self._budgets:
            return "it was planned again before"
        leaves = jax.tree.leaves((args, kwargs))
        if any(isinstance(x, jax.Array) and x.is_deleted() for x in leaves):
            return "its donated arguments are gone, so that it cannot run again"
        return ""

    def _fail(self, plan: Plan, call: Call, reason: str) -> OutOfMemoryError:
        try:
            report = make_report(self._fn, call, plan, self._device, is_compiled=False)
        except Exception as error:  # the shortage is what has to be said
            report = None
            _log.info("no report: %s", error)
        return OutOfMemoryError(
            f"`{self._name}` ran out of memory on the device with a plan for "
            f"{format_bytes(plan.budget_bytes)}, and {reason}. Set a lower `budget`, take a "
            "smaller batch, or free what else is on the device. The error has the `plan` and "
            "its `report`.",
            plan=plan,
            report=report,
        )

    # ---- self check ----

    def _run_checked(self, *args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, kwargs))
        if not _compat.is_jit_disabled() and not any(isinstance(x, Tracer) for x in leaves):
            self._jitted.trace(*args, **kwargs)
            key = self._describe(args, kwargs).key
            plan = self._plans.get(key)
            if plan is not None and not plan.is_empty and key not in self._checked:
                call = (args, kwargs)
                check_first_run(self._fn, self._jitted, plan, call, self._jit_kwargs)
            self._checked.add(key)
        return self._jitted(*args, **kwargs)


def _rebuild(fn: Callable, settings: dict[str, Any], jit_kwargs: dict[str, Any]) -> SwappedStep:
    return SwappedStep(fn, settings=settings, jit_kwargs=jit_kwargs)
