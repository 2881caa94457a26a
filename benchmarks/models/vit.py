"""ViT: how large is the training step of a transformer on image patches?

Input: sizes. Output: a `Workload` for image classification with AdamW.
The one convention: the image becomes `(image / patch) ** 2` tokens and one class token, and only
the class token is classified.
"""

from typing import Any

import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from benchmarks.models._attention import add_attention, count_attention_macs
from benchmarks.models._remat import stack_blocks
from benchmarks.models._vision import CHANNELS, classification_loss, draw_images
from benchmarks.models._workload import Workload, make_workload, parse_dtype


class Block(nn.Module):
    heads: int
    dtype: Any

    @nn.compact
    def __call__(self, x):
        d, t = x.shape[-1], self.dtype
        x = checkpoint_name(x, "input")
        x = add_attention(x, self.heads, t, is_causal=False)
        h = nn.Dense(4 * d, dtype=t)(nn.LayerNorm(dtype=t)(x))
        return x + nn.Dense(d, dtype=t)(nn.gelu(checkpoint_name(h, "hidden")))


class ViT(nn.Module):
    layers: int
    d_model: int
    heads: int
    patch: int
    classes: int
    dtype: Any
    remat: str | None

    @nn.compact
    def __call__(self, images):
        (b, *_), d, t = images.shape, self.d_model, self.dtype
        window = (self.patch, self.patch)
        x = nn.Conv(d, window, strides=window, padding="VALID", dtype=t)(images)
        x = x.reshape(b, -1, d)
        token = self.param("class_token", nn.initializers.zeros, (1, 1, d)).astype(t)
        x = jnp.concatenate([jnp.broadcast_to(token, (b, 1, d)), x], axis=1)
        place = self.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], d))
        x = x + place.astype(t)
        fields = {"heads": self.heads, "dtype": t}
        x = stack_blocks(Block, x, fields, layers=self.layers, scan=False, remat=self.remat)
        return nn.Dense(self.classes, dtype=t)(nn.LayerNorm(dtype=t)(x)[:, 0])


def count_flops(model: ViT, *, image: int, batch: int) -> int:
    """Counts a step's FLOPs; nothing wants the gradient of the images."""
    d, patches = model.d_model, (image // model.patch) ** 2
    seq = patches + 1
    embedding = patches * model.patch**2 * CHANNELS * d
    dense = (3 + 1 + 4 + 4) * d**2  # qkv, projection, and the two of the MLP
    encoder = seq * model.layers * (dense + count_attention_macs(seq=seq, d_model=d))
    return 2 * batch * (2 * embedding + 3 * (encoder + d * model.classes))


def build_vit(
    *,
    name: str = "vit-b16",
    layers: int = 12,
    d_model: int = 768,
    heads: int = 12,
    patch: int = 16,
    image: int = 224,
    classes: int = 1000,
    batch: int = 128,
    dtype: str = "bf16",
    remat: str | None = None,
) -> Workload:
    activations = parse_dtype(dtype)
    model = ViT(
        layers=layers,
        d_model=d_model,
        heads=heads,
        patch=patch,
        classes=classes,
        dtype=activations,
        remat=remat,
    )
    return make_workload(
        name=name,
        model=model,
        loss=classification_loss,
        optimizer=optax.adamw(1e-3, weight_decay=0.05),
        draw=draw_images(batch=batch, image=image, classes=classes, dtype=activations),
        samples=batch,
        dtype=dtype,
        analytic_flops=count_flops(model, image=image, batch=batch),
    )
