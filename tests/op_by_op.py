"""Op by op: what does a program compute if every op rounds by itself?

Input: a jaxpr and arrays. Output: its results, each op compiled and run alone, loops included.
XLA may round the same program in two ways, depending on what it fuses, and on how it lays out
and simplifies a matmul; an optimizer such as Adam then turns the noise of a gradient that is
zero in exact arithmetic into steps of full size. Op by op there is no such freedom: two programs
that do the same operations on the same numbers give the same bits.
"""

import functools

import jax
import jax.numpy as jnp

from jaxswap.apply.jaxprs import jx
from jaxswap.apply.pin import is_barrier

_FAST = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
_CALLS = ("call_jaxpr", "fun_jaxpr", "jaxpr")


def run_op_by_op(closed, *args):
    """Runs a `ClosedJaxpr` on flat arguments."""
    return _run(closed.jaxpr, closed.consts, args)


def _run(jaxpr, consts, args):
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    read = lambda atom: atom.val if isinstance(atom, jx.Literal) else env[atom]
    for eqn in jaxpr.eqns:
        out = _run_equation(eqn, [read(v) for v in eqn.invars])
        env.update(zip(eqn.outvars, out, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _run_equation(eqn, inputs):
    if eqn.primitive is jx.scan_p:
        return _run_scan(eqn.params, inputs)
    if eqn.primitive is jx.cond_p:
        index, *operands = inputs
        branch = eqn.params["branches"][int(index)]
        return _run(branch.jaxpr, branch.consts, operands)
    if eqn.primitive is jx.device_put_p or is_barrier(eqn):
        return inputs  # moved, not changed
    called = next((eqn.params[k] for k in _CALLS if k in eqn.params), None)
    if called is not None and eqn.primitive is not jx.while_p:
        inner = called if isinstance(called, jx.ClosedJaxpr) else jx.ClosedJaxpr(called, ())
        return _run(inner.jaxpr, inner.consts, inputs)
    out = _compile(eqn.primitive, _Params(eqn.params))(*inputs)
    return out if eqn.primitive.multiple_results else [out]


def _run_scan(params, inputs):
    body, num_consts, num_carry = params["jaxpr"], params["num_consts"], params["num_carry"]
    consts = inputs[:num_consts]
    carry, xs = inputs[num_consts : num_consts + num_carry], inputs[num_consts + num_carry :]
    stacked = []
    order = range(params["length"])
    for i in reversed(order) if params["reverse"] else order:
        out = _run(body.jaxpr, body.consts, [*consts, *carry, *(_take(x, i) for x in xs)])
        carry = out[:num_carry]
        stacked.append(out[num_carry:])
    if params["reverse"]:
        stacked.reverse()
    return [*carry, *(_stack(*column) for column in zip(*stacked, strict=True))]


@jax.jit
def _take(x, i):
    return jax.lax.dynamic_index_in_dim(x, i, keepdims=False)


@jax.jit
def _stack(*parts):
    return jnp.stack(parts)


class _Params:
    """Parameters of an op, equal where they print the same."""

    def __init__(self, params):
        self.params, self.text = params, str(sorted(params.items(), key=lambda item: item[0]))

    def __eq__(self, other):
        return self.text == other.text

    def __hash__(self):
        return hash(self.text)


@functools.cache
def _compile(primitive, key):
    return jax.jit(lambda *xs: primitive.bind(*xs, **key.params), compiler_options=_FAST)
