"""Compute: how much work is one equation of a step, and how does it fuse?

Input: an equation of a jaxpr. Output: a `KernelCost` without bytes (those depend on what it
is fused with), and the kind of node it is.
Formulas count as XLA's cost analysis does: one flop per element and operation, two per
multiply-add. XLA itself is asked about convolutions, where padding and dilation make a
formula wrong, once for each distinct one.
"""

import functools
import math
from typing import Any

import jax

from jaxswap.apply import jaxprs
from jaxswap.apply.jaxprs import Eqn, jx
from jaxswap.model.kernel import KernelCost
from jaxswap.program.graph import WINDOWS, NodeKind

TRANSCENDENTALS = frozenset(
    ("exp", "exp2", "log", "log1p", "expm1", "logistic", "pow", "rsqrt", "sqrt", "cbrt", "sin",
     "cos", "tan", "tanh", "sinh", "cosh", "asin", "acos", "atan", "atan2", "erf", "erfc",
     "erf_inv", "lgamma", "digamma", "asinh", "acosh", "atanh")
)  # fmt: skip
MOVES = frozenset(
    ("broadcast_in_dim", "transpose", "slice", "dynamic_slice", "pad", "concatenate", "rev",
     "gather", "iota", "split", "copy", "copy_p", "reshape", "squeeze", "expand_dims", "tile")
)  # fmt: skip
ELEMENTWISE = TRANSCENDENTALS | frozenset(
    ("abs", "add", "add_any", "and", "ceil", "clamp", "clz", "complex", "conj",
     "convert_element_type", "div", "eq", "eq_to", "floor", "ge", "gt", "imag", "integer_pow",
     "is_finite", "le", "le_to", "lt", "lt_to", "max", "min", "mul", "mulhi", "ne", "neg",
     "nextafter", "not", "or", "population_count", "real", "reduce_precision", "rem", "round",
     "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "square",
     "sub", "xor", "threefry2x32", "bitcast_convert_type", "random_bits", "random_wrap",
     "random_unwrap", "random_split", "random_fold_in", "random_seed", "zeros_like",
     "jaxswap_select_scattered")
)  # fmt: skip
REDUCTIONS = frozenset(
    ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or",
     "reduce_xor", "argmax", "argmin", "reduce")
)  # fmt: skip
_TWO_STAGES = frozenset(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"))
_LONG_ROW, _LONG_COLUMN = 16384, 4096
_HASH_FLOPS = {"threefry2x32": 60.0, "random_bits": 60.0}


def classify(eqn: Eqn) -> NodeKind:
    """How an equation fuses. What is not known is a kernel of its own."""
    name = eqn.primitive.name
    if name in ELEMENTWISE or name in MOVES or name in WINDOWS:
        return "map"
    if name in REDUCTIONS:
        return "reduce"
    if name.startswith("scatter") or name == "dynamic_update_slice":
        return "update"
    return "opaque"


def cost_of(eqn: Eqn) -> KernelCost:
    """The work of one equation, bytes left out.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> dot = jax.make_jaxpr(jnp.dot)(jnp.ones((2, 3)), jnp.ones((3, 4))).jaxpr.eqns[-1]
        >>> cost_of(dot).matrix_flops
        48.0
    """
    if eqn.primitive is jx.dot_p:
        return _dot_cost(eqn)
    if eqn.primitive is jx.conv_p:
        return _conv_cost(eqn)
    if eqn.primitive is jx.ragged_dot_p:
        return _ragged_dot_cost(eqn)
    bodies = jaxprs.bodies(eqn)
    if classify(eqn) == "opaque" and bodies:
        return _inside_cost(eqn, bodies)
    return _plain_cost(eqn)


def _elements(atom: Any) -> int:
    return math.prod(getattr(atom.aval, "shape", ()))


def _plain_cost(eqn: Eqn) -> KernelCost:
    name = eqn.primitive.name
    out = sum(_elements(v) for v in eqn.outvars)
    if name in TRANSCENDENTALS:
        return KernelCost(transcendentals=float(out))
    if name in MOVES:
        return KernelCost()
    if name == "integer_pow":
        return KernelCost(vector_flops=float(out * max(1, abs(eqn.params["y"]).bit_length())))
    if name in _HASH_FLOPS:
        return KernelCost(vector_flops=out * _HASH_FLOPS[name])
    if name in WINDOWS:
        window = math.prod(eqn.params.get("window_dimensions", (1,)))
        return KernelCost(vector_flops=float(out * window))
    if name in ELEMENTWISE:
        return KernelCost(vector_flops=float(out))
    read = sum(_elements(v) for v in eqn.invars)
    return KernelCost(vector_flops=float(max(read, out)))


def _is_exact(precision: Any) -> bool:
    pair = precision if isinstance(precision, tuple) else (precision,)
    return any(p == jax.lax.Precision.HIGHEST for p in pair)


def _dot_cost(eqn: Eqn) -> KernelCost:
    (contracting, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval
    flops = 2.0 * _elements(eqn.outvars[0]) * math.prod(left.shape[d] for d in contracting)
    return KernelCost(
        kind="dot",
        dtype=str(left.dtype),
        is_exact=_is_exact(eqn.params["precision"]),
        matrix_flops=flops,
    )


def _ragged_dot_cost(eqn: Eqn) -> KernelCost:
    """Every row meets the matrix of its own group only."""
    left = eqn.invars[0].aval
    numbers = eqn.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    (contracting, _), _ = numbers
    size = math.prod(left.shape[d] for d in contracting)
    out, ragged = _elements(eqn.outvars[0]), eqn.params["ragged_dot_dimension_numbers"]
    if not ragged.rhs_group_dimensions:  # the ragged dimension is contracted: one per group
        size //= max(1, eqn.invars[2].aval.shape[-1])
    return KernelCost(kind="dot", dtype=str(left.dtype), matrix_flops=2.0 * out * size)


def _conv_cost(eqn: Eqn) -> KernelCost:
    types = tuple(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars)
    params = tuple(sorted(eqn.params.items(), key=lambda item: item[0]))
    return KernelCost(
        kind="conv",
        dtype=str(types[0].dtype),
        is_exact=_is_exact(eqn.params["precision"]),
        matrix_flops=_ask_xla(eqn.primitive, params, types) * _count_filled(eqn),
    )


def _count_filled(eqn: Eqn) -> float:
    """How many times larger a kernel is with its holes filled, where XLA:GPU fills them.

    The library knows holes, but no padding that differs from side to side: where XLA has to pad
    by itself it fills the holes as well. Not in a convolution whose "kernel" is larger than its
    result: that is the gradient of a kernel, and its holes are the strides of the forward pass.
    """
    numbers, holes = eqn.params["dimension_numbers"], eqn.params["rhs_dilation"]
    kernel = [eqn.invars[1].aval.shape[d] for d in numbers.rhs_spec[2:]]
    result = [eqn.outvars[0].aval.shape[d] for d in numbers.out_spec[2:]]
    is_even = all(low == high >= 0 for low, high in eqn.params["padding"])
    if is_even or any(k > n for k, n in zip(kernel, result, strict=True)):
        return 1.0
    sizes = zip(kernel, holes, strict=True)
    return math.prod(((size - 1) * hole + 1) / size for size, hole in sizes if size)


@functools.lru_cache(maxsize=4096)
def _ask_xla(primitive: Any, params: tuple, types: tuple) -> float:
    """XLA's count of the flops of one primitive alone."""
    bound = jax.jit(lambda *xs: primitive.bind(*xs, **dict(params)))
    facts = bound.lower(*types).cost_analysis() or {}
    return float(facts.get("flops", 0.0))


def _inside_cost(eqn: Eqn, bodies: list[Any]) -> KernelCost:
    """The work inside a branch, loop or kernel: of several bodies the largest, run once."""
    trips = eqn.params.get("length", 1) if eqn.primitive is jx.scan_p else 1
    totals = [_sum_costs(body) for body in bodies]
    largest = max(totals, key=lambda c: c.flops + c.transcendentals)
    return KernelCost(
        kind=largest.kind,
        dtype=largest.dtype,
        is_exact=largest.is_exact,
        matrix_flops=largest.matrix_flops * trips,
        vector_flops=largest.vector_flops * trips,
        transcendentals=largest.transcendentals * trips,
    )


def _sum_costs(jaxpr: Any) -> KernelCost:
    return add_costs(cost_of(inner) for inner in jaxpr.eqns)


def add_costs(costs: Any) -> KernelCost:
    """One kernel that does the work of several: the kind is that of the most matrix work."""
    items = list(costs)
    main = max(items, key=lambda c: c.matrix_flops, default=KernelCost())
    return KernelCost(
        kind=main.kind,
        dtype=main.dtype,
        is_exact=main.is_exact,
        matrix_flops=sum(c.matrix_flops for c in items),
        vector_flops=sum(c.vector_flops for c in items),
        transcendentals=sum(c.transcendentals for c in items),
        size_bytes=sum(c.size_bytes for c in items),
    )


def is_row_reduction(eqn: Eqn) -> bool:
    """Whether an equation reduces trailing dimensions only: whole rows, one after another."""
    axes = eqn.params.get("axes")
    if classify(eqn) != "reduce" or axes is None:
        return False
    shape = eqn.invars[0].aval.shape
    wide = [d for d in range(len(shape)) if shape[d] != 1]
    reduced = sorted(d for d in axes if d in wide)
    return bool(reduced) and wide[-len(reduced) :] == reduced


def is_zero(eqn: Eqn) -> bool:
    """Whether an equation makes an array of zeros."""
    if eqn.primitive.name != "broadcast_in_dim" or not isinstance(eqn.invars[0], jx.Literal):
        return False
    return not eqn.invars[0].val


def count_parts(eqn: Eqn) -> int:
    """How many partial results XLA:GPU makes of a reduction first; 1 for none.

    One block per result is enough up to a length; beyond it XLA splits the length into two
    factors of about the same size, and reduces twice.
    """
    if eqn.primitive.name not in _TWO_STAGES or len(eqn.outvars) != 1:
        return 1
    shape, axes = eqn.invars[0].aval.shape, eqn.params["axes"]
    length = math.prod(shape[d] for d in axes)
    if length <= (_LONG_ROW if is_row_reduction(eqn) else _LONG_COLUMN):
        return 1
    return 2 ** int(math.log2(math.sqrt(length)))


def scratch_bytes_of(eqn: Eqn) -> int:
    """What XLA needs beside operands and results.

    The gradient of a max-pooling finds the place of each maximum first: its value and its
    indices in 32 bits, one array each.
    """
    if eqn.primitive.name not in ("select_and_scatter_add", "select_and_gather_add"):
        return 0
    source = eqn.invars[0].aval
    wide = sum(1 for n in source.shape if n != 1)
    return math.prod(source.shape) * (getattr(source.dtype, "itemsize", 4) + 4 * (wide - 1))
