"""Llama: how large is the training step of a modern decoder of about a billion parameters?

Input: sizes (TinyLlama's by default). Output: a `Workload` for next-token prediction, AdamW.
The one convention: `heads` counts queries and `kv_heads` keys and values; each of the latter is
read by `heads / kv_heads` queries (grouped-query attention).
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from benchmarks.models._attention import attend, count_attention_macs, mask_future
from benchmarks.models._remat import stack_blocks
from benchmarks.models._workload import Workload, make_workload, parse_dtype
from benchmarks.models.gpt import draw_tokens, next_token_loss


def rotate(x: jax.Array, *, base: float = 10_000.0) -> jax.Array:
    """Turns each pair of features by an angle that grows with the position (RoPE)."""
    seq, d = x.shape[1], x.shape[-1]
    frequency = base ** (-jnp.arange(0, d, 2, dtype=jnp.float32) / d)
    angle = jnp.arange(seq, dtype=jnp.float32)[:, None, None] * frequency
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


class Block(nn.Module):
    heads: int
    kv_heads: int
    d_hidden: int
    dtype: Any

    @nn.compact
    def __call__(self, x):
        (b, s, d), t = x.shape, self.dtype
        dense = lambda features: nn.Dense(features, use_bias=False, dtype=t)
        x = checkpoint_name(x, "input")
        width = d // self.heads
        qkv = dense((self.heads + 2 * self.kv_heads) * width)(nn.RMSNorm(dtype=t)(x))
        qkv = checkpoint_name(qkv, "qkv").reshape(b, s, -1, width)
        q, k, v = jnp.split(qkv, [self.heads, self.heads + self.kv_heads], axis=2)
        k, v = (jnp.repeat(y, self.heads // self.kv_heads, axis=2) for y in (rotate(k), v))
        a = checkpoint_name(attend(rotate(q), k, v, mask_future(s)), "attention")
        x = x + dense(d)(a)
        h = checkpoint_name(dense(2 * self.d_hidden)(nn.RMSNorm(dtype=t)(x)), "hidden")
        gate, up = jnp.split(h, 2, axis=-1)
        return x + dense(d)(nn.silu(gate) * up)


class Llama(nn.Module):
    layers: int
    d_model: int
    vocab: int
    scan: bool
    remat: str | None
    heads: int
    kv_heads: int
    d_hidden: int
    dtype: Any

    @nn.compact
    def __call__(self, tokens):
        t = self.dtype
        x = nn.Embed(self.vocab, self.d_model, dtype=t)(tokens)
        fields = {name: getattr(self, name) for name in ("heads", "kv_heads", "d_hidden")}
        x = stack_blocks(
            Block,
            x,
            {**fields, "dtype": t},
            layers=self.layers,
            scan=self.scan,
            remat=self.remat,
        )
        return nn.Dense(self.vocab, dtype=t, use_bias=False)(nn.RMSNorm(dtype=t)(x))


def count_flops(model: Llama, *, seq: int, batch: int) -> int:
    """Counts a step's matmul FLOPs; grouping saves parameters of attention, not its matmuls."""
    d = model.d_model
    qkv = d * (model.heads + 2 * model.kv_heads) * (d // model.heads)
    dense = qkv + d**2 + 3 * d * model.d_hidden  # the projection; gate, up and down
    block = dense + count_attention_macs(seq=seq, d_model=d)
    return 3 * 2 * batch * seq * (model.layers * block + d * model.vocab)


def build_llama(
    *,
    name: str = "llama-1b",
    layers: int = 22,
    d_model: int = 2048,
    heads: int = 32,
    kv_heads: int = 4,
    d_hidden: int = 5632,
    seq: int = 2048,
    vocab: int = 32_000,
    batch: int = 4,
    dtype: str = "bf16",
    scan: bool = True,
    remat: str | None = None,
) -> Workload:
    model = Llama(
        layers=layers,
        d_model=d_model,
        heads=heads,
        kv_heads=kv_heads,
        d_hidden=d_hidden,
        vocab=vocab,
        dtype=parse_dtype(dtype),
        scan=scan,
        remat=remat,
    )
    return make_workload(
        name=name,
        model=model,
        loss=next_token_loss,
        optimizer=optax.adamw(3e-4, b2=0.95, weight_decay=0.1),
        draw=draw_tokens(batch, seq, vocab),
        samples=batch,
        dtype=dtype,
        analytic_flops=count_flops(model, seq=seq, batch=batch),
    )
