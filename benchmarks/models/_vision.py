"""Vision: what do the image classifiers share?

Input: a batch's sizes. Output: random labelled images, the loss on them, and tap counts.
The one convention: images are `[batch, height, width, channels]`, square, and `SAME` padded;
a tap on padding is no multiply-add, which is how XLA's cost analysis counts too. It also makes
a convolution, its input gradient and its weight gradient cost exactly the same.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.models._workload import Batch

CHANNELS = 3


def draw_images(
    *, batch: int, image: int, classes: int, dtype: Any
) -> Callable[[jax.Array], Batch]:
    """Makes the function that draws images, in the activations' dtype, and their labels."""

    def draw(key: jax.Array) -> Batch:
        image_key, label_key = jax.random.split(key)
        images = jax.random.normal(image_key, (batch, image, image, CHANNELS), dtype)
        return images, jax.random.randint(label_key, (batch,), 0, classes)

    return draw


def classification_loss(apply, images, labels, **kwargs):
    logits = apply(images, **kwargs).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def halve(size: int) -> int:
    """The size after a `SAME` padded window of stride two."""
    return -(-size // 2)


def count_conv_macs(*, size: int, kernel: int, inputs: int, outputs: int, stride: int = 1) -> int:
    """Counts the multiply-adds of a `SAME` padded convolution of one square image.

    Example:
        >>> count_conv_macs(size=4, kernel=3, inputs=1, outputs=1)  # (2 + 3 + 3 + 2) ** 2
        100
    """
    num_out = -(-size // stride)
    before = max((num_out - 1) * stride + kernel - size, 0) // 2
    starts = (out * stride - before for out in range(num_out))
    taps = sum(min(start + kernel, size) - max(start, 0) for start in starts)
    return taps**2 * inputs * outputs
