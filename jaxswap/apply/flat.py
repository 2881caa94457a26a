"""Flat: how does a function of pytrees become a jaxpr, and its results pytrees again?

Input: a function and its arguments. Output: a `TracedFunction`.
Auxiliary results that are not arrays go around the jaxpr.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxswap.apply.jaxprs import jx


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TracedFunction:
    """A function of pytrees, traced.

    Attributes:
        closed: its `ClosedJaxpr` over the flattened arguments.
        num_main: how many of its outputs are not auxiliary.
        rebuild: makes the function's result from the jaxpr's.
    """

    closed: Any
    num_main: int
    rebuild: Callable


def trace_flat(fun: Callable, primals: tuple, has_aux: bool) -> TracedFunction:
    """Traces a function of pytrees to a jaxpr; results that are not arrays go around it."""
    leaves, tree = jax.tree.flatten(primals)
    shape: dict[str, Any] = {}

    def flat_fun(*xs):
        out = fun(*jax.tree.unflatten(tree, xs))
        main, aux = out if has_aux else (out, ())
        main_leaves, main_tree = jax.tree.flatten(main)
        aux_leaves, aux_tree = jax.tree.flatten(aux)
        is_array = [jx.valid_jaxtype(x) for x in aux_leaves]
        others = [None if ok else x for ok, x in zip(is_array, aux_leaves, strict=True)]
        shape.update(main=main_tree, aux=aux_tree, is_array=is_array, others=others)
        shape["num_main"] = len(main_leaves)
        return main_leaves + [x for ok, x in zip(is_array, aux_leaves, strict=True) if ok]

    closed = jax.make_jaxpr(flat_fun)(*leaves)
    num_main = shape["num_main"]

    def rebuild(out: Sequence[Any]) -> Any:
        main = jax.tree.unflatten(shape["main"], out[:num_main])
        if not has_aux:
            return main
        arrays = iter(out[num_main:])
        aux = [
            next(arrays) if ok else other
            for ok, other in zip(shape["is_array"], shape["others"], strict=True)
        ]
        return main, jax.tree.unflatten(shape["aux"], aux)

    return TracedFunction(closed=closed, num_main=num_main, rebuild=rebuild)
