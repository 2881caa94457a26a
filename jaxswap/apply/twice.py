"""Twice: what if an applied step is differentiated itself?

Input: an applied step, and one like it that offloads nothing. Output: its results, of which any
derivative is taken of the other.
JAX 0.10 has no cotangents for copies to host memory, and what a step keeps for a derivative of its
own was not planned. So what was offloaded is kept there, with the same numbers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import Tracer

from jaxswap import _compat
from jaxswap.apply import jaxprs
from jaxswap.apply.jaxprs import jx


def run_applied(
    closed: Any, keep_all: Callable[[Sequence[Any]], Any], arrays: Sequence[Any]
) -> list[Any]:
    """Runs an applied step.

    Args:
        closed: its `ClosedJaxpr`.
        keep_all: the `ClosedJaxpr` of the step without offloads, for these arrays; only asked
            for where the step is differentiated.
        arrays: what to run it on.
    """
    jaxpr = closed.jaxpr
    # A rule for derivatives knows of no variables from outside, nor of all that steps may have.
    is_closed = not any(isinstance(const, Tracer) for const in closed.consts)
    if not is_closed or not _compat.can_have_own_derivative(closed):
        return jx.eval_jaxpr(jaxpr, closed.consts, *arrays)
    read = {v for eqn in jaxpr.eqns for v in jaxprs.variables(eqn.invars)}
    made = {v for eqn in jaxpr.eqns for v in eqn.outvars}
    is_read = [v in read for v in jaxpr.invars]
    is_made = [not isinstance(v, jx.Literal) and v in made for v in jaxpr.outvars]

    # What is not read or only passed on stays outside: `jit` has to see that for itself.
    def evaluate(program: Any, xs: Sequence[Any]) -> list[Any]:
        rest = iter(xs)
        inputs = [next(rest) if ok else None for ok in is_read]
        out = jx.eval_jaxpr(program.jaxpr, program.consts, *inputs)
        return [x for ok, x in zip(is_made, out, strict=True) if ok]

    @jax.custom_jvp
    def run(*xs: Any) -> Any:
        return evaluate(closed, xs)

    @run.defjvp
    def differentiate(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        rest = iter(primals)
        inputs = [
            next(rest) if ok else _as_shape(v.aval)
            for ok, v in zip(is_read, jaxpr.invars, strict=True)
        ]
        kept = jaxprs.remove_dead_code(keep_all(inputs))
        return jax.jvp(lambda *xs: evaluate(kept, xs), primals, tangents)

    results = iter(run(*(x for ok, x in zip(is_read, arrays, strict=True) if ok)))
    known = dict(zip(jaxpr.invars, arrays, strict=True))
    known |= dict(zip(jaxpr.constvars, closed.consts, strict=True))
    passed = lambda v: v.val if isinstance(v, jx.Literal) else known[v]
    return [
        next(results) if ok else passed(v) for ok, v in zip(is_made, jaxpr.outvars, strict=True)
    ]


def _as_shape(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
