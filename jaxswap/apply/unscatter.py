"""Unscatter: which gradients does XLA:GPU scatter that could be computed place by place?

Input: a differentiated jaxpr. Output: the same, with such equations replaced by elementwise ones
that give the same numbers: the same bits, but for the sign of a zero, of which XLA is not of one
mind itself.

The gradient of a loss with labels is scattered into an array as large as the logits, that of a
max-pooling into one as large as what was pooled (`pooling.py`). XLA:GPU scatters in memory, in a
kernel of its own: zeros are written, numbers added to them, and the sum is read again by what could
have been part of the same kernel. Often that is what sets the floor of a step. Computed place by
place, such a gradient fuses with what reads it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxswap.apply import jaxprs
from jaxswap.apply.jaxprs import Atom, Eqn, Var, jx
from jaxswap.apply.one_op import make_op
from jaxswap.apply.pooling import can_differentiate_pool, differentiate_pool

_LOOPS = (jx.scan_p, jx.while_p, jx.cond_p, jx.remat_p)
_SPREADERS = (jx.primitives.broadcast_in_dim_p, jx.primitives.convert_element_type_p)

Makers = Mapping[Var, Eqn]
Rewrite = Callable[..., jax.Array]


def unscatter(closed: Any) -> Any:
    """A program that computes place by place what it scattered, at every depth of loops.

    Returns:
        The very same program where there is nothing to change.
    """
    opened = jaxprs.inline_calls(closed, is_differentiated=True)
    makers: dict[Var, Eqn] = {}
    eqns: list[Eqn] = []
    for eqn in opened.jaxpr.eqns:
        if eqn.primitive in _LOOPS:
            eqn = jaxprs.map_bodies(eqn, unscatter)
        rewrite = _find_rewrite(eqn, makers)
        made = None if rewrite is None else jaxprs.trace_instead(eqn, rewrite)
        eqns += made or [eqn]
        makers.update((v, eqn) for v in eqn.outvars)
    if all(new is old for new, old in zip(eqns, opened.jaxpr.eqns, strict=False)):
        return closed
    changed = jx.ClosedJaxpr(jaxprs.with_equations(opened.jaxpr, eqns), opened.consts)
    return jaxprs.remove_dead_code(changed)  # zeros that nothing is added to any more


def _find_rewrite(eqn: Eqn, makers: Makers) -> Rewrite | None:
    """A function of what an equation reads that gives what it makes; None if there is none."""
    if eqn.primitive is jx.primitives.select_and_scatter_add_p and can_differentiate_pool(eqn):
        return lambda *operands: differentiate_pool(*operands, **eqn.params)
    if eqn.primitive is jx.primitives.scatter_add_p and _adds_one_per_row(eqn, makers):
        shape = eqn.outvars[0].aval.shape
        # What is not met is zero by itself.
        return lambda _, *operands: select_scattered_p.bind(*operands, shape=shape, **eqn.params)
    return None


def _adds_one_per_row(eqn: Eqn, makers: Makers) -> bool:
    """Whether a scatter adds to zeros one number in each row, along one axis."""
    zeros, indices, updates = eqn.invars
    numbers = eqn.params["dimension_numbers"]
    axes, rows = numbers.scatter_dims_to_operand_dims, numbers.operand_batching_dims
    # Whatever else there could be several of in a row: places, windows, other axes.
    several = [
        *(n for d, n in enumerate(indices.aval.shape[:-1])
          if d not in numbers.scatter_indices_batching_dims),
        *(updates.aval.shape[d] for d in numbers.update_window_dims),
        *(n for d, n in enumerate(zeros.aval.shape) if d not in (*axes, *rows)),
    ]  # fmt: skip
    return (
        len(axes) == 1
        and all(n == 1 for n in several)
        and jnp.issubdtype(zeros.aval.dtype, jnp.floating)
        and _is_zero(zeros, makers)
    )


def _is_zero(atom: Atom, makers: Makers) -> bool:
    while not isinstance(atom, jx.Literal):
        eqn = makers.get(atom)
        if eqn is None or eqn.primitive not in _SPREADERS or len(eqn.invars) != 1:
            return False
        (atom,) = eqn.invars
    return not atom.aval.shape and not atom.val


def _select_scattered(
    indices: jax.Array,
    updates: jax.Array,
    *,
    shape: tuple[int, ...],
    dimension_numbers: jax.lax.ScatterDimensionNumbers,
    mode: jax.lax.GatherScatterMode,
    **_: object,
) -> jax.Array:
    """Zeros, but a row's number where its index is met; an index out of bounds is met nowhere."""
    (axis,) = dimension_numbers.scatter_dims_to_operand_dims
    # Rows stand in the indices, and likewise in the updates, in an order of their own.
    rows = dimension_numbers.operand_batching_dims
    place = dict(zip(rows, dimension_numbers.scatter_indices_batching_dims, strict=True))
    kept = sorted(place.values())
    order = [kept.index(place[d]) for d in sorted(rows)]
    spread_shape = [n if d in rows else 1 for d, n in enumerate(shape)]

    def spread(one_each: jax.Array) -> jax.Array:
        by_row = one_each.reshape([indices.shape[d] for d in kept])
        return jnp.transpose(by_row, order).reshape(spread_shape)

    index = spread(indices)
    if mode == jax.lax.GatherScatterMode.CLIP:
        index = jnp.clip(index, 0, min(shape[axis] - 1, jnp.iinfo(index.dtype).max))
    index = index.astype(jnp.promote_types(index.dtype, jnp.int32))  # which any length is within
    at = jax.lax.broadcasted_iota(index.dtype, shape, axis)
    return jnp.where(at == index, spread(updates), jnp.zeros((), updates.dtype))


def _scatter(
    indices: jax.Array, updates: jax.Array, *, shape: tuple[int, ...], **params: Any
) -> jax.Array:
    """The same as it was written."""
    zeros = jnp.zeros(shape, updates.dtype)
    return jx.primitives.scatter_add_p.bind(zeros, indices, updates, **params)


select_scattered_p = make_op("jaxswap_select_scattered", _select_scattered, _scatter)
