"""BERT: how large is the pre-training step of a bidirectional encoder?

Input: sizes. Output: a `Workload` for masked tokens and next-sentence prediction, AdamW.
The one convention: the vocabulary is scored only at `max_predictions` positions per sequence,
gathered before the head, as in the published pre-training code.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from benchmarks.models._attention import attend, count_attention_macs
from benchmarks.models._remat import recompute_block
from benchmarks.models._workload import Batch, Workload, make_workload, parse_dtype

SEGMENTS = SENTENCE_CLASSES = 2


class Layer(nn.Module):
    heads: int
    dropout: float
    dtype: Any

    @nn.compact
    def __call__(self, x, mask):
        (b, s, d), t = x.shape, self.dtype
        drop = nn.Dropout(self.dropout, deterministic=False)
        x = checkpoint_name(x, "input")
        qkv = checkpoint_name(nn.Dense(3 * d, dtype=t)(x), "qkv")
        qkv = qkv.reshape(b, s, 3 * self.heads, d // self.heads)
        q, k, v = jnp.split(qkv, 3, axis=2)
        a = checkpoint_name(attend(q, k, v, mask[:, None, None, :]), "attention")
        x = nn.LayerNorm(dtype=t)(x + drop(nn.Dense(d, dtype=t)(a)))
        narrow = nn.Dense(d, dtype=t)
        h = checkpoint_name(nn.Dense(4 * d, dtype=t)(x), "hidden")
        h = narrow(nn.gelu(h))
        return nn.LayerNorm(dtype=t)(x + drop(h))


class Bert(nn.Module):
    layers: int
    d_model: int
    heads: int
    vocab: int
    dropout: float
    dtype: Any
    remat: str | None

    @nn.compact
    def __call__(self, tokens, segments, mask, positions):
        d, t = self.d_model, self.dtype
        embed = partial(nn.Embed, features=d, dtype=t)
        words = embed(self.vocab)
        x = words(tokens) + embed(SEGMENTS)(segments)
        x = x + embed(tokens.shape[1])(jnp.arange(tokens.shape[1]))
        x = nn.LayerNorm(dtype=t)(x)
        x = nn.Dropout(self.dropout, deterministic=False)(x)
        layer = recompute_block(Layer, self.remat)
        for number in range(self.layers):
            x = layer(self.heads, self.dropout, t, name=f"Layer_{number}")(x, mask)
        masked = jnp.take_along_axis(x, positions[..., None], axis=1)
        masked = nn.LayerNorm(dtype=t)(nn.gelu(nn.Dense(d, dtype=t)(masked)))
        bias = self.param("bias", nn.initializers.zeros, (self.vocab,))
        word_logits = words.attend(masked) + bias.astype(t)
        pooled = nn.tanh(nn.Dense(d, dtype=t)(x[:, 0]))
        return word_logits, nn.Dense(SENTENCE_CLASSES, dtype=t)(pooled)


def pretraining_loss(apply, tokens, segments, mask, positions, words, follows):
    word_logits, follows_logits = apply(tokens, segments, mask, positions)
    score = optax.softmax_cross_entropy_with_integer_labels
    return (
        score(word_logits.astype(jnp.float32), words).mean()
        + score(follows_logits.astype(jnp.float32), follows).mean()
    )


def draw_batch(*, batch: int, seq: int, vocab: int, max_predictions: int):
    def draw(key: jax.Array) -> Batch:
        keys = jax.random.split(key, 4)
        pick = jax.random.randint
        return (
            pick(keys[0], (batch, seq), 0, vocab),
            jnp.broadcast_to(jnp.arange(seq) * SEGMENTS // seq, (batch, seq)),
            jnp.ones((batch, seq), bool),
            pick(keys[1], (batch, max_predictions), 0, seq),
            pick(keys[2], (batch, max_predictions), 0, vocab),
            pick(keys[3], (batch,), 0, SENTENCE_CLASSES),
        )

    return draw


def count_flops(model: Bert, *, seq: int, max_predictions: int, batch: int) -> int:
    """Counts a step's matmul FLOPs; the embeddings are trained, so all have both gradients."""
    d = model.d_model
    dense = (3 + 1 + 4 + 4) * d**2  # qkv, projection, and the two of the MLP
    encoder = seq * model.layers * (dense + count_attention_macs(seq=seq, d_model=d))
    words = max_predictions * (d**2 + d * model.vocab)
    follows = d**2 + d * SENTENCE_CLASSES
    return 3 * 2 * batch * (encoder + words + follows)


def build_bert(
    *,
    name: str = "bert-base",
    layers: int = 12,
    d_model: int = 768,
    heads: int = 12,
    seq: int = 128,
    vocab: int = 30_522,
    max_predictions: int = 20,
    dropout: float = 0.0,
    batch: int = 64,
    dtype: str = "bf16",
    remat: str | None = None,
) -> Workload:
    model = Bert(
        layers=layers,
        d_model=d_model,
        heads=heads,
        vocab=vocab,
        dropout=dropout,
        dtype=parse_dtype(dtype),
        remat=remat,
    )
    return make_workload(
        name=name,
        model=model,
        loss=pretraining_loss,
        optimizer=optax.adamw(1e-4, weight_decay=0.01),
        draw=draw_batch(batch=batch, seq=seq, vocab=vocab, max_predictions=max_predictions),
        num_inputs=4,
        dropout=dropout,
        samples=batch,
        dtype=dtype,
        analytic_flops=count_flops(model, seq=seq, max_predictions=max_predictions, batch=batch),
    )
