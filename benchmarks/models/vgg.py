"""VGG: how large is the training step of a deep plain convolutional network?

Input: sizes. Output: a `Workload` for image classification with SGD and momentum.
The one convention: the stages double in width up to the fourth, and halve in size to the last.
"""

from functools import partial
from typing import Any

import optax
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from benchmarks.models._remat import recompute_block
from benchmarks.models._vision import (
    CHANNELS,
    classification_loss,
    count_conv_macs,
    draw_images,
)
from benchmarks.models._workload import Workload, make_workload, parse_dtype

WIDEST = 8  # the last stage of VGG does not double again


def run_stage(model: "VGG", x, stage: int):
    """One stage: its convolutions, and the pooling behind them."""
    channels = model.width * min(2**stage, WIDEST)
    x, before = checkpoint_name(x, "input"), sum(model.stages[:stage])
    for conv in range(model.stages[stage]):
        x = nn.Conv(channels, (3, 3), dtype=model.dtype, name=f"Conv_{before + conv}")(x)
        x = nn.relu(checkpoint_name(x, "conv"))
    return nn.max_pool(x, (2, 2), (2, 2))


class VGG(nn.Module):
    stages: tuple[int, ...]
    width: int
    d_head: int
    classes: int
    dropout: float
    dtype: Any
    remat: str | None

    @nn.compact
    def __call__(self, x):
        for stage in range(len(self.stages)):
            x = recompute_block(partial(run_stage, stage=stage), self.remat)(self, x)
        x = x.reshape(x.shape[0], -1)
        for _ in range(2):
            x = nn.relu(nn.Dense(self.d_head, dtype=self.dtype)(x))
            x = nn.Dropout(self.dropout, deterministic=False)(x)
        return nn.Dense(self.classes, dtype=self.dtype)(x)


def count_flops(model: VGG, *, image: int, batch: int) -> int:
    """Counts a step's FLOPs; nothing wants the gradient of the images."""
    size, inputs, macs = image, CHANNELS, []
    for stage, convs in enumerate(model.stages):
        outputs = model.width * min(2**stage, WIDEST)
        for _ in range(convs):
            macs.append(count_conv_macs(size=size, kernel=3, inputs=inputs, outputs=outputs))
            inputs = outputs
        size //= 2
    d = model.d_head
    macs += [size**2 * inputs * d, d**2, d * model.classes]
    return 2 * batch * (3 * sum(macs) - macs[0])


def build_vgg(
    *,
    name: str = "vgg16",
    stages: tuple[int, ...] = (2, 2, 3, 3, 3),
    width: int = 64,
    d_head: int = 4096,
    image: int = 224,
    classes: int = 1000,
    dropout: float = 0.0,
    batch: int = 256,
    dtype: str = "f32",
    remat: str | None = None,
) -> Workload:
    activations = parse_dtype(dtype)
    model = VGG(
        stages=stages,
        width=width,
        d_head=d_head,
        classes=classes,
        dropout=dropout,
        dtype=activations,
        remat=remat,
    )
    return make_workload(
        name=name,
        model=model,
        loss=classification_loss,
        optimizer=optax.sgd(0.01, momentum=0.9),
        draw=draw_images(batch=batch, image=image, classes=classes, dtype=activations),
        dropout=dropout,
        samples=batch,
        dtype=dtype,
        analytic_flops=count_flops(model, image=image, batch=batch),
    )
