"""Presets: which devices are known by name?

Input: a name, a path, or a `Device`. Output: a `Device`.
The figures and the source of each are data, in `presets.json`; `[id]` in a source stands for a
citation of that file, and `X24` for a published transfer rate in its `transfer_rows`.
"""

import difflib
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jaxswap._errors import BadArgumentError, UnknownDeviceError
from jaxswap.model.device import Device
from jaxswap.model.device_json import device_from_json, read_json

_FILE = Path(__file__).with_name("presets.json")
_CITED = re.compile(r"\[([a-z0-9-]+)\]")


def devices() -> Mapping[str, Device]:
    """The presets by name: data-centre GPUs from new to old, then GeForce ones.

    Example:
        >>> "rtx4090" in devices()
        True
    """
    return _read_presets()


def find_device(device: "str | os.PathLike[str] | Device") -> Device:
    """The device that is meant.

    Args:
        device: a `Device`, the name of a preset, or the path of a file that `Device.save`
            wrote (a path object, or text that ends in `.json`).

    Example:
        >>> find_device("A100 80GB").name
        'a100-80gb'
    """
    if isinstance(device, Device):
        return device
    if isinstance(device, os.PathLike):
        return Device.load(device)
    if not isinstance(device, str):
        raise BadArgumentError(
            f"`device={device!r}` is not a device: give a `Device`, a name such as "
            '"h100-sxm", or the path of a JSON file.'
        )
    return Device.load(device) if device.lower().endswith(".json") else find_preset(device)


def find_preset(name: str) -> Device:
    """The preset of that name; case, spaces, dashes and underscores do not matter."""
    presets = devices()
    by_key = {_key(each): each for each in presets}
    if _key(name) in by_key:
        return presets[by_key[_key(name)]]
    raise UnknownDeviceError(
        f"No device is named {name!r}{suggest_names(name)}. Known are {', '.join(presets)}. "
        'For another one, give the path of a JSON file (`Device.save("mine.json")`), or '
        "measure it with `Device.calibrate()`."
    )


def suggest_names(name: str) -> str:
    """` (nearest: …)` with up to three presets that `name` looks like, or nothing."""
    key = _key(name)
    by_key = {_key(each): each for each in devices()}
    # Names of one family begin alike; a slip of the pen can be anywhere.
    shared = {k: _count_shared_start(key, k) for k in by_key}
    family = sorted((k for k in by_key if shared[k] >= 3), key=lambda k: (-shared[k], len(k)))
    nearest = family[:3] or difflib.get_close_matches(key, by_key, n=3, cutoff=0.5)
    return f" (nearest: {', '.join(by_key[k] for k in nearest)})" if nearest else ""


@cache
def read_data() -> dict[str, Any]:
    """The content of `presets.json`: citations, devices, and published transfer rates."""
    return read_json(_FILE, "preset", "jaxswap.presets", 1)


@cache
def _read_presets() -> Mapping[str, Device]:
    data = read_data()
    citations: dict[str, str] = data["citations"]

    def cite(source: str) -> str:
        return _CITED.sub(lambda match: citations[match[1]], source)

    presets = {}
    for each in data["devices"]:
        sources = {figure: cite(source) for figure, source in each["sources"].items()}
        preset = device_from_json(each | {"sources": sources}, f"{_FILE.name}, {each['name']}")
        presets[preset.name] = preset
    return MappingProxyType(presets)


def _count_shared_start(a: str, b: str) -> int:
    differs = (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differs, min(len(a), len(b)))


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.lower())
