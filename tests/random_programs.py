"""Random differentiable programs: what might a user's loss function look like?

A program is a list of instructions over a growing list of arrays, all of shape (3, 4): each
reads earlier arrays, so that values are shared between branches, and appends one.
"""

from collections.abc import Callable

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

SHAPE = (3, 4)

UNARY: dict[str, Callable] = {
    "tanh": jnp.tanh,
    "sin": jnp.sin,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "softmax": jax.nn.softmax,
    "normalise": lambda x: x / (1.0 + jnp.abs(x).sum(-1, keepdims=True)),
    "jit": jax.jit(lambda x: jnp.cos(x) * x),
    "checkpoint": jax.checkpoint(lambda x: jnp.sin(jnp.tanh(x))),
    "cond": lambda x: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.tanh, x),
    "stop": lambda x: x + jax.lax.stop_gradient(jnp.exp(-x * x)),
    "name": lambda x: checkpoint_name(jnp.tanh(2 * x), "user"),
    "sort": lambda x: jnp.sort(x, axis=-1),
}
BINARY: dict[str, Callable] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: jnp.tanh(x) * y,
    "where": lambda x, y: jnp.where(x > y, x, 0.5 * y),
    "product": lambda x, y: x @ y.T @ y / 10,
}


def dense(x, w):
    return jnp.tanh(x @ w)


def scan(x, w, *, reverse=False):
    """A loop with a carry, a constant, inputs and outputs."""

    def body(carry, scale):
        hidden = jnp.tanh(carry @ w) * scale
        return hidden + jnp.sin(carry), hidden

    carry, outputs = jax.lax.scan(body, x, jnp.linspace(0.5, 1.0, 3), reverse=reverse)
    return carry + outputs.mean(0)


def nested(x, w):
    """A loop in a loop."""

    def outer(carry, _):
        def inner(c, _):
            return jnp.tanh(c @ w) + 0.1 * carry, None

        return jax.lax.scan(inner, carry, None, length=2)[0], None

    return jax.lax.scan(outer, x, None, length=3)[0]


WEIGHTED: dict[str, Callable] = {
    "dense": dense,
    "scan": scan,
    "reversed": lambda x, w: scan(x, w, reverse=True),
    "nested": nested,
    "remat_dense": jax.checkpoint(lambda x, w: jnp.sin(dense(dense(x, w), w))),
}


@st.composite
def programs(draw, max_size: int = 5):
    """Lists of `(op, input, input)`; the inputs count back from the newest array."""
    ops = [*UNARY, *BINARY, *WEIGHTED, *WEIGHTED]
    reach = st.integers(0, 3)
    instruction = st.tuples(st.sampled_from(ops), reach, reach)
    return draw(st.lists(instruction, min_size=1, max_size=max_size))


def build_loss(program: list[tuple[str, int, int]]) -> Callable:
    """A scalar loss of weights (n, 4, 4) and an input of shape (3, 4)."""

    def loss(weights, x):
        values = [x]
        for i, (op, a, b) in enumerate(program):
            first, second = (values[-1 - min(k, len(values) - 1)] for k in (a, b))
            if op in UNARY:
                values.append(UNARY[op](first))
            elif op in BINARY:
                values.append(BINARY[op](first, second))
            else:
                values.append(WEIGHTED[op](first, weights[i % len(weights)]))
        return jnp.mean(values[-1] ** 2) + 0.1 * jnp.mean(values[len(values) // 2])

    return loss
