"""MoE: how large is the training step of a transformer whose MLPs are mixtures of experts?

Input: sizes. Output: a `Workload` for next-token prediction with AdamW.
The one convention: dispatch is dense, as in GShard (Lepikhin et al. 2020): each sequence gives
each expert `capacity` places, one-hot einsums carry tokens there and back, and a token that
finds no place skips the expert. Unlike GShard, places are given in order, never at random.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from benchmarks.models._attention import add_attention, count_attention_macs
from benchmarks.models._remat import recompute_block
from benchmarks.models._workload import Workload, make_workload, parse_dtype
from benchmarks.models.gpt import draw_tokens, next_token_loss

BALANCE_WEIGHT = 0.01  # of the loss that keeps the experts equally busy


def count_places(*, seq: int, experts: int, top_k: int, capacity_factor: float) -> int:
    """Counts the tokens that one expert takes from one sequence."""
    return math.ceil(capacity_factor * top_k * seq / experts)


def route(gates: jax.Array, *, top_k: int, places: int) -> jax.Array:
    """Gives each token's gate at the expert and the place it goes to, else zero.

    Args:
        gates: `[batch, seq, experts]`, positive, summing to one over the experts.
        top_k: how many experts a token asks for; their gates are scaled to sum to one.
        places: how many tokens an expert takes from a sequence; first come, first served.

    Returns:
        `[batch, seq, experts, places]`.
    """
    b, s, e = gates.shape
    weights, chosen = jax.lax.top_k(gates, top_k)
    weights = weights / weights.sum(-1, keepdims=True)
    asks = jax.nn.one_hot(chosen, e, dtype=jnp.int32)  # [batch, seq, top_k, experts]
    place = (jnp.cumsum(asks.reshape(b, s * top_k, e), axis=1) - 1).reshape(asks.shape)
    # A place beyond the last is a row of zeros: the token is dropped.
    taken = jax.nn.one_hot(jnp.where(asks == 1, place, -1), places, dtype=gates.dtype)
    return (weights[..., None, None] * taken).sum(axis=2)


class Experts(nn.Module):
    experts: int
    top_k: int
    places: int
    dtype: Any

    @nn.compact
    def __call__(self, x):
        d, t = x.shape[-1], self.dtype
        init = nn.initializers.lecun_normal(batch_axis=(0,))
        first = self.param("first", init, (self.experts, d, 4 * d)).astype(t)
        second = self.param("second", init, (self.experts, 4 * d, d)).astype(t)
        gates = nn.softmax(nn.Dense(self.experts, use_bias=False, dtype=jnp.float32)(x))
        combine = route(gates, top_k=self.top_k, places=self.places)
        h = jnp.einsum("bsec,bsd->becd", (combine > 0).astype(t), x)
        h = checkpoint_name(jnp.einsum("becd,edf->becf", h, first), "hidden")
        h = jnp.einsum("becf,efd->becd", nn.gelu(h), second)
        busy = (combine > 0).any(-1).astype(jnp.float32).mean((0, 1)) / self.top_k
        balance = self.experts * (busy * gates.mean((0, 1))).sum()
        return jnp.einsum("bsec,becd->bsd", combine.astype(t), h), balance


class Block(nn.Module):
    heads: int
    experts: int
    top_k: int
    places: int
    dtype: Any

    @nn.compact
    def __call__(self, x):
        t = self.dtype
        x = checkpoint_name(x, "input")
        x = add_attention(x, self.heads, t, is_causal=True)
        mix = Experts(self.experts, self.top_k, self.places, t)
        y, busy = mix(nn.LayerNorm(dtype=t)(x))
        return x + y, busy


class MoE(nn.Module):
    layers: int
    d_model: int
    heads: int
    experts: int
    top_k: int
    places: int
    vocab: int
    dtype: Any
    remat: str | None

    @nn.compact
    def __call__(self, tokens):
        s, d, t = tokens.shape[1], self.d_model, self.dtype
        x = nn.Embed(self.vocab, d, dtype=t)(tokens) + nn.Embed(s, d, dtype=t)(jnp.arange(s))
        balance = 0.0
        block, sizes = recompute_block(Block, self.remat), (self.experts, self.top_k, self.places)
        for layer in range(self.layers):
            x, busy = block(self.heads, *sizes, t, name=f"Block_{layer}")(x)
            balance = balance + busy / self.layers
        logits = nn.Dense(self.vocab, dtype=t, use_bias=False)(nn.LayerNorm(dtype=t)(x))
        return logits, balance


def balanced_loss(apply, tokens):
    logits, balance = apply(tokens)
    return next_token_loss(lambda _: logits, tokens) + BALANCE_WEIGHT * balance


def count_flops(model: MoE, *, seq: int, batch: int) -> int:
    """Counts a step's matmul FLOPs; which place a token gets is a fact, with no gradient."""
    d, slots = model.d_model, model.experts * model.places
    attention = seq * (4 * d**2 + count_attention_macs(seq=seq, d_model=d))
    router = seq * d * model.experts
    carry = seq * slots * d  # to the experts, and as much back
    mlps = slots * 2 * 4 * d**2
    block = 3 * (attention + router + mlps) + 2 * carry + 3 * carry
    return 2 * batch * (model.layers * block + 3 * seq * d * model.vocab)


def build_moe(
    *,
    name: str = "moe",
    layers: int = 8,
    d_model: int = 512,
    heads: int = 8,
    experts: int = 8,
    top_k: int = 2,
    capacity_factor: float = 1.25,
    seq: int = 512,
    vocab: int = 32_000,
    batch: int = 16,
    dtype: str = "bf16",
    remat: str | None = None,
) -> Workload:
    places = count_places(seq=seq, experts=experts, top_k=top_k, capacity_factor=capacity_factor)
    model = MoE(
        layers=layers,
        d_model=d_model,
        heads=heads,
        experts=experts,
        top_k=top_k,
        places=places,
        vocab=vocab,
        dtype=parse_dtype(dtype),
        remat=remat,
    )
    return make_workload(
        name=name,
        model=model,
        loss=balanced_loss,
        optimizer=optax.adamw(1e-3),
        draw=draw_tokens(batch, seq, vocab),
        samples=batch,
        dtype=dtype,
        analytic_flops=count_flops(model, seq=seq, batch=batch),
    )
