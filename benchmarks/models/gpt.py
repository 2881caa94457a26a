"""GPT: how large is the training step of a decoder-only transformer?

Input: sizes. Output: a `Workload` for next-token prediction with AdamW.
The one convention: `scan` and `remat` change how the same function is differentiated, never
the function; `analytic_flops` is that of the step without recomputation.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from benchmarks.models._attention import add_attention, count_attention_macs
from benchmarks.models._remat import stack_blocks
from benchmarks.models._workload import Workload, make_workload, parse_dtype


class Block(nn.Module):
    heads: int
    dtype: Any

    @nn.compact
    def __call__(self, x):
        d, t = x.shape[-1], self.dtype
        x = checkpoint_name(x, "input")
        x = add_attention(x, self.heads, t, is_causal=True)
        h = nn.Dense(4 * d, dtype=t)(nn.LayerNorm(dtype=t)(x))
        return x + nn.Dense(d, dtype=t)(nn.gelu(checkpoint_name(h, "hidden")))


class GPT(nn.Module):
    layers: int
    d_model: int
    heads: int
    vocab: int
    dtype: Any
    scan: bool
    remat: str | None

    @nn.compact
    def __call__(self, tokens):
        seq, t = tokens.shape[1], self.dtype
        x = nn.Embed(self.vocab, self.d_model, dtype=t)(tokens)
        x = x + nn.Embed(seq, self.d_model, dtype=t)(jnp.arange(seq))
        fields = {"heads": self.heads, "dtype": t}
        x = stack_blocks(Block, x, fields, layers=self.layers, scan=self.scan, remat=self.remat)
        return nn.Dense(self.vocab, dtype=t, use_bias=False)(nn.LayerNorm(dtype=t)(x))


def next_token_loss(apply, tokens):
    logits = apply(tokens)[:, :-1].astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def draw_tokens(batch: int, seq: int, vocab: int):
    return lambda key: (jax.random.randint(key, (batch, seq), 0, vocab),)


def count_flops(model: GPT, *, seq: int, batch: int) -> int:
    """Counts a step's matmul FLOPs; embeddings are looked up, which costs none."""
    d = model.d_model
    dense = (3 + 1 + 4 + 4) * d**2  # qkv, projection, and the two of the MLP
    block = dense + count_attention_macs(seq=seq, d_model=d)
    forward_macs = batch * seq * (model.layers * block + d * model.vocab)
    # The embeddings are trained, so that even the first matmul has an input gradient.
    return 3 * 2 * forward_macs


def build_gpt(
    *,
    name: str = "gpt2-small",
    layers: int = 12,
    d_model: int = 768,
    heads: int = 12,
    seq: int = 1024,
    vocab: int = 32_000,
    batch: int = 16,
    dtype: str = "bf16",
    scan: bool = False,
    remat: str | None = None,
) -> Workload:
    model = GPT(
        layers=layers,
        d_model=d_model,
        heads=heads,
        vocab=vocab,
        dtype=parse_dtype(dtype),
        scan=scan,
        remat=remat,
    )
    return make_workload(
        name=name,
        model=model,
        loss=next_token_loss,
        optimizer=optax.adamw(1e-3),
        draw=draw_tokens(batch, seq, vocab),
        samples=batch,
        dtype=dtype,
        analytic_flops=count_flops(model, seq=seq, batch=batch),
    )
