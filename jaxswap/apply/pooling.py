"""Pooling: what is the gradient of a max-pooling, place by place?

Input: the gradient of what was pooled, and what it was pooled from. Output: the gradient of the
latter: that of JAX's own op, bit for bit but for the sign of a zero.

First every window finds the place of its maximum, and writes it: a byte each. Then every element
adds up, over the windows that it is in, the gradients of those whose maximum it is, in the order
of the windows. XLA:GPU instead writes maxima and indices in 32 bits, then zeros, then scatters.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxswap.apply.jaxprs import Eqn, jx
from jaxswap.apply.one_op import make_op
from jaxswap.apply.pin import pin_p

# Elements of a window: each is a few operations per element, which XLA fuses into one kernel.
_MAX_WINDOW = 32

Pads = Sequence[tuple[int, int]]


def can_differentiate_pool(eqn: Eqn) -> bool:
    """Whether a pooling's gradient is one that `differentiate_pool` computes."""
    gradient, operand = (v.aval for v in eqn.invars)
    is_known = eqn.params["select_prim"] in (jx.primitives.ge_p, jx.primitives.le_p)
    # Of numbers of 8 bits some have no infinity, which padding is made of.
    is_number = jnp.issubdtype(operand.dtype, jnp.floating) and operand.dtype.itemsize > 1
    is_small = math.prod(eqn.params["window_dimensions"]) <= _MAX_WINDOW
    return is_known and is_number and is_small and math.prod(gradient.shape) > 0


def differentiate_pool(
    gradient: jax.Array,
    operand: jax.Array,
    *,
    select_prim: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Pads,
    **_: object,
) -> jax.Array:
    """The gradient of a max- or min-pooling's operand.

    Args:
        gradient: that of its result.
        operand: what was pooled.
        select_prim: `ge` for maxima, `le` for minima.
        window_dimensions: as of the pooling.
        window_strides: likewise.
        padding: likewise.

    Limitations:
        As with JAX's own on CPUs and GPUs, the gradient of a window with nothing above `-inf` goes
        to its first element, and is lost if that is padding.
    """
    settings = {
        "window_dimensions": tuple(window_dimensions),
        "window_strides": tuple(window_strides),
        "padding": tuple(padding),
    }
    places = find_places_p.bind(
        operand, gradient, is_max=select_prim is jx.primitives.ge_p, **settings
    )
    # XLA would find them again for every window that an element is in.
    (places,) = pin_p.bind(places)
    return spread_gradient_p.bind(gradient, places, shape=operand.shape, **settings)


def _find_places(
    operand: jax.Array,
    gradient: jax.Array,
    *,
    is_max: bool,
    window_dimensions: tuple[int, ...],
    window_strides: tuple[int, ...],
    padding: Pads,
) -> jax.Array:
    """Which element of each window is its maximum: the first, of several.

    `gradient` says that this is part of the backward pass; only its shape matters.
    """
    shape = gradient.shape
    padded = jax.lax.pad(
        operand,
        jnp.array(-jnp.inf if is_max else jnp.inf, operand.dtype),
        [(low, high, 0) for low, high in padding],
    )
    found, best = jnp.zeros(shape, jnp.uint8), None
    for number, offset in _list_offsets(window_dimensions):
        spans = [(n - 1) * stride + 1 for n, stride in zip(shape, window_strides, strict=True)]
        ends = [low + span for low, span in zip(offset, spans, strict=True)]
        part = jax.lax.slice(padded, offset, ends, window_strides)
        if best is None:
            best = part
            continue
        is_better = ~(best >= part if is_max else best <= part)  # a NaN is better than all
        found = jnp.where(is_better, jnp.uint8(number), found)
        best = jnp.where(is_better, part, best)
    return found


def _spread_gradient(
    gradient: jax.Array,
    places: jax.Array,
    *,
    shape: tuple[int, ...],
    window_dimensions: tuple[int, ...],
    window_strides: tuple[int, ...],
    padding: Pads,
) -> jax.Array:
    """The gradient of each element: the sum of those of the windows whose maximum it is."""
    zero = jnp.zeros((), gradient.dtype)
    total = None
    # An element is at a late place of an early window, and those are added up first.
    for number, offset in reversed(list(_list_offsets(window_dimensions))):
        config = [
            (k - low, size - (k - low) - (n - 1) * stride - 1, stride - 1)
            for k, (low, _), size, n, stride in zip(
                offset, padding, shape, gradient.shape, window_strides, strict=True
            )
        ]
        part = jax.lax.pad(jnp.where(places == number, gradient, zero), zero, config)
        total = part if total is None else total + part
    assert total is not None
    return total


def _list_offsets(window: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    return enumerate(itertools.product(*map(range, window)))


find_places_p = make_op("jaxswap_find_places", _find_places)
spread_gradient_p = make_op("jaxswap_spread_gradient", _spread_gradient)
