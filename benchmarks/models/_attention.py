"""Attention: how do queries read values, and what does it cost?

Input: `[batch, seq, heads, d]` queries, keys and values. Output: `[batch, seq, heads * d]`.
The one convention: written out as full matmuls, so that the `[batch, heads, seq, seq]` weights
are values of the program, as in most Flax code. A causal mask therefore saves no FLOPs.
"""

import jax
import jax.numpy as jnp


def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Takes the softmax-weighted mean of the values; the softmax is in f32."""
    (b, s, h, d), dtype = q.shape, q.dtype
    a = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(d).astype(dtype)
    if mask is not None:
        a = jnp.where(mask, a, jnp.finfo(dtype).min)
    a = jax.nn.softmax(a.astype(jnp.float32)).astype(dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", a, v).reshape(b, s, h * d)


def mask_future(seq: int) -> jax.Array:
    """Lets each position read itself and what came before it."""
    return jnp.tril(jnp.ones((seq, seq), bool))


def count_attention_macs(*, seq: int, d_model: int) -> int:
    """Counts, per token and layer, the scores and the weighted sum of the values."""
    return 2 * seq * d_model
