"""Self check: does a planned step compute what the step as written computes, here and now?

Input: a step, its plan and arguments to run both on. Output: how far the results are apart, or
a `CheckError` that names the worst one.
The one convention: nothing that was passed in is consumed; what donates is run on copies.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxswap import _api
from jaxswap._shortfall import is_out_of_memory
from jaxswap.apply.check import SelfCheck, compare_results
from jaxswap.plan.plan import Plan

_log = logging.getLogger("jaxswap")
# How far a planned step may be off, relative to the largest number of each result: values that
# are recomputed are rounded where XLA fuses otherwise, in half precision at every turn.
_TOLERANCE, _HALF_TOLERANCE = 1e-4, 3e-2


def self_check(
    fn: Callable, plan: Plan, *args: Any, rtol: float | None = None, **jit_kwargs: Any
) -> SelfCheck:
    """Runs a step as written and as planned, once each, and compares every result.

    Args:
        fn: the step.
        plan: made for it.
        *args: the arguments to run both on. They are not consumed.
        rtol: the largest error allowed, relative to the largest number in the same result;
            1e-4 by default, 3e-2 where the plan has values in half precision.
        **jit_kwargs: for `jax.jit`, such as `static_argnums`.

    Raises:
        CheckError: a result is further off than that. The message names the worst.

    Limitations:
        The step as written has to fit on the device too: take a small batch.

    Example:
        >>> import jax, jax.numpy as jnp, jaxswap
        >>> step = jax.grad(lambda w: jnp.sum(jnp.tanh(w @ w)))
        >>> plan = jaxswap.plan(step, jnp.eye(2), budget="1GiB", device="t4", confirm=False)
        >>> self_check(step, plan, jnp.eye(2)).is_identical
        True
    """
    settings = _without_donation(jit_kwargs)
    expected = jax.jit(lambda *xs: fn(*xs), **settings)(*args)
    found = jax.jit(lambda *xs: _api.apply(fn, plan)(*xs), **settings)(*args)
    return compare_results(expected, found, rtol=_find_tolerance(plan) if rtol is None else rtol)


def check_first_run(
    fn: Callable, planned: Callable, plan: Plan, call: tuple[tuple, dict], jit_kwargs: Mapping
) -> None:
    """Compares a jitted, planned step, which may donate, with the step as written.

    Args:
        fn: the step as written.
        planned: the jitted step that follows the plan; it is run on copies.
        plan: its plan.
        call: the arguments and keyword arguments to run both on.
        jit_kwargs: what the step is jitted with.
    """
    args, kwargs = call
    own = lambda x: x.copy() if isinstance(x, jax.Array) else x
    copied_args, copied_kwargs = jax.tree.map(own, call)
    found = planned(*copied_args, **copied_kwargs)
    try:
        expected = jax.jit(fn, **_without_donation(jit_kwargs))(*args, **kwargs)
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        _log.warning(
            "%s is not checked: as written it does not fit on the device, and there is nothing "
            "to compare with. Check it with a smaller batch.", getattr(fn, "__name__", "step"),
        )  # fmt: skip
        return
    compare_results(expected, found, rtol=_find_tolerance(plan))


def _without_donation(jit_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in jit_kwargs.items() if not k.startswith("donate_")}


def _find_tolerance(plan: Plan) -> float:
    is_half = any(v.dtype in ("bfloat16", "float16") for v in plan.values.values())
    return _HALF_TOLERANCE if is_half else _TOLERANCE
