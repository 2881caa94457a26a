"""ResNet: how large is the training step of a residual network with batch statistics?

Input: sizes. Output: a `Workload` for image classification with SGD and momentum.
The one convention: version 1.5, where a bottleneck's stride is on its 3x3 convolution; the
batch normalisation computes its statistics in f32 and its output in the activations' dtype.
"""

import itertools
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
    halve,
)
from benchmarks.models._workload import Workload, make_workload, parse_dtype

EXPANSION = 4  # of a bottleneck's output over its inner width


def name_conv(*args, **kwargs):
    """A convolution whose result can be chosen by name."""
    conv = nn.Conv(*args, **kwargs)
    return lambda x: checkpoint_name(conv(x), "conv")


class Block(nn.Module):
    width: int
    stride: int
    bottleneck: bool
    dtype: Any

    @nn.compact
    def __call__(self, x):
        conv = partial(name_conv, use_bias=False, dtype=self.dtype)
        norm = partial(nn.BatchNorm, use_running_average=False, momentum=0.9, dtype=self.dtype)
        last_norm = partial(norm, scale_init=nn.initializers.zeros)  # starts as the identity
        strides, x = (self.stride, self.stride), checkpoint_name(x, "input")
        if self.bottleneck:
            y = nn.relu(norm()(conv(self.width, (1, 1))(x)))
            y = nn.relu(norm()(conv(self.width, (3, 3), strides)(y)))
            y = last_norm()(conv(EXPANSION * self.width, (1, 1))(y))
        else:
            y = nn.relu(norm()(conv(self.width, (3, 3), strides)(x)))
            y = last_norm()(conv(self.width, (3, 3))(y))
        if x.shape != y.shape:
            x = norm()(conv(y.shape[-1], (1, 1), strides)(x))
        return nn.relu(x + y)


def start(model: "ResNet", x):
    """What comes before the blocks."""
    x = name_conv(
        model.width, (7, 7), (2, 2), use_bias=False, dtype=model.dtype, name="Conv_0"
    )(x)  # fmt: skip
    norm = nn.BatchNorm(
        use_running_average=False, momentum=0.9, dtype=model.dtype, name="BatchNorm_0"
    )
    return nn.max_pool(nn.relu(norm(x)), (3, 3), (2, 2), padding="SAME")


class ResNet(nn.Module):
    stages: tuple[int, ...]
    bottleneck: bool
    width: int
    classes: int
    dtype: Any
    remat: str | None

    @nn.compact
    def __call__(self, x):
        x = recompute_block(start, self.remat)(self, x)
        block, number = recompute_block(Block, self.remat), itertools.count()
        for stage, blocks in enumerate(self.stages):
            for at in range(blocks):
                stride, width = 2 if stage > 0 and at == 0 else 1, self.width * 2**stage
                name = f"Block_{next(number)}"
                x = block(width, stride, self.bottleneck, self.dtype, name=name)(x)
        return nn.Dense(self.classes, dtype=self.dtype)(x.mean((1, 2)))


def count_block_macs(
    *, size: int, inputs: int, width: int, stride: int, bottleneck: bool
) -> tuple[int, int, int]:
    """Counts one block's forward multiply-adds; also its output's size and width."""
    small = halve(size) if stride == 2 else size
    outputs = width * (EXPANSION if bottleneck else 1)
    if bottleneck:
        macs = (
            size**2 * inputs * width
            + count_conv_macs(size=size, kernel=3, inputs=width, outputs=width, stride=stride)
            + small**2 * width * outputs
        )
    else:
        macs = count_conv_macs(
            size=size, kernel=3, inputs=inputs, outputs=width, stride=stride
        ) + count_conv_macs(size=small, kernel=3, inputs=width, outputs=width)
    if (size, inputs) != (small, outputs):
        macs += small**2 * inputs * outputs
    return macs, small, outputs


def count_flops(model: ResNet, *, image: int, batch: int) -> int:
    """Counts a step's FLOPs; nothing wants the gradient of the images."""
    width = model.width
    first = count_conv_macs(size=image, kernel=7, inputs=CHANNELS, outputs=width, stride=2)
    size, channels, rest = halve(halve(image)), width, 0
    for stage, blocks in enumerate(model.stages):
        for block in range(blocks):
            macs, size, channels = count_block_macs(
                size=size,
                inputs=channels,
                width=width * 2**stage,
                stride=2 if stage > 0 and block == 0 else 1,
                bottleneck=model.bottleneck,
            )
            rest += macs
    return 2 * batch * (2 * first + 3 * (rest + channels * model.classes))


def build_resnet(
    *,
    name: str = "resnet50",
    stages: tuple[int, ...] = (3, 4, 6, 3),
    bottleneck: bool = True,
    width: int = 64,
    image: int = 224,
    classes: int = 1000,
    batch: int = 256,
    dtype: str = "bf16",
    remat: str | None = None,
) -> Workload:
    activations = parse_dtype(dtype)
    model = ResNet(
        stages=stages,
        bottleneck=bottleneck,
        width=width,
        classes=classes,
        dtype=activations,
        remat=remat,
    )
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
