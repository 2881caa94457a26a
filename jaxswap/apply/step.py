"""Apply: how does a step come to follow its decisions?

Input: a step and a decision for each value by name. Output: a step with the same signature
and pytrees, pure and traceable.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.core import Tracer

from jaxswap import _compat
from jaxswap._errors import BadArgumentError
from jaxswap.apply import jaxprs, place, schedule
from jaxswap.apply.check import check_applied
from jaxswap.apply.decision import ACTIONS, Action, Decision, NamedValue
from jaxswap.apply.jaxprs import jx
from jaxswap.apply.program import Ledger
from jaxswap.apply.twice import run_applied

MIN_HEAVY_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedStep:
    """A step rewritten for one signature.

    Attributes:
        closed: its `ClosedJaxpr` over the flattened arguments.
        out_tree: the structure of its result.
        values: the values of its differentiated functions.
        offloaded: names of the values that it offloads.
        demoted: names that could not be treated as decided, and why.
    """

    closed: Any
    out_tree: Any
    values: tuple[NamedValue, ...]
    offloaded: tuple[str, ...]
    demoted: Mapping[str, str]


def name_values(fn: Callable, *args: Any, **kwargs: Any) -> list[NamedValue]:
    """Lists every value of every differentiated function of a step, in program order.

    Args:
        fn: the step; nothing of it is run.
        *args: its arguments, arrays or `jax.ShapeDtypeStruct`s.
        **kwargs: likewise.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> step = jax.grad(lambda w: jnp.sum(jnp.tanh(w @ w)))
        >>> [(v.name, v.primitive) for v in name_values(step, jnp.eye(2))]
        [('0/in0', 'input'), ('0/0', 'dot_general'), ('0/1', 'tanh'), ('0/2', 'reduce_sum')]
    """
    return list(place.trace_step(fn, args, kwargs).values)


def apply_decisions(
    fn: Callable,
    decisions: Mapping[str, Decision],
    *,
    default: Action = "recompute",
    min_heavy_bytes: int = MIN_HEAVY_BYTES,
    rest_as_written: bool = False,
    inspect: Callable[[Sequence[NamedValue], Callable, Sequence[Any]], None] | None = None,
) -> Callable:
    """A step that keeps, offloads and recomputes as decided.

    Args:
        fn: the step.
        decisions: what to do with each value, by the names of `name_values`.
        default: what to do with all others. Outputs of loops, and of ops with side effects,
            are kept rather than recomputed.
        min_heavy_bytes: ops that touch less are not scheduled around.
        rest_as_written: leave it to XLA which of all others it keeps, where they are made of kept
            values by ops that fuse: often faster, sometimes larger.
        inspect: called with the step's values, the step as a function of its arrays alone,
            and these arrays, before anything is rewritten.

    Returns:
        A function with the signature and pytrees of `fn`, for `jax.jit`.

    Limitations:
        Values inside kernels and the user's own `jax.checkpoint` regions have no names: their
        outputs have. Of branches and custom derivatives, what the backward pass reads has.
        Derivatives of the result are those of `fn`, without offloads and recomputation; there are
        none through offloads beside an `io_callback` or references.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> step = jax.grad(lambda w: jnp.sum(jnp.tanh(w @ w)))
        >>> swapped = apply_decisions(step, {"0/0": Decision(action="offload")})
        >>> w = jnp.eye(2)
        >>> bool(jnp.all(jax.jit(swapped)(w) == jax.jit(step)(w)))
        True
    """
    _check_default(default)
    settings = {"min_heavy_bytes": min_heavy_bytes, "rest_as_written": rest_as_written}

    @functools.wraps(fn)
    def applied(*args, **kwargs):
        dynamic, rebuild = _split_static(args, kwargs)
        call = lambda *xs: fn(*(inner := rebuild(xs))[0], **inner[1])
        traced = place.trace_step(call, dynamic, {})
        if inspect is not None:
            inspect(traced.values, call, dynamic)
        if _leaves_as_written(decisions, default):
            return _evaluate(_as_written(traced, decisions, call, dynamic, {}), dynamic)
        return _run(traced, decisions, dynamic, default=default, **settings)

    return applied


def apply_traced(
    fn: Callable,
    traced: place.TracedStep,
    decisions: Mapping[str, Decision],
    *,
    rest_as_written: bool = False,
) -> Callable:
    """`apply_decisions` to a step that was traced before, for arguments as in that trace."""

    @functools.wraps(fn)
    def applied(*args):
        return _run(traced, decisions, jax.tree.leaves(args), rest_as_written=rest_as_written)

    return applied


def _run(
    traced: place.TracedStep,
    decisions: Mapping[str, Decision],
    arrays: Sequence[Any],
    *,
    default: Action = "recompute",
    **settings: Any,
) -> Any:
    """Runs a traced step as decided; derivatives are taken of it as it is written."""
    step = rewrite_traced(traced, decisions, default=default, **settings)
    has_own = lambda eqn: eqn.primitive in jx.custom_primitives
    if not step.offloaded and not jaxprs.any_equation(traced.written.jaxpr, has_own):
        return _evaluate(step, arrays)
    out = run_applied(step.closed, schedule.remove_traces(traced.written), arrays)
    return jax.tree.unflatten(step.out_tree, out)


def _evaluate(step: AppliedStep, arrays: Sequence[Any]) -> Any:
    out = jx.eval_jaxpr(step.closed.jaxpr, step.closed.consts, *arrays)
    return jax.tree.unflatten(step.out_tree, out)


def rewrite_step(
    fn: Callable,
    decisions: Mapping[str, Decision],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    default: Action = "recompute",
    min_heavy_bytes: int = MIN_HEAVY_BYTES,
    rest_as_written: bool = False,
) -> AppliedStep:
    """Rewrites a step for one signature, checks it, and says what became of the decisions."""
    _check_default(default)
    traced = place.trace_step(fn, args, dict(kwargs or {}))
    if _leaves_as_written(decisions, default):
        return _as_written(traced, decisions, fn, args, dict(kwargs or {}))
    return rewrite_traced(
        traced,
        decisions,
        default=default,
        min_heavy_bytes=min_heavy_bytes,
        rest_as_written=rest_as_written,
    )


def _leaves_as_written(decisions: Mapping[str, Decision], default: Action) -> bool:
    return default == "keep" and all(d.action == "keep" for d in decisions.values())


def _as_written(
    traced: place.TracedStep,
    decisions: Mapping[str, Decision],
    fn: Callable,
    args: Sequence[Any],
    kwargs: dict,
) -> AppliedStep:
    _check_names(decisions, traced.values)
    plain = place.trace_plain(fn, args, kwargs)
    return AppliedStep(
        closed=plain, out_tree=traced.out_tree, values=traced.values, offloaded=(), demoted={}
    )


def rewrite_traced(
    traced: place.TracedStep,
    decisions: Mapping[str, Decision],
    *,
    default: Action = "recompute",
    min_heavy_bytes: int = MIN_HEAVY_BYTES,
    rest_as_written: bool = False,
) -> AppliedStep:
    """`rewrite_step` of a step that was traced before, once for all that is decided about it."""
    _check_default(default)
    _check_names(decisions, traced.values)
    _compat.warn_if_unknown_version()
    otherwise = Decision(action=default)
    # Names are only needed of what is decided about; in-between results of differentiation have
    # none, and are not worth a copy to the host.
    is_wanted = lambda name: default == "offload" or name in decisions
    unnamed = Decision(action="recompute") if default == "offload" else otherwise
    ledger = Ledger(
        decide=lambda name: decisions.get(name, otherwise) if name else unnamed,
        min_heavy_bytes=min_heavy_bytes,
        rest_as_written=rest_as_written,
        can_offload=place.can_have_host_memory(traced.closed),
    )
    # What nothing needs, such as the gradient of an input, is not served.
    named = jaxprs.remove_dead_code(place.keep_names(traced.closed, is_wanted))
    step = AppliedStep(
        closed=schedule.schedule_step(named, ledger),
        out_tree=traced.out_tree,
        values=traced.values,
        offloaded=tuple(ledger.offloaded),
        demoted=_find_unread(decisions, ledger.offloaded) | ledger.demoted,
    )
    check_applied(step, decisions, traced.closed)
    return step


def _find_unread(decisions: Mapping[str, Decision], offloaded: Sequence[str]) -> dict[str, str]:
    """Offloads that were decided and never asked for, with the reason."""
    done = set(offloaded)
    unread = [n for n, d in decisions.items() if d.action == "offload" and n not in done]
    return dict.fromkeys(unread, "not offloaded: nothing of the backward pass reads it")


def _split_static(args: tuple, kwargs: dict) -> tuple[list[Any], Callable]:
    """Sets apart what `jit` left static: what is no array and no tracer among tracers."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    is_traced = any(isinstance(x, Tracer) for x in leaves)
    is_scalar = lambda x: is_traced and isinstance(x, bool | int | float | complex)
    is_dynamic = [jx.valid_jaxtype(x) and not is_scalar(x) for x in leaves]

    def rebuild(xs):
        rest = iter(xs)
        merged = [next(rest) if d else x for d, x in zip(is_dynamic, leaves, strict=True)]
        return jax.tree.unflatten(tree, merged)

    return [x for d, x in zip(is_dynamic, leaves, strict=True) if d], rebuild


def _check_default(default: str) -> None:
    if default not in ACTIONS:
        raise BadArgumentError(
            f"`default={default!r}` is not something that can be done with a value: "
            f"write one of {', '.join(map(repr, ACTIONS))}."
        )


def _check_names(decisions: Mapping[str, Decision], values: Sequence[NamedValue]) -> None:
    known = {v.name for v in values}
    unknown = [name for name in decisions if name not in known]
    if unknown:
        raise BadArgumentError(
            f"{len(unknown)} of {len(decisions)} decisions are about values that this step "
            f"does not have, such as {unknown[0]!r}: it has {len(known)} values. Decide about "
            "names that `name_values` lists for the same step and shapes of arguments."
        )
