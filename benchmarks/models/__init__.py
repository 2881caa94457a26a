"""Models: which training steps are jaxswap's claims made on?

Input: a name and settings. Output: a `Workload`, the step of a real Flax model with a real
optax optimizer, as shapes.
The one convention: the defaults are the published sizes; settings make a model smaller.
"""

import difflib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.models._workload import Workload, concrete
from benchmarks.models.bert import build_bert
from benchmarks.models.densenet import build_densenet
from benchmarks.models.gpt import build_gpt
from benchmarks.models.llama import build_llama
from benchmarks.models.lstm import build_lstm
from benchmarks.models.moe import build_moe
from benchmarks.models.resnet import build_resnet
from benchmarks.models.unet import build_unet
from benchmarks.models.vgg import build_vgg
from benchmarks.models.vit import build_vit
from jaxswap._errors import BadArgumentError

__all__ = ["WORKLOADS", "Workload", "build", "concrete"]

_MEDIUM = {"layers": 24, "d_model": 1024, "heads": 16}
_LONG = {"seq": 512, "max_predictions": 80}

_PRESETS: dict[str, tuple[Callable[..., Workload], dict[str, Any]]] = {
    "gpt2-small": (build_gpt, {}),
    "gpt2-medium": (build_gpt, {**_MEDIUM, "batch": 8}),
    "llama-1b": (build_llama, {}),
    "bert-base": (build_bert, {}),
    "bert-base-512": (build_bert, {**_LONG, "batch": 16}),
    "bert-large": (build_bert, {**_MEDIUM, "batch": 32}),
    "bert-large-512": (build_bert, {**_MEDIUM, **_LONG, "batch": 8}),
    "vit-tiny": (build_vit, {"d_model": 192, "heads": 3}),
    "vit-small": (build_vit, {"d_model": 384, "heads": 6}),
    "vit-b16": (build_vit, {}),
    "resnet18": (build_resnet, {"stages": (2, 2, 2, 2), "bottleneck": False}),
    "resnet34": (build_resnet, {"bottleneck": False}),
    "resnet50": (build_resnet, {}),
    "resnet101": (build_resnet, {"stages": (3, 4, 23, 3)}),
    "resnet152": (build_resnet, {"stages": (3, 8, 36, 3)}),
    "vgg16": (build_vgg, {}),
    "unet": (build_unet, {}),
    "lstm": (build_lstm, {}),
    "moe": (build_moe, {}),
    "densenet121": (build_densenet, {}),
}
WORKLOADS: dict[str, Callable[..., Workload]] = {
    name: partial(builder, name=name, **preset) for name, (builder, preset) in _PRESETS.items()
}


def build(name: str, **settings: Any) -> Workload:
    """Builds a workload by name.

    Args:
        name: a key of `WORKLOADS`.
        settings: what differs from the published sizes, such as `batch` or `dtype`.

    Example:
        >>> workload = build("resnet50", batch=32)
        >>> workload.samples, workload.args[2].shape
        (32, (32, 224, 224, 3))
    """
    if name not in WORKLOADS:
        near = difflib.get_close_matches(name, WORKLOADS, n=3, cutoff=0.3) or list(WORKLOADS)
        raise BadArgumentError(
            f"`name={name!r}` is not a workload: the nearest are {', '.join(near)}."
        )
    known = [k for k in inspect.signature(WORKLOADS[name]).parameters if k != "name"]
    for setting in settings:
        if setting not in known:
            raise BadArgumentError(
                f"`{setting}={settings[setting]!r}` is not a setting of {name!r}: "
                f"it has {', '.join(known)}."
            )
    return WORKLOADS[name](**settings)
