"""Panels: which models are compared on which GPUs?

Input: the name of a model and of a GPU. Output: a `Panel`, which builds the training step and
describes the GPU.
The one convention: half precision is the one that the GPU has, bf16 or, before it, f16.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from benchmarks.models import Workload, build
from jaxswap._errors import BadArgumentError
from jaxswap.model.device import Device

_TINY = {"layers": 3, "d_model": 128, "heads": 2, "seq": 256, "vocab": 512, "batch": 8}
# What a model is called here: the workload that it is, and what differs from its defaults.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2-small": ("gpt2-small", {}),
    "gpt2-small-scan": ("gpt2-small", {"scan": True}),
    "resnet50": ("resnet50", {}),
    "vgg16": ("vgg16", {}),
    "vit-b16": ("vit-b16", {}),
    "unet": ("unet", {}),
    "gpt2-medium": ("gpt2-medium", {}),
    "llama-1b": ("llama-1b", {}),
    "bert-base": ("bert-base", {}),
    "resnet152": ("resnet152", {}),
    "lstm": ("lstm", {}),
    "moe": ("moe", {}),
    "gpt-tiny": ("gpt2-small", _TINY),  # to try the harness on
}
_BF16_SINCE = (8, 0)  # compute capability; before, XLA widens bf16 to f32


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A model on a GPU."""

    model: str
    device: str

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise BadArgumentError(
                f"`--models {self.model}` is not in the benchmark: it has {', '.join(MODELS)}."
            )

    @property
    def settings(self) -> dict[str, Any]:
        """Of the workload; half precision is the one that the GPU has."""
        name, settings = MODELS[self.model]
        old = (Device.named(self.device).compute_capability or _BF16_SINCE) < _BF16_SINCE
        is_bf16 = old and build(name, **settings).dtype == "bf16"
        return {**settings, "dtype": "f16"} if is_bf16 else settings

    def build(self, **changes: Any) -> Workload:
        """The training step, with changed settings."""
        return build(MODELS[self.model][0], **{**self.settings, **changes})

    def gpu(self, memory_bytes: int | None = None) -> Device:
        """The GPU with that much memory; a GPU that is attached has what it has."""
        import jax

        found = Device.named(self.device)
        if memory_bytes is None or jax.default_backend() == "gpu":
            return found
        return dataclasses.replace(found, memory_bytes=memory_bytes)
