"""U-Net: how large is the training step of the original segmentation network?

Input: sizes. Output: a `Workload` for two-class segmentation with Adam.
The one convention: convolutions are unpadded, as in the paper (Ronneberger et al. 2015), so a
572x572 image is labelled on its central 388x388 pixels.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from benchmarks.models._remat import recompute_block
from benchmarks.models._workload import Batch, Workload, make_workload, parse_dtype

SHRINK = 4  # what two unpadded 3x3 convolutions take off a side


class DoubleConv(nn.Module):
    channels: int
    dtype: Any

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.Conv(self.channels, (3, 3), padding="VALID", dtype=self.dtype)(x)
            x = nn.relu(checkpoint_name(x, "conv"))
        return x


def crop(x: jax.Array, size: int) -> jax.Array:
    """Cuts the central `size` x `size` pixels out."""
    start = (x.shape[1] - size) // 2
    return x[:, start : start + size, start : start + size]


def go_down(model: "UNet", x, level: int):
    """One level on the way down: what goes across, and what goes on."""
    width, x = model.width * 2**level, checkpoint_name(x, "input")
    across = DoubleConv(width, model.dtype, name=f"DoubleConv_{level}")(x)
    return across, nn.max_pool(across, (2, 2), (2, 2))


def go_up(model: "UNet", x, across, level: int):
    """One level on the way up."""
    width, t, past = model.width * 2**level, model.dtype, model.depth - 1 - level
    x = checkpoint_name(x, "input")
    x = nn.ConvTranspose(width, (2, 2), (2, 2), dtype=t, name=f"ConvTranspose_{past}")(x)
    x = jnp.concatenate([crop(across, x.shape[1]), checkpoint_name(x, "conv")], axis=-1)
    return DoubleConv(width, t, name=f"DoubleConv_{model.depth + 1 + past}")(x)


class UNet(nn.Module):
    depth: int
    width: int
    classes: int
    dtype: Any
    remat: str | None

    @nn.compact
    def __call__(self, x):
        depth, t, skips = self.depth, self.dtype, []
        for level in range(depth):
            down = recompute_block(partial(go_down, level=level), self.remat)
            across, x = down(self, x)
            skips.append(across)
        bottom = recompute_block(DoubleConv, self.remat)
        x = bottom(self.width * 2**depth, t, name=f"DoubleConv_{depth}")(x)
        for level in reversed(range(depth)):
            up = recompute_block(partial(go_up, level=level), self.remat)
            x = up(self, x, skips.pop())
        return nn.Conv(self.classes, (1, 1), dtype=t)(x)


def segmentation_loss(apply, images, labels):
    logits = apply(images).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def output_size(image: int, depth: int) -> int:
    """The side of the label map.

    Example:
        >>> output_size(572, 4)
        388
    """
    for _ in range(depth):
        image = (image - SHRINK) // 2
    image -= SHRINK
    for _ in range(depth):
        image = image * 2 - SHRINK
    return image


def count_double_macs(size: int, inputs: int, outputs: int) -> list[int]:
    """Counts the multiply-adds of each of the two convolutions of a `DoubleConv`."""
    taps = 3**2 * outputs
    return [(size - 2) ** 2 * taps * inputs, (size - 4) ** 2 * taps * outputs]


def count_flops(model: UNet, *, image: int, batch: int) -> int:
    """Counts a step's FLOPs; nothing wants the gradient of the images."""
    depth, width = model.depth, model.width
    macs, size, inputs = [], image, 1
    for level in range(depth):
        macs += count_double_macs(size, inputs, width * 2**level)
        size, inputs = (size - SHRINK) // 2, width * 2**level
    macs += count_double_macs(size, inputs, 2 * inputs)
    size -= SHRINK
    for level in reversed(range(depth)):
        outputs = width * 2**level
        macs.append(size**2 * 2**2 * (2 * outputs) * outputs)  # each pixel becomes 2x2
        macs += count_double_macs(2 * size, 2 * outputs, outputs)
        size = 2 * size - SHRINK
    macs.append(size**2 * width * model.classes)
    return 2 * batch * (3 * sum(macs) - macs[0])


def build_unet(
    *,
    name: str = "unet",
    depth: int = 4,
    width: int = 64,
    image: int = 572,
    classes: int = 2,
    batch: int = 8,
    dtype: str = "f32",
    remat: str | None = None,
) -> Workload:
    activations, side = parse_dtype(dtype), output_size(image, depth)
    model = UNet(depth=depth, width=width, classes=classes, dtype=activations, remat=remat)

    def draw(key: jax.Array) -> Batch:
        image_key, label_key = jax.random.split(key)
        images = jax.random.normal(image_key, (batch, image, image, 1), activations)
        return images, jax.random.randint(label_key, (batch, side, side), 0, classes)

    return make_workload(
        name=name,
        model=model,
        loss=segmentation_loss,
        optimizer=optax.adam(1e-4),
        draw=draw,
        samples=batch,
        dtype=dtype,
        analytic_flops=count_flops(model, image=image, batch=batch),
    )
