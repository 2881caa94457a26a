"""Gradient accumulation with `lax.scan`: does it train the same with activations offloaded?

python examples/accumulate/train.py --steps 60 --device rtx4090

A large batch goes through the model in micro-batches. The differentiated function is inside of
the loop's body: what is offloaded comes back within one trip. Plain JAX and optax.
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxswap import swap_offload

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import side_by_side

OPTIMIZER = optax.adam(1e-3)
INPUTS = 16


def init(key, layers, width):
    sizes = [INPUTS, *[width] * layers, 1]
    keys = jax.random.split(key, layers + 1)
    params = [
        {"w": jax.random.normal(k, (a, b)) * (2 / a) ** 0.5, "b": jnp.zeros(b)}
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]
    return params, OPTIMIZER.init(params)


def loss_fn(params, x, y):
    for layer in params[:-1]:
        x = jax.nn.gelu(x @ layer["w"] + layer["b"])
    return jnp.mean((x @ params[-1]["w"] + params[-1]["b"] - y) ** 2)


def train_step(state, batch):
    """One update from the mean gradient of all micro-batches, the first axis of `batch`."""
    params, optimizer_state = state

    def add_micro_batch(total, micro_batch):
        found = jax.value_and_grad(loss_fn)(params, *micro_batch)
        return jax.tree.map(jnp.add, total, found), None

    zeros = jax.tree.map(jnp.zeros_like, (jnp.float32(0), params))
    total, _ = jax.lax.scan(add_micro_batch, zeros, batch)
    loss, grads = jax.tree.map(lambda x: x / len(batch[0]), total)
    updates, optimizer_state = OPTIMIZER.update(grads, optimizer_state, params)
    return (optax.apply_updates(params, updates), optimizer_state), loss


def build(*, micro_batches=4, batch=1024, layers=4, width=256):
    """The state, and a function that makes the k-th batch."""

    def make_batch(k):
        rng = np.random.default_rng(k)
        x = rng.standard_normal((micro_batches, batch, INPUTS)).astype(np.float32)
        return x, np.sin(x[..., :4]).sum(-1, keepdims=True)

    return init(jax.random.key(0), layers, width), make_batch


def run(*, steps, device, planner, **sizes):
    """Trains with and without jaxswap."""
    state, make_batch = build(**sizes)
    needs = side_by_side.forecast_bytes(train_step, state, make_batch(0), device)
    # A step this small fits any GPU: it gets 80 % of what it needs, so that something has to go.
    swapped = swap_offload(
        train_step, budget=int(0.8 * needs), device=device, planner=planner, confirm=False,
        donate_argnums=0,
    )  # fmt: skip
    return side_by_side.train_all(train_step, swapped, state, make_batch, steps)


if __name__ == "__main__":
    side_by_side.main(run, __file__, __doc__)
