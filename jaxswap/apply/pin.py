"""Pin: how is XLA kept from moving an op, or from merging it with its twin?

Input: values. Output: an equation that returns them, and behind which XLA looks at nothing.
On a GPU that is an `optimization_barrier`. On the CPU it is nothing: there a step has no device
memory to be saved, and a barrier would only keep XLA from simplifying what it simplifies in the
step as written, which changes last bits.
"""

from collections.abc import Sequence

import jax
from jax.interpreters import ad, batching, mlir

from jaxswap.apply.jaxprs import Atom, Eqn, Var, jx

pin_p = jx.Primitive("jaxswap_pin")
pin_p.multiple_results = True


def new_pin(operands: Sequence[Atom], results: Sequence[Var]) -> Eqn:
    """An equation that pins `operands` together, as `results`."""
    return jx.new_eqn(list(operands), list(results), pin_p, {}, set())


def is_barrier(eqn: Eqn) -> bool:
    """Whether XLA looks at nothing behind an equation: a pin, or the user's own barrier."""
    return eqn.primitive in (pin_p, jx.optimization_barrier_p)


def _differentiate(primals, tangents):
    return pin_p.bind(*primals), list(tangents)


def _batch(operands, dims):
    return pin_p.bind(*operands), dims


pin_p.def_impl(lambda *operands: list(operands))
pin_p.def_abstract_eval(lambda *avals: list(avals))
ad.primitive_jvps[pin_p] = _differentiate
batching.primitive_batchers[pin_p] = _batch
mlir.register_lowering(
    pin_p, mlir.lower_fun(lambda *xs: jax.lax.optimization_barrier(xs), multiple_results=True)
)
mlir.register_lowering(pin_p, lambda context, *operands: operands, platform="cpu")
