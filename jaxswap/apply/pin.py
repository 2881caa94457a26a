"""Pin: how is XLA kept from moving an op, or from merging it with its twin?

Input: values. Output: an equation that returns them, and behind which XLA looks at nothing.
On a GPU that is an `optimization_barrier`. On the CPU it is nothing: there a step has no device
memory to be saved, and a barrier would only keep XLA from simplifying what it simplifies in the
step as written, which changes last bits. For the same reason a *twin*, an equation made again
behind a pin, is there the one that it is the twin of: XLA simplifies an op with one reader in
other ways than one with two.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.interpreters import ad, batching, mlir

from jaxswap.apply.jaxprs import Atom, Eqn, Var, jx

pin_p = jx.Primitive("jaxswap_pin")
pin_p.multiple_results = True
twin_p = jx.Primitive("jaxswap_twin")


def new_pin(operands: Sequence[Atom], results: Sequence[Var]) -> Eqn:
    """An equation that pins `operands` together, as `results`."""
    return jx.new_eqn(list(operands), list(results), pin_p, {}, set())


def new_twin(first: Atom, again: Eqn) -> Eqn:
    """The equation `again`, of one result, which computes what `first` is already."""
    params = {"op": again.primitive, "settings": tuple(again.params.items())}
    return again.replace(primitive=twin_p, invars=[first, *again.invars], params=params)


def open_twin(eqn: Eqn) -> Eqn:
    """The equation that a twin makes again; any other as it is."""
    if eqn.primitive is not twin_p:
        return eqn
    params = dict(eqn.params["settings"])
    return eqn.replace(primitive=eqn.params["op"], invars=eqn.invars[1:], params=params)


def is_barrier(eqn: Eqn) -> bool:
    """Whether XLA looks at nothing behind an equation: a pin, or the user's own barrier."""
    return eqn.primitive in (pin_p, jx.optimization_barrier_p)


def _differentiate(primals, tangents):
    return pin_p.bind(*primals), list(tangents)


def _batch(operands, dims):
    return pin_p.bind(*operands), dims


def _make_again(first: Any, *operands: Any, op: Any, settings: tuple) -> Any:
    return op.bind(*operands, **dict(settings))


def _differentiate_twin(primals, tangents, *, op, settings):
    # The op's own rule, which may need to see that a tangent is zero; `first` is what it makes.
    return ad.primitive_jvps[op](primals[1:], tangents[1:], **dict(settings))


def _batch_twin(operands, dims, **params):
    mapped = jax.vmap(lambda *xs: _make_again(*xs, **params), in_axes=tuple(dims))
    return mapped(*operands), 0


pin_p.def_impl(lambda *operands: list(operands))
pin_p.def_abstract_eval(lambda *avals: list(avals))
ad.primitive_jvps[pin_p] = _differentiate
batching.primitive_batchers[pin_p] = _batch
mlir.register_lowering(
    pin_p, mlir.lower_fun(lambda *xs: jax.lax.optimization_barrier(xs), multiple_results=True)
)
mlir.register_lowering(pin_p, lambda context, *operands: operands, platform="cpu")

twin_p.def_impl(_make_again)
twin_p.def_abstract_eval(lambda first, *operands, op, settings: first)
ad.primitive_jvps[twin_p] = _differentiate_twin
batching.primitive_batchers[twin_p] = _batch_twin
mlir.register_lowering(twin_p, mlir.lower_fun(_make_again, multiple_results=False))
mlir.register_lowering(twin_p, lambda context, first, *operands, **_: [first], platform="cpu")
