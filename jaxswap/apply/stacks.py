"""Stacks: how does a loop read what another loop left in host memory?

Input: a stack in host memory, and which iteration's slice is wanted. Output: equations.

Stacks in host memory are indexed by hand, with an index that is read from memory: XLA:GPU of
jaxlib 0.10.2 and 0.11.0 reads slices whose index it can work out, and which runs backwards,
from the wrong end (openxla/xla #46231): silently wrong gradients.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxswap import _compat
from jaxswap.apply import jaxprs
from jaxswap.apply.jaxprs import Eqn, Var, jx


def hide_numbers(count: Callable[[], Any]) -> tuple[list[Eqn], Var]:
    """Equations that put integers where XLA cannot foresee them, and where that is."""
    closed = jaxprs.inline_calls(jax.make_jaxpr(lambda: jax.lax.optimization_barrier(count()))())
    _, _, eqns, (numbers,) = jaxprs.rename_jaxpr(closed)
    return eqns, numbers


def index_stack(stack: Var, index: Var, result: Var) -> list[Eqn]:
    """Equations that read `result` from a stack in host memory."""
    sizes = (1, *result.aval.shape)

    def take(whole, i):
        starts = (i, *(jnp.int32(0) for _ in sizes[1:]))
        return jax.lax.squeeze(jax.lax.dynamic_slice(whole, starts, sizes), (0,))

    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in (stack, index)]
    closed = jaxprs.inline_calls(jax.make_jaxpr(take)(*shapes))
    env = dict(zip(closed.jaxpr.invars, (stack, index), strict=True))
    eqns = []
    for eqn in closed.jaxpr.eqns:
        copied = jaxprs.clone(eqn, env)
        if any(_compat.is_on_host(v.aval) for v in jaxprs.variables(copied.invars)):
            (old,), (made,) = eqn.outvars, copied.outvars
            env[old] = jx.Var(made.aval.update(memory_space=stack.aval.memory_space))
            copied = copied.replace(outvars=[env[old]])
        eqns.append(copied)
    eqns[-1] = eqns[-1].replace(outvars=[result])
    return eqns
