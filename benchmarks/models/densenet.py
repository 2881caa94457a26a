"""DenseNet: how large is the training step of a network that keeps every feature it makes?

Input: sizes. Output: a `Workload` for image classification with SGD and momentum.
The one convention: each layer reads all the features of its stage and appends `growth` more; a
transition halves both the channels and the size.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
import optax
from flax import linen as nn

from benchmarks.models._vision import (
    CHANNELS,
    classification_loss,
    count_conv_macs,
    draw_images,
    halve,
)
from benchmarks.models._workload import Workload, make_workload, parse_dtype

BOTTLENECK = 4  # a layer's inner width, in units of the growth


class DenseNet(nn.Module):
    stages: tuple[int, ...]
    growth: int
    classes: int
    dtype: Any

    @nn.compact
    def __call__(self, x):
        conv = partial(nn.Conv, use_bias=False, dtype=self.dtype)
        norm = partial(nn.BatchNorm, use_running_average=False, momentum=0.9, dtype=self.dtype)
        x = nn.relu(norm()(conv(2 * self.growth, (7, 7), (2, 2))(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        for stage, layers in enumerate(self.stages):
            if stage > 0:
                x = conv(x.shape[-1] // 2, (1, 1))(nn.relu(norm()(x)))
                x = nn.avg_pool(x, (2, 2), (2, 2))
            for _ in range(layers):
                y = conv(BOTTLENECK * self.growth, (1, 1))(nn.relu(norm()(x)))
                y = conv(self.growth, (3, 3))(nn.relu(norm()(y)))
                x = jnp.concatenate([x, y], axis=-1)
        x = nn.relu(norm()(x)).mean((1, 2))
        return nn.Dense(self.classes, dtype=self.dtype)(x)


def count_flops(model: DenseNet, *, image: int, batch: int) -> int:
    """Counts a step's FLOPs; nothing wants the gradient of the images."""
    growth = model.growth
    channels = 2 * growth
    first = count_conv_macs(size=image, kernel=7, inputs=CHANNELS, outputs=channels, stride=2)
    size, inner, rest = halve(halve(image)), BOTTLENECK * growth, 0
    for stage, layers in enumerate(model.stages):
        if stage > 0:
            rest += size**2 * channels * (channels // 2)
            size, channels = size // 2, channels // 2
        for _ in range(layers):
            rest += size**2 * channels * inner
            rest += count_conv_macs(size=size, kernel=3, inputs=inner, outputs=growth)
            channels += growth
    return 2 * batch * (2 * first + 3 * (rest + channels * model.classes))


def build_densenet(
    *,
    name: str = "densenet121",
    stages: tuple[int, ...] = (6, 12, 24, 16),
    growth: int = 32,
    image: int = 224,
    classes: int = 1000,
    batch: int = 64,
    dtype: str = "bf16",
) -> Workload:
    activations = parse_dtype(dtype)
    model = DenseNet(stages=stages, growth=growth, classes=classes, dtype=activations)
    return make_workload(
        name=name,
        model=model,
        loss=classification_loss,
        optimizer=optax.sgd(0.1, momentum=0.9),
        draw=draw_images(batch=batch, image=image, classes=classes, dtype=activations),
        samples=batch,
        dtype=dtype,
        analytic_flops=count_flops(model, image=image, batch=batch),
    )
