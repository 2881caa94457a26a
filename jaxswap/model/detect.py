"""Detection: which known device is the one that JAX runs on?

Input: what JAX says of its first device. Output: the nearest preset, with the real memory.
A device's kind and a preset's name are read by one rule: the vendor's words go, the form
factor and the memory size are set aside, and what is left, the model, must be the same.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

from jaxswap._errors import UnknownDeviceError
from jaxswap.model.device import Device
from jaxswap.model.presets import devices, suggest_names

_VENDOR_WORDS = frozenset({"nvidia", "geforce", "tesla", "graphics", "gpu", "device"})
_MEMORY_SIZE = re.compile(r"(\d+)gb?")
_CARD = re.compile(r"pcie|nvl")
_MODULE = re.compile(r"sxm\d*|hbm\d\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A device's kind, taken apart.

    Attributes:
        model: the model without spaces, such as `rtx3090ti`.
        is_card: whether it says to be a PCIe card rather than a module.
        memory_gb: the memory it says to have, if it says.
    """

    model: str
    is_card: bool
    memory_gb: int | None


def parse_kind(text: str) -> Kind:
    """Takes a device kind or a preset's name apart.

    Example:
        >>> parse_kind("NVIDIA A100-PCIE-40GB")
        Kind(model='a100', is_card=True, memory_gb=40)
    """
    words = [w for w in re.split(r"[\s_/-]+", text.lower()) if w and w not in _VENDOR_WORDS]
    sizes = [int(m[1]) for w in words if (m := _MEMORY_SIZE.fullmatch(w))]
    aside = (_MEMORY_SIZE, _CARD, _MODULE)
    model = "".join(w for w in words if not any(p.fullmatch(w) for p in aside))
    is_card = any(_CARD.fullmatch(w) for w in words)
    return Kind(model=model, is_card=is_card, memory_gb=sizes[0] if sizes else None)


def match_kind(kind: str, memory_bytes: int | None = None) -> Device:
    """The preset nearest to a device kind, among those of the same model.

    Args:
        kind: what JAX calls the device (`jax.Device.device_kind`).
        memory_bytes: the memory JAX may use there, if known: it replaces the preset's.

    Example:
        >>> match_kind("NVIDIA H100 80GB HBM3").name
        'h100-sxm'
    """
    wanted = parse_kind(kind)
    same = [p for p in devices().values() if parse_kind(p.name).model == wanted.model]
    if not same:
        raise UnknownDeviceError(
            f"JAX runs on {kind!r}, and no preset is of that model{suggest_names(wanted.model)}. "
            "Measure it with `Device.calibrate()`, or pass the preset that is nearest to it."
        )

    def distance(preset: Device) -> tuple[bool, bool, float]:
        off_form = parse_kind(preset.name).is_card != wanted.is_card
        if wanted.memory_gb is not None:
            return off_form, False, abs(preset.memory_bytes - wanted.memory_gb * 10**9)
        # JAX offers a part of the memory, never more than there is.
        limit = memory_bytes or 0
        return off_form, preset.memory_bytes < limit, abs(preset.memory_bytes - limit)

    nearest = min(same, key=distance)
    if memory_bytes is None:
        return nearest
    sources = dict(nearest.sources) | {"memory_bytes": "bytes_limit of JAX's memory_stats()"}
    return replace(nearest, memory_bytes=memory_bytes, sources=sources)


def detect_device() -> Device:
    """The preset of the GPU that JAX runs on; see `Device.detect`."""
    import jax

    device = jax.devices()[0]
    if device.platform not in ("gpu", "cuda"):
        raise UnknownDeviceError(
            f"`Device.detect()` looks for the GPU that JAX runs on, and JAX runs on "
            f"{device.platform!r} here. Pass a device by name instead, such as "
            'device="h100-sxm" (`jaxswap.devices()` has them all), or measure this machine with '
            "`Device.calibrate()`."
        )
    return match_kind(device.device_kind, read_memory_limit(device))


def read_memory_limit(device: Any) -> int | None:
    """The bytes that JAX may use on one of its devices, if it says."""
    stats = device.memory_stats()
    return int(stats["bytes_limit"]) if stats and "bytes_limit" in stats else None
