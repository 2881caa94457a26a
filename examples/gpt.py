"""A GPT training step in Flax, as a target for the command line.

jaxswap verify examples/gpt.py:step --device rtx4090 --set batch=32

`char_gpt/train.py` trains the same model, small.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState


class Block(nn.Module):
    heads: int
    attention_bias: bool = True

    @nn.compact
    def __call__(self, x):
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2], bool), dtype=bool)
        attend = nn.MultiHeadDotProductAttention(
            self.heads, dtype=x.dtype, deterministic=True, use_bias=self.attention_bias
        )
        x = x + attend(nn.LayerNorm(dtype=x.dtype)(x), mask=mask)
        h = nn.gelu(nn.Dense(4 * x.shape[-1], dtype=x.dtype)(nn.LayerNorm(dtype=x.dtype)(x)))
        return x + nn.Dense(x.shape[-1], dtype=x.dtype)(h)


class GPT(nn.Module):
    layers: int
    width: int
    heads: int
    vocab: int
    dtype: Any = jnp.bfloat16
    attention_bias: bool = True

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(self.vocab, self.width, dtype=self.dtype)(tokens)
        x = x + nn.Embed(tokens.shape[1], self.width, dtype=self.dtype)(jnp.arange(tokens.shape[1]))
        for _ in range(self.layers):
            x = Block(self.heads, self.attention_bias)(x)
        return nn.Dense(self.vocab, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x))


def init(model, tokens, key):
    params = model.init(key, jnp.zeros(tokens.shape, tokens.dtype))
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-3))


def train_step(state, tokens):
    def loss_fn(params):
        logits = state.apply_fn(params, tokens)[:, :-1].astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def step(batch=16, seq=1024, layers=12, width=768, heads=12, vocab=32000):
    """The step, its arguments as shapes, and which of them it replaces."""
    model = GPT(layers, width, heads, vocab)
    tokens = jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    state = jax.eval_shape(lambda key: init(model, tokens, key), jax.random.key(0))
    return train_step, (state, tokens), (0,)
