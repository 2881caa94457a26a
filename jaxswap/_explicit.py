"""Explicit forms: how does a loss function follow a plan, with nothing but `jax.checkpoint`?

Input: a loss function, and a plan for its gradient or a budget. Output: a function that any
JAX transformation can differentiate, or its `value_and_grad`.
The one convention: values have the names they have in a plan for `jax.value_and_grad(fn)`,
where `fn` is differentiated function 0. The function is traced, its values are named, and a
policy says which names are saved, which are offloaded; all else is recomputed. A loop's body
gets a checkpoint of its own, so that its backward pass recomputes one iteration at a time.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxswap import _api, _compat
from jaxswap._differentiate import (
    as_shape,
    differentiate,
    find_differentiated,
    find_key,
    split_arrays,
)
from jaxswap._errors import BadArgumentError
from jaxswap._match import check_match
from jaxswap.apply import place
from jaxswap.apply.decision import Action, Decision, NamedValue
from jaxswap.apply.flat import trace_flat
from jaxswap.apply.jaxprs import jx
from jaxswap.apply.residuals import RESIDUAL
from jaxswap.model.device import Device
from jaxswap.plan.budget import Budget
from jaxswap.plan.plan import Plan

PREFIX = "jaxswap:checkpoint:"
_RECOMPUTE = Decision(action="recompute")


def checkpoint(
    fn: Callable,
    plan_or_budget: Plan | Budget,
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    device: Device | str | None = None,
    planner: str = "genetic",
    host_budget: Budget | None = None,
    seed: int = 0,
    cache: bool = True,
) -> Callable:
    """A loss function whose gradient keeps, offloads and recomputes as planned.

    Plain `jax.checkpoint` underneath: nothing in JAX is replaced, and `jax.grad`, `vmap`,
    `jit` and the rest work on the result.

    Args:
        fn: the loss function.
        plan_or_budget: a plan for `jax.value_and_grad(fn)`; or a budget, for which one is made
            when the function is traced, for the shapes at hand.
        argnums: with a budget: the arguments that it will be differentiated with respect to.
        has_aux: with a budget: whether `fn` returns `(loss, aux)`.
        device: with a budget: what to plan for; the attached GPU by default.
        planner: with a budget: as in `jaxswap.plan`.
        host_budget: with a budget: pinned host bytes; no limit by default.
        seed: with a budget: of everything random.
        cache: with a budget: look for the plan on disk first, as in `jaxswap.plan`.

    Returns:
        A function with the signature and pytrees of `fn`.

    Raises:
        BadArgumentError: when traced, if the plan was made for another function.

    Limitations:
        When things happen is not pinned: XLA may start a reload early, end an offload late, or
        put off weight gradients, and memory is what it makes of it. The plan's forecast, its
        windows and its reload distances hold for `jaxswap.apply` and `swap_offload`, which do
        better; a plan made here for a budget is not confirmed by the compiler. Gradients that XLA
        scatters, of labels and of max-poolings, stay so, though the forecast is without them.
        What a branch or a custom derivative saves inside is recomputed, whatever was decided.
        JAX 0.10 cannot take the gradient of a gradient through an offload: what was to be
        offloaded is recomputed there. A `jit` around the inner gradient alone hides the outer one,
        and JAX fails; `jaxswap.apply` has no such limit.
        With jaxlib 0.10.2 to 0.11.0, values in loops are recomputed or kept where they were to
        be offloaded, with a warning: XLA would read them from the wrong iteration.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> loss = lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2)
        >>> w, x = jnp.eye(2), jnp.ones((4, 2))
        >>> planned = checkpoint(loss, "1GiB", device="t4")
        >>> bool(jnp.allclose(jax.grad(planned)(w, x), jax.grad(loss)(w, x)))
        True
    """
    if not callable(fn):
        raise BadArgumentError(
            f"`checkpoint({fn!r}, …)`: it takes a loss function first, and a plan or a budget "
            "second."
        )
    settings = {
        "device": device, "planner": planner, "host_budget": host_budget, "seed": seed,
        "cache": cache, "confirm": False,
    }  # fmt: skip
    plans: dict[Any, Plan] = {}

    def find_plan(arrays: Sequence[Any], call: Callable, flags: Sequence[bool], key: Any) -> Plan:
        if isinstance(plan_or_budget, Plan):
            return plan_or_budget
        if key not in plans:
            step = differentiate(call, flags, has_aux)
            shapes = [as_shape(x) for x in arrays]
            plans[key] = _api.plan(step, *shapes, budget=plan_or_budget, **settings)
        return plans[key]

    @functools.wraps(fn)
    def planned(*args: Any, **kwargs: Any) -> Any:
        if _compat.is_remat3():
            raise BadArgumentError(
                "`jaxswap.checkpoint` offloads with a policy of `jax.checkpoint`, and with "
                "`jax_remat3` JAX ignores policies that offload. Unset JAX_REMAT3, or use "
                "`jaxswap.apply`, which works with it."
            )
        arrays, rebuild = split_arrays(args, kwargs)
        call = lambda *xs: fn(*(inner := rebuild(xs))[0], **inner[1])
        flags = find_differentiated(args, kwargs, argnums)
        plan = find_plan(arrays, call, flags, find_key(args, kwargs))
        return _run(call, plan, arrays, flags)

    return planned


def value_and_grad(
    fn: Callable,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    plan: Plan | None = None,
    budget: Budget | None = None,
    device: Device | str | None = None,
    **settings: Any,
) -> Callable:
    """`jax.value_and_grad` of a loss function, following a plan.

    Args:
        fn: the loss function.
        argnums: as in `jax.value_and_grad`.
        has_aux: as in `jax.value_and_grad`.
        plan: made for `jax.value_and_grad(fn, argnums, has_aux)`.
        budget: instead of a plan: the device bytes of the loss and its gradient.
        device: with a budget: what to plan for; the attached GPU by default.
        **settings: with a budget: `planner`, `host_budget`, `seed` and `cache`, as in
            `checkpoint`.

    Limitations:
        Those of `jaxswap.checkpoint`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> loss = lambda w: jnp.sum(jnp.tanh(w @ w))
        >>> value, grad = value_and_grad(loss, budget="1GiB", device="t4")(jnp.eye(2))
        >>> grad.shape
        (2, 2)
    """
    if (plan is None) == (budget is None):
        given = "neither" if plan is None else "both"
        raise BadArgumentError(
            f"`value_and_grad` got {given} of `plan` and `budget`: it follows a plan, or makes "
            "one for a budget. Pass one of the two."
        )
    planned = checkpoint(
        fn, plan if plan is not None else budget,  # pyright: ignore[reportArgumentType]
        argnums=argnums, has_aux=has_aux, device=device, **settings,
    )  # fmt: skip
    return jax.value_and_grad(planned, argnums=argnums, has_aux=has_aux)


def _run(call: Callable, plan: Plan, arrays: Sequence[Any], flags: Sequence[bool]) -> Any:
    """Runs a function of arrays under the plan's checkpoints."""
    if plan.is_empty:
        return call(*arrays)
    # All it returns is passed on, arrays or not.
    traced = trace_flat(lambda *xs: ((), call(*xs)), tuple(arrays), True)
    _, values = place.name_function(traced.closed, lambda name: False)
    has_aux = isinstance(traced.rebuild(traced.closed.out_avals)[1], tuple)
    step = differentiate(call, flags, has_aux)
    check_match(plan, (*values, *_name_others(plan)), step, arrays)
    actions = _settle(plan, values)
    if _compat.count_gradients(arrays) > 1:
        actions = _without_offloads(actions, values)
    policy = _make_policy(actions)
    # Inside a loop XLA has nothing to merge a recomputation with.
    on_body = functools.partial(_checkpoint_body, policy=policy)
    named, _ = place.name_function(
        traced.closed,
        lambda name: actions.get(name, "recompute") != "recompute",
        prefix=PREFIX,
        change_body=on_body,
    )
    run = jax.checkpoint(lambda *xs: jx.eval_jaxpr(named.jaxpr, named.consts, *xs), policy=policy)
    return traced.rebuild(run(*arrays))[1]


