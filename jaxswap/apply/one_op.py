"""One op: how does a function of arrays become one equation?

Input: a function that is differentiable by JAX. Output: a primitive that computes it, known to
whoever reads a program by its name, and to XLA by what it is made of.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.interpreters import ad, batching, mlir

from jaxswap.apply.jaxprs import jx


def make_op(
    name: str, fn: Callable[..., jax.Array], on_cpu: Callable[..., jax.Array] | None = None
) -> Any:
    """A primitive for `fn`, whose array arguments are positional and whose settings are not.

    Args:
        name: the primitive's.
        fn: what it computes.
        on_cpu: the same in the way of the step as written, for steps that are jitted on the CPU:
            they have no device memory to save there, and XLA fuses what `fn` is made of in ways
            that change last bits.

    Example:
        >>> import jax.numpy as jnp
        >>> twice_p = make_op("twice", lambda x: 2.0 * x)
        >>> float(jax.grad(twice_p.bind)(3.0))
        2.0
    """
    primitive = jx.Primitive(name)

    def call(*operands: Any, **settings: Any) -> jax.Array:
        return fn(*operands, **settings)

    def describe(*avals: Any, **settings: Any) -> Any:
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
        made = jax.eval_shape(lambda *xs: fn(*xs, **settings), *shapes)
        return jx.ShapedArray(made.shape, made.dtype)

    def differentiate(primals: Any, tangents: Any, **settings: Any) -> Any:
        tangents = tuple(ad.instantiate_zeros(t) for t in tangents)
        return jax.jvp(lambda *xs: fn(*xs, **settings), tuple(primals), tangents)

    def batch(operands: Any, dims: Any, **settings: Any) -> Any:
        return jax.vmap(lambda *xs: fn(*xs, **settings), in_axes=tuple(dims))(*operands), 0

    primitive.def_impl(call)
    primitive.def_abstract_eval(describe)
    ad.primitive_jvps[primitive] = differentiate
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(call, multiple_results=False))
    if on_cpu is not None:
        as_written = mlir.lower_fun(on_cpu, multiple_results=False)
        mlir.register_lowering(primitive, as_written, platform="cpu")
    return primitive
