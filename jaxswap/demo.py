"""Demo: a training step to try jaxswap on, in plain JAX.

    jaxswap plan jaxswap.demo:step --device rtx4090 --budget 12GiB

A small language model: attention and a gated block per layer, Adam on float32 parameters, half
precision inside. It follows the convention of the command line: `step()` returns the step, its
arguments as shapes, and which of them it replaces.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

Params = dict[str, Any]


def step(
    *,
    batch: int = 40,
    seq: int = 1024,
    layers: int = 6,
    width: int = 1024,
    heads: int = 16,
    vocab: int = 16_384,
) -> tuple[Callable, tuple, tuple[int, ...]]:
    """A training step, its arguments as shapes, and which of them it replaces.

    Example:
        >>> train, args, donated = step(layers=1, width=64, heads=4, vocab=128, seq=32, batch=2)
        >>> jax.eval_shape(train, *args)[1].shape
        ()
    """
    shapes = jax.eval_shape(partial(_init, layers, width, vocab, seq), jax.random.key(0))
    state = {"params": shapes, "mean": shapes, "square": shapes, "steps": _shape((), jnp.int32)}
    return partial(_train, heads), (state, _shape((batch, seq + 1), jnp.int32)), (0,)


def _shape(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _init(layers: int, width: int, vocab: int, seq: int, key: jax.Array) -> Params:
    keys = iter(jax.random.split(key, 3 + 4 * layers))

    def weight(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) * shape[0] ** -0.5

    blocks = [
        {
            "qkv": weight(width, 3 * width),
            "out": weight(width, width),
            "up": weight(width, 4 * width),
            "down": weight(4 * width, width),
        }
        for _ in range(layers)
    ]
    embed, places = weight(vocab, width), weight(seq, width)
    return {"embed": embed, "places": places, "blocks": blocks, "head": weight(width, vocab)}


def _train(heads: int, state: Params, tokens: jax.Array) -> tuple[Params, jax.Array]:
    loss, grads = jax.value_and_grad(partial(_loss, heads))(state["params"], tokens)
    with jax.named_scope("Adam"):
        steps = state["steps"] + 1
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], grads)
        square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["square"], grads)
        scale = 1e-3 * jnp.sqrt(1 - 0.99**steps) / (1 - 0.9**steps)
        params = jax.tree.map(
            lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), state["params"], mean, square
        )
    return {"params": params, "mean": mean, "square": square, "steps": steps}, loss


def _loss(heads: int, params: Params, tokens: jax.Array) -> jax.Array:
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    with jax.named_scope("Embed"):
        x = half["embed"][tokens[:, :-1]] + half["places"]
    for number, block in enumerate(half["blocks"]):
        with jax.named_scope(f"Block_{number}"):
            x = _block(heads, block, x)
    with jax.named_scope("Head"):
        logits = (_normalise(x) @ half["head"]).astype(jnp.float32)
        picked = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def _block(heads: int, block: Params, x: jax.Array) -> jax.Array:
    batch, seq, width = x.shape
    with jax.named_scope("Attention"):
        qkv = (_normalise(x) @ block["qkv"]).reshape(batch, seq, 3, heads, width // heads)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones((seq, seq), bool)), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)
        x = x + mixed.reshape(batch, seq, width) @ block["out"]
    with jax.named_scope("MLP"):
        return x + jax.nn.gelu(_normalise(x) @ block["up"]) @ block["down"]


def _normalise(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype)
