"""An MLP-Mixer in Equinox: does it train the same with its activations offloaded?

python examples/mixer_equinox/train.py --steps 60 --device rtx4090

The images are made here: four shapes, anywhere, in noise.
"""

import pathlib
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxswap import swap_offload

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import side_by_side

CLASSES = 4
PATCH = 4
OPTIMIZER = optax.adam(1e-3)


class Norm(eqx.Module):
    scale: jax.Array

    def __init__(self, width):
        self.scale = jnp.ones(width)

    def __call__(self, x):
        return self.scale * x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


class Mixer(eqx.Module):
    """Works on a batch: `[images, patches, width]`."""

    embed: jax.Array
    blocks: list
    norm: Norm
    head: jax.Array

    def __init__(self, patches, width, layers, key):
        keys = iter(jax.random.split(key, 2 + 4 * layers))
        weight = lambda a, b: jax.random.normal(next(keys), (a, b)) * a**-0.5
        self.embed = weight(PATCH * PATCH, width)
        self.blocks = [Block(patches, width, weight) for _ in range(layers)]
        self.norm = Norm(width)
        self.head = weight(width, CLASSES)

    def __call__(self, patches):
        x = patches @ self.embed
        for block in self.blocks:
            x = block(x)
        return self.norm(x).mean(axis=1) @ self.head


class Block(eqx.Module):
    mix_patches: tuple
    mix_channels: tuple
    norms: tuple

    def __init__(self, patches, width, weight):
        self.mix_patches = (weight(patches, 2 * patches), weight(2 * patches, patches))
        self.mix_channels = (weight(width, 2 * width), weight(2 * width, width))
        self.norms = (Norm(width), Norm(width))

    def __call__(self, x):
        up, down = self.mix_patches
        h = jnp.einsum("bpc,pq->bqc", self.norms[0](x), up)
        x = x + jnp.einsum("bqc,qp->bpc", jax.nn.gelu(h), down)
        up, down = self.mix_channels
        return x + jax.nn.gelu(self.norms[1](x) @ up) @ down


def make_images(rng, batch, size):
    """A bar that stands, a bar that lies, a square or a frame, as patches, and which it is."""
    images = 0.5 * rng.standard_normal((batch, size, size))
    labels = rng.integers(0, CLASSES, batch)
    for image, label in zip(images, labels, strict=True):
        y, x = rng.integers(0, size - 8, 2)
        part = image[y : y + 8, x : x + 8]
        shown = {0: part[:, 3:5], 1: part[3:5], 2: part, 3: part}[int(label)]
        shown += 2
        if label == 3:
            part[2:6, 2:6] -= 2
    grid = images.reshape(batch, size // PATCH, PATCH, size // PATCH, PATCH).swapaxes(2, 3)
    return grid.reshape(batch, -1, PATCH * PATCH).astype(np.float32), labels.astype(np.int32)


def build(*, batch=64, size=32, width=64, layers=2):
    """The step, the state, and a function that makes the k-th batch."""
    model = Mixer((size // PATCH) ** 2, width, layers, jax.random.key(0))
    arrays, static = eqx.partition(model, eqx.is_array)

    def train_step(state, batch):
        arrays, optimizer_state = state
        patches, labels = batch

        @eqx.filter_value_and_grad
        def loss_fn(model):
            logits = model(patches)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        model = eqx.combine(arrays, static)
        loss, grads = loss_fn(model)
        updates, optimizer_state = OPTIMIZER.update(grads, optimizer_state)
        model = eqx.apply_updates(model, updates)
        return (eqx.filter(model, eqx.is_array), optimizer_state), loss

    make_batch = lambda k: make_images(np.random.default_rng(k), batch, size)
    return train_step, (arrays, OPTIMIZER.init(arrays)), make_batch


def run(*, steps, device, planner, **sizes):
    """Trains with and without jaxswap."""
    train_step, state, make_batch = build(**sizes)
    needs = side_by_side.forecast_bytes(train_step, state, make_batch(0), device)
    # A step this small fits any GPU: it gets 70 % of what it needs, so that something has to go.
    swapped = swap_offload(
        train_step, budget=int(0.7 * needs), device=device, planner=planner, confirm=False,
        donate_argnums=0,
    )  # fmt: skip
    return side_by_side.train_all(train_step, swapped, state, make_batch, steps)


if __name__ == "__main__":
    side_by_side.main(run, __file__, __doc__)
