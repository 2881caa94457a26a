"""Place: which values does a step's differentiation hold on to, and how are they called?

Input: a step and its arguments. Output: the step's jaxpr, differentiated, with every value named
in it that can be decided about, and the list of these.

While the step is traced, every function that is differentiated is traced first, its calls
are inlined, and it is replaced by a copy that names its values (`checkpoint_name`'s primitive
survives differentiation), says in its name stack which equations are its own, and marks
the cotangent that its backward pass starts from. JAX then differentiates that copy as ever.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxswap import _compat
from jaxswap._errors import BadArgumentError
from jaxswap.apply import jaxprs
from jaxswap.apply.decision import NamedValue
from jaxswap.apply.flat import trace_flat
from jaxswap.apply.jaxprs import Eqn, Var, jx
from jaxswap.apply.marks import SCOPE, TURN, VALUE, is_named
from jaxswap.apply.residuals import name_residuals
from jaxswap.apply.unscatter import unscatter
from jaxswap.apply.values import describe_value, is_nameable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A step, traced and differentiated, with its values named.

    Attributes:
        closed: the step's `ClosedJaxpr` over the flattened arguments, as it is to be planned.
        scattered: the same with the gradients that XLA scatters as they were written; `closed`
            itself where there are none.
        written: that before calls were inlined. Of this one derivatives can be taken: it has
            custom derivatives where the step has them.
        out_tree: the structure of its result.
        values: every value that can be decided about, in program order.
    """

    closed: Any
    scattered: Any
    written: Any
    out_tree: Any
    values: tuple[NamedValue, ...]


def trace_step(fn: Callable, args: Sequence[Any], kwargs: dict) -> TracedStep:
    """Traces a step, naming the values of its differentiated functions."""
    namer = _Namer(lambda name: True)
    leaves, flat_step, out_trees = _flatten_step(fn, args, kwargs)
    with _compat.intercept_differentiation(namer.instrument):
        written = jax.make_jaxpr(flat_step)(*leaves)
    scattered, more = name_residuals(written, namer.values)
    values = (*namer.values, *more)
    if not can_have_host_memory(scattered):
        values = tuple(map(_without_offload, values))
    return TracedStep(
        closed=unscatter(scattered),
        scattered=scattered,
        written=written,
        out_tree=out_trees[-1],
        values=values,
    )


def can_have_host_memory(closed: Any) -> bool:
    """Whether JAX can lower a step that uses host memory: not with side effects in order."""
    return not _compat.are_in_order(closed.effects)


def _without_offload(value: NamedValue) -> NamedValue:
    return dataclasses.replace(value, actions=tuple(a for a in value.actions if a != "offload"))


def trace_plain(fn: Callable, args: Sequence[Any], kwargs: dict) -> Any:
    """Traces a step as it is written, over its flattened arguments."""
    leaves, flat_step, _ = _flatten_step(fn, args, kwargs)
    return jax.make_jaxpr(flat_step)(*leaves)


def keep_names(closed: Any, is_wanted: Callable[[str], bool]) -> Any:
    """A traced step without the names that are not wanted: these are in nobody's way."""
    env: jaxprs.Env = {}
    eqns = []
    for eqn in closed.jaxpr.eqns:
        eqn = jaxprs.substitute(eqn, env)
        if is_named(eqn) and not is_wanted(eqn.params["name"].removeprefix(VALUE)):
            env[eqn.outvars[0]] = eqn.invars[0]
            continue
        if any(jaxprs.any_equation(body, is_named) for body in jaxprs.bodies(eqn)):
            eqn = jaxprs.map_bodies(eqn, lambda body: keep_names(body, is_wanted))
        eqns.append(eqn)
    outvars = [jaxprs.read(env, v) for v in closed.jaxpr.outvars]
    return jx.ClosedJaxpr(jaxprs.with_equations(closed.jaxpr, eqns, outvars=outvars), closed.consts)


def _flatten_step(fn: Callable, args: Sequence[Any], kwargs: dict) -> tuple:
    # A new function every time: JAX caches traces by identity, and a trace from the cache
    # is not intercepted.
    _check_arrays((tuple(args), kwargs), "gets", "Let the step close over it.")
    leaves, tree = jax.tree.flatten((args, kwargs))
    out_trees = []

    def flat_step(*xs):
        inner_args, inner_kwargs = jax.tree.unflatten(tree, xs)
        result = fn(*inner_args, **inner_kwargs)
        _check_arrays(result, "returns", "Leave it out of the results.")
        out, out_tree = jax.tree.flatten(result)
        out_trees.append(out_tree)
        return out

    return leaves, flat_step, out_trees


def _check_arrays(tree: Any, verb: str, way_out: str) -> None:
    for leaf in jax.tree.leaves(tree):
        if not (jx.valid_jaxtype(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)):
            raise BadArgumentError(
                f"The step {verb} {leaf!r:.60}, of type `{type(leaf).__name__}`, and a jitted step "
                f"takes and returns arrays and numbers. {way_out}"
            )


