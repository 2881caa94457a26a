"""A ResNet with batch statistics in Flax NNX: does it train the same with activations offloaded?

python examples/resnet_nnx/train.py --steps 60 --device rtx4090

The images are made here: gratings of eight directions, in noise.
"""

import pathlib
import sys

import numpy as np
import optax
from flax import nnx

from jaxswap import swap_offload

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import side_by_side

CLASSES = 8


class Block(nnx.Module):
    def __init__(self, width_in, width, stride, *, rngs):
        conv = lambda a, b, size, stride: nnx.Conv(
            a, b, (size, size), strides=stride, use_bias=False, rngs=rngs
        )
        self.first, self.second = conv(width_in, width, 3, stride), conv(width, width, 3, 1)
        self.norms = nnx.List([nnx.BatchNorm(width, rngs=rngs) for _ in range(2)])
        self.short = conv(width_in, width, 1, stride)

    def __call__(self, x):
        h = nnx.relu(self.norms[0](self.first(x)))
        return nnx.relu(self.short(x) + self.norms[1](self.second(h)))


class ResNet(nnx.Module):
    def __init__(self, widths, *, rngs):
        self.stem = nnx.Conv(1, widths[0], (3, 3), use_bias=False, rngs=rngs)
        pairs = zip((widths[0], *widths), widths, strict=False)
        self.blocks = nnx.List(
            [Block(a, b, 1 if k == 0 else 2, rngs=rngs) for k, (a, b) in enumerate(pairs)]
        )
        self.head = nnx.Linear(widths[-1], CLASSES, rngs=rngs)

    def __call__(self, images):
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(axis=(1, 2)))


def make_images(rng, batch, size):
    """Gratings in noise, and their directions."""
    labels = rng.integers(0, CLASSES, batch)
    angles = (labels * np.pi / CLASSES)[:, None, None]
    y, x = np.mgrid[:size, :size]
    waves = np.sin(
        0.8 * (np.cos(angles) * x + np.sin(angles) * y) + rng.uniform(0, 6, (batch, 1, 1))
    )
    images = waves + rng.standard_normal(waves.shape)
    return images[..., None].astype(np.float32), labels.astype(np.int32)


def build(*, batch=64, size=32, widths=(16, 32)):
    """The step, the state, and a function that makes the k-th batch."""
    model = ResNet(widths, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.05, momentum=0.9), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def train_step(state, batch):
        model, optimizer = nnx.merge(graph, state)
        images, labels = batch

        def loss_fn(model):
            logits = model(images)  # and updates the batch statistics
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    return train_step, state, lambda k: make_images(np.random.default_rng(k), batch, size)


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
