"""LSTM: how large is the training step of a recurrent language model?

Input: sizes. Output: a `Workload` for next-token prediction with Adam.
The one convention: each layer is one scan over time, layer after layer; its carry is in f32,
and the gates in the activations' dtype.
"""

from typing import Any

import jax.numpy as jnp
import optax
from flax import linen as nn

from benchmarks.models._remat import recompute_block
from benchmarks.models._workload import Workload, make_workload, parse_dtype
from benchmarks.models.gpt import draw_tokens, next_token_loss


class LSTM(nn.Module):
    layers: int
    d_model: int
    vocab: int
    dtype: Any
    remat: str | None

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(self.vocab, self.d_model, dtype=self.dtype)(tokens)
        cell = recompute_block(nn.OptimizedLSTMCell, self.remat, in_loop=True)
        for layer in range(self.layers):
            name = f"OptimizedLSTMCell_{layer}"
            step = cell(self.d_model, dtype=self.dtype, name=name)
            x = jnp.asarray(nn.RNN(step)(x), self.dtype)
        return nn.Dense(self.vocab, dtype=self.dtype)(x)


def count_flops(model: LSTM, *, seq: int, batch: int) -> int:
    """Counts a step's matmul FLOPs; the embeddings are trained, so all have both gradients."""
    cell = 4 * 2 * model.d_model**2  # four gates, each of the input and of the last output
    return 3 * 2 * batch * seq * (model.layers * cell + model.d_model * model.vocab)


def build_lstm(
    *,
    name: str = "lstm",
    layers: int = 2,
    d_model: int = 1024,
    seq: int = 1024,
    vocab: int = 10_000,
    batch: int = 64,
    dtype: str = "f32",
    remat: str | None = None,
) -> Workload:
    model = LSTM(layers=layers, d_model=d_model, vocab=vocab, dtype=parse_dtype(dtype), remat=remat)
    return make_workload(
        name=name,
        model=model,
        loss=next_token_loss,
        optimizer=optax.adam(1e-3),
        draw=draw_tokens(batch, seq, vocab),
        samples=batch,
        dtype=dtype,
        analytic_flops=count_flops(model, seq=seq, batch=batch),
    )
