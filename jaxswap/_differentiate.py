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


def differentiate(call: Callable, flags: Sequence[bool], has_aux: bool) -> Callable:
    """`value_and_grad` of a function of arrays, with respect to some of them."""

    def step(*arrays: Any) -> Any:
        wanted = [x for ok, x in zip(flags, arrays, strict=True) if ok]

        def loss(*xs: Any) -> Any:
            rest = iter(xs)
            return call(*(next(rest) if ok else x for ok, x in zip(flags, arrays, strict=True)))

        numbers = tuple(range(len(wanted)))
        return jax.value_and_grad(loss, argnums=numbers, has_aux=has_aux)(*wanted)

    return step