def _name_others(plan: Plan) -> list[NamedValue]:
    """What a plan names and a policy cannot choose by name.

    Inputs of the function, which `jax.checkpoint` keeps in any case, and what only differentiation
    makes, which it recomputes.
    """
    names = [n for n in plan.all_decisions if n.startswith(("0/in", f"0/{RESIDUAL}"))]
    return [
        NamedValue(
            name=n, shape=plan.values[n].shape if n in plan.values else (),
            dtype=plan.values[n].dtype if n in plan.values else "", size_bytes=0,
            primitive="input", source="", module_path="", user_name=None, scope=(), length=1,
            actions=("keep",),
        )
        for n in names
    ]  # fmt: skip


def _settle(plan: Plan, values: Sequence[NamedValue]) -> dict[str, Action]:
    """What happens to each value, as far as its kind and this XLA allow."""
    decisions, actions, refused = plan.all_decisions, {}, []
    for value in values:
        action = decisions.get(value.name, _RECOMPUTE).action
        if action == "offload" and value.scope and _compat.misreads_reversed_slices():
            refused.append(value.name)
            action = "recompute"
        actions[value.name] = action if action in value.actions else "keep"
    if refused:
        warnings.warn(
            f"{len(refused)} values in loops, such as {refused[0]!r}, are recomputed or kept, "
            "not offloaded: this XLA reads host memory from the wrong iteration in loops that "
            "run backwards (openxla/xla #46231). `jaxswap.apply` works around it; jaxlib 0.11.1 "
            "has it fixed.",
            stacklevel=4,
        )
    return actions


def _without_offloads(
    actions: dict[str, Action], values: Sequence[NamedValue]
) -> dict[str, Action]:
    """What happens where a gradient of the gradient is taken, which JAX has not of an offload."""
    kinds = {value.name: value for value in values}
    again: Callable[[str], Action] = lambda name: (
        "recompute" if "recompute" in kinds[name].actions else "keep"
    )
    return {name: again(name) if a == "offload" else a for name, a in actions.items()}


def _make_policy(actions: dict[str, Action]) -> Callable:
    names = lambda wanted: [PREFIX + name for name, a in actions.items() if a == wanted]
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=names("keep"),
        names_which_can_be_offloaded=names("offload"),
        offload_src="device",
        offload_dst="pinned_host",
    )


def _checkpoint_body(body: Any, *, policy: Callable) -> Any:
    """The body of a loop under a checkpoint; bodies with side effects stay as they are."""
    if body.effects:
        return body
    run = jax.checkpoint(
        lambda *xs: jx.eval_jaxpr(body.jaxpr, body.consts, *xs), policy=policy, prevent_cse=False
    )
    return jax.make_jaxpr(run)(*body.in_avals)
