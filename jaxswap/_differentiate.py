"""Differentiate: what is the step whose plan a loss function follows?

Input: a loss function and the arguments of a call. Output: its arrays, apart from all else, and
`jax.value_and_grad` of the function of these arrays.
Python numbers are settings here, as they are to `jax.grad` for arguments that it does not
differentiate.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxswap._errors import BadArgumentError
from jaxswap.apply.jaxprs import jx


def split_arrays(args: tuple, kwargs: dict) -> tuple[list[Any], Callable]:
    """The arrays among the arguments, and how to put all together again."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    is_array = [isinstance(x, jax.Array | np.ndarray) for x in leaves]

    def rebuild(arrays: Sequence[Any]) -> tuple[tuple, dict]:
        rest = iter(arrays)
        merged = [next(rest) if ok else x for ok, x in zip(is_array, leaves, strict=True)]
        return jax.tree.unflatten(tree, merged)

    return [x for ok, x in zip(is_array, leaves, strict=True) if ok], rebuild


def as_shape(x: Any) -> jax.ShapeDtypeStruct:
    """The type of an array: casts, and with them the names of values, depend on weak types."""
    aval = jax.typeof(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def find_key(args: tuple, kwargs: dict) -> Any:
    """Equal for calls with arrays of the same types and equal settings."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    is_array = lambda x: isinstance(x, jax.Array | np.ndarray)
    return tree, tuple(jax.typeof(x) if is_array(x) else (type(x), repr(x)) for x in leaves)


def find_differentiated(args: tuple, kwargs: dict, argnums: int | Sequence[int]) -> list[bool]:
    """Which of the arrays belong to the arguments `argnums`."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    numbers = {n % len(args) if args else n for n in numbers}
    flags = [(k in numbers, x) for k, each in enumerate(args) for x in jax.tree.leaves(each)]
    flags += [(False, x) for x in jax.tree.leaves(kwargs)]
    return [flag for flag, x in flags if isinstance(x, jax.Array | np.ndarray)]


def _check_loss(loss: Any) -> None:
    kinds = [jax.typeof(x) for x in jax.tree.leaves(loss)]
    if len(kinds) == 1 and not kinds[0].shape:
        return
    shown = ", ".join(kind.str_short() for kind in kinds) or "no array"
    raise BadArgumentError(
        "`jaxswap.checkpoint` with a budget plans the gradient of a loss, which is one number, and "
        f"this function returns {shown}. Wrap the loss as a whole, with `has_aux=True` if it "
        "returns more; or plan the step that calls this function, with `jaxswap.swap_offload`."
    )


def differentiate(call: Callable, flags: Sequence[bool], has_aux: bool) -> Callable:
    """`value_and_grad` of a function of arrays, with respect to some of them."""

    def step(*arrays: Any) -> Any:
        wanted = [x for ok, x in zip(flags, arrays, strict=True) if ok]

        def loss(*xs: Any) -> Any:
            rest = iter(xs)
            out = call(*(next(rest) if ok else x for ok, x in zip(flags, arrays, strict=True)))
            _check_loss(out[0] if has_aux else out)
            return out

        numbers = tuple(range(len(wanted)))
        out = jax.value_and_grad(loss, argnums=numbers, has_aux=has_aux)(*wanted)
        # `jax.grad` passes on whatever is auxiliary; a step returns arrays.
        return [x for x in jax.tree.leaves(out) if jx.valid_jaxtype(x)]

    return step