def name_function(
    closed: Any,
    is_wanted: Callable[[str], bool],
    *,
    prefix: str = VALUE,
    change_body: Callable[[Any], Any] | None = None,
) -> tuple[Any, tuple[NamedValue, ...]]:
    """Names the values of one function, as if it were the first that a step differentiates.

    Args:
        closed: its `ClosedJaxpr`. The inputs get no names.
        is_wanted: which names to put in.
        prefix: what the names in the jaxpr start with.
        change_body: applied to the body of every loop, once its values are named.

    Returns:
        The `ClosedJaxpr` with names, and all values that could be named.
    """
    namer = _Namer(is_wanted, prefix, change_body)
    named = namer.name_body(jaxprs.inline_calls(closed), "0", (), 1, ())
    return named, tuple(namer.values)


class _Namer:
    """Names the values of one step's differentiated functions, in the order they come."""

    def __init__(
        self,
        is_wanted: Callable[[str], bool],
        prefix: str = VALUE,
        change_body: Callable[[Any], Any] | None = None,
    ):
        self._is_wanted, self._prefix, self._change_body = is_wanted, prefix, change_body
        self._num_functions = 0
        self.values: list[NamedValue] = []

    def instrument(self, fun: Callable, primals: tuple, has_aux: bool) -> Callable:
        """A function that does what `fun` does, with its values named."""
        index, self._num_functions = self._num_functions, self._num_functions + 1
        with _compat.pause_interception():
            traced = trace_flat(fun, primals, has_aux)
        closed = jaxprs.inline_calls(traced.closed)
        named = self.name_body(closed, str(index), (), 1, range(len(closed.jaxpr.invars)))
        # A custom derivative may index what it saved, a constant too, with what is traced.
        with jax.ensure_compile_time_eval():
            consts = [c if isinstance(c, jax.Array) else jnp.asarray(c) for c in named.consts]

        def instrumented(*args):
            leaves = jax.tree.leaves(args)
            with jax.named_scope(f"{SCOPE}{index}"):
                out = jx.eval_jaxpr(named.jaxpr, consts, *leaves)
                out[: traced.num_main] = [_mark_turn(x, index) for x in out[: traced.num_main]]
            return traced.rebuild(out)

        return instrumented

    def name_body(
        self, closed: Any, path: str, scope: tuple[str, ...], length: int, inputs: Sequence[int]
    ) -> Any:
        """The same `ClosedJaxpr` with its values named, and those of the loops in it."""
        jaxpr, eqns, env = closed.jaxpr, [], {}
        records: dict[Var, int] = {}

        def name(var: Var, value_name: str, eqn: Eqn | None) -> None:
            if not is_nameable(var):
                return
            records[var] = len(self.values)
            self.values.append(describe_value(var, value_name, eqn, scope, length))
            if self._is_wanted(value_name):
                env[var] = jx.Var(var.aval)
                params = {"name": self._prefix + value_name}
                eqns.append(jx.new_eqn([var], [env[var]], jx.name_p, params, set()))

        for k in inputs:
            name(jaxpr.invars[k], f"{path}/in{k - inputs[0]}", None)
        for i, original in enumerate(jaxpr.eqns):
            eqn = jaxprs.substitute(original, env)
            if original.primitive is jx.scan_p:
                eqn = self._name_scan(eqn, f"{path}/{i}.body", scope, length)
            eqns.append(eqn)
            if original.primitive is jx.name_p:
                self._add_user_name(original, records)
                continue
            for j, var in enumerate(original.outvars):
                name(var, f"{path}/{i}:{j}" if j else f"{path}/{i}", original)
        outvars = [jaxprs.read(env, v) for v in jaxpr.outvars]
        return jx.ClosedJaxpr(jaxprs.with_equations(jaxpr, eqns, outvars=outvars), closed.consts)

    def _name_scan(self, eqn: Eqn, path: str, scope: tuple[str, ...], length: int) -> Eqn:
        body = jaxprs.inline_calls(eqn.params["jaxpr"])
        first = eqn.params["num_consts"]
        carry = range(first, first + eqn.params["num_carry"])
        trips = length * eqn.params["length"]
        named = self.name_body(body, path, (*scope, path), trips, carry)
        if self._change_body is not None:
            named = self._change_body(named)
        return eqn.replace(params=eqn.params | {"jaxpr": named})

    def _add_user_name(self, eqn: Eqn, records: dict[Var, int]) -> None:
        (source,) = eqn.invars
        if source in records:
            position = records[eqn.outvars[0]] = records[source]
            self.values[position] = dataclasses.replace(
                self.values[position], user_name=eqn.params["name"]
            )


def _mark_turn(x: Any, index: int) -> Any:
    """The identity, whose cotangent is marked as where backward pass `index` starts."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x

    @jax.custom_vjp
    def turn(y):
        return y

    def turn_backward(_, cotangent):
        return (jx.name_p.bind(cotangent, name=f"{TURN}{index}"),)

    turn.defvjp(lambda y: (y, None), turn_backward)
    return turn(x)
