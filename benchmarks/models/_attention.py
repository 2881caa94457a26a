"""Attention: how do queries read values, and what does it cost?

Input: `[batch, seq, heads, d]` queries, keys and values. Output: `[batch, seq, heads * d]`.
The one convention: written out as full matmuls, so that the `[batch, heads, seq, seq]` weights
are values of the program, as in most Flax code. A causal mask therefore saves no FLOPs.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name


def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Takes the softmax-weighted mean of the values; the softmax is in f32."""
    (b, s, h, d), dtype = q.shape, q.dtype
    a = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(d).astype(dtype)
    if mask is not None:
        a = jnp.where(mask, a, jnp.finfo(dtype).min)
    a = jax.nn.softmax(a.astype(jnp.float32)).astype(dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", a, v).reshape(b, s, h * d)


def add_attention(x: jax.Array, heads: int, dtype: Any, *, is_causal: bool) -> jax.Array:
    """Adds self-attention to `[batch, seq, d]`; its layers belong to the module that calls it."""
    b, s, d = x.shape
    qkv = nn.Dense(3 * d, dtype=dtype)(nn.LayerNorm(dtype=dtype)(x))
    qkv = checkpoint_name(qkv, "qkv").reshape(b, s, 3 * heads, d // heads)
    q, k, v = jnp.split(qkv, 3, axis=2)
    a = attend(q, k, v, mask_future(s) if is_causal else None)
    return x + nn.Dense(d, dtype=dtype)(checkpoint_name(a, "attention"))


def mask_future(seq: int) -> jax.Array:
    """Lets each position read itself and what came before it."""
    return jnp.tril(jnp.ones((seq, seq), bool))


def count_attention_macs(*, seq: int, d_model: int) -> int:
    """Counts, per token and layer, the scores and the weighted sum of the values."""
    return 2 * seq * d_model
