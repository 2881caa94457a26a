"""Device files: is this description of a device complete and possible?

Input: a `Device`, or the JSON text of one. Output: the other of the two, exactly.
Files are strict and versioned: a field that is missing, unknown, of the wrong type or out of
range is an error that names it, never a default.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, NoReturn

from jaxswap._errors import BadArgumentError
from jaxswap.model.device import Device
from jaxswap.model.dtypes import DTYPE_CLASSES
from jaxswap.model.transfer import Link

FORMAT = "jaxswap.device"
VERSION = 1

_Check = tuple[Callable[[Any], bool], str]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return (_is_int(value) or isinstance(value, float)) and math.isfinite(value)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_capability(value: Any) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(map(_is_int, value))
    return is_pair and value[0] > 0 and value[1] >= 0


def _is_map(values: Callable[[Any], bool], keys: frozenset[str] | None = None) -> Any:
    def check(value: object) -> bool:
        return isinstance(value, Mapping) and all(
            isinstance(k, str) and values(v) and (keys is None or k in keys)
            for k, v in value.items()
        )

    return check


_CLASSES = frozenset(DTYPE_CLASSES)
_CLASS_WORDS = f"by dtype class ({', '.join(DTYPE_CLASSES)})"
_TEXT: _Check = (lambda v: isinstance(v, str), "text")
_COUNT: _Check = (lambda v: _is_int(v) and v > 0, "a whole number above zero")
_POSITIVE: _Check = (_is_positive, "a number above zero")
_LINK: _Check = (lambda v: isinstance(v, Link), "a link: latency, bandwidth, both_fraction")
_CHECKS: Mapping[str, _Check] = {
    "name": (lambda v: isinstance(v, str) and v != "", "text that is not empty"),
    "description": _TEXT,
    "memory_bytes": _COUNT,
    "peak_flops_per_s": (
        lambda v: _is_map(_is_positive, _CLASSES)(v) and "f32" in v,
        f"numbers above zero {_CLASS_WORDS}, f32 among them",
    ),
    "memory_bandwidth_bytes_per_s": _POSITIVE,
    "l2_cache_bytes": (lambda v: _is_int(v) and v >= 0, "a whole number, zero or more"),
    "launch_overhead_s": (lambda v: _is_number(v) and v >= 0, "a number, zero or more"),
    "to_host": _LINK,
    "to_device": _LINK,
    "sustained_fraction": (
        lambda v: _is_positive(v) and v <= 1,
        "a fraction above 0, at most 1",
    ),
    "half_work_flops": (
        _is_map(lambda v: _is_number(v) and v >= 0, _CLASSES),
        f"numbers, zero or more, {_CLASS_WORDS}",
    ),
    "host_memory_bytes": _COUNT,
    "compute_capability": (_is_capability, "a pair of whole numbers such as (8, 0)"),
    "sm_count": _COUNT,
    "clock_rate_ghz": _POSITIVE,
    "measured": (_is_map(_is_number), "numbers by name"),
    "sources": (_is_map(lambda v: isinstance(v, str)), "texts by field"),
}
_MAY_BE_NONE = ("host_memory_bytes", "compute_capability", "sm_count", "clock_rate_ghz")


def check_device(device: Device) -> None:
    """Raises `BadArgumentError`, with the field and its rule, if a field is not possible."""
    for name, (is_valid, rule) in _CHECKS.items():
        value = getattr(device, name)
        if value is None and name in _MAY_BE_NONE:
            continue
        if not is_valid(value):
            raise BadArgumentError(f"`Device.{name}={value!r}` is not possible: it is {rule}.")
    if device.compute_capability is not None and None in (
        device.sm_count,
        device.clock_rate_ghz,
    ):
        raise BadArgumentError(
            "A `Device` with a `compute_capability` can be compiled for, which also takes "
            f"`sm_count` and `clock_rate_ghz`: `{device.name}` has {device.sm_count} and "
            f"{device.clock_rate_ghz}. Give both, or no compute capability."
        )


def device_to_json(device: Device) -> dict[str, Any]:
    """The fields of a device as plain JSON values."""
    values = {each.name: getattr(device, each.name) for each in fields(device)}
    plain = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
    return plain | {"to_host": asdict(device.to_host), "to_device": asdict(device.to_device)}


def device_from_json(data: object, where: str) -> Device:
    """The device that `device_to_json` wrote.

    Args:
        data: the parsed JSON.
        where: the file and place, for error messages.
    """
    values = dict(_check_fields(data, Device, where))
    for direction in ("to_host", "to_device"):
        link = _check_fields(values[direction], Link, f"{where}, `{direction}`")
        values[direction] = _construct(Link, link, f"{where}, `{direction}`")
    if isinstance(values.get("compute_capability"), list):
        values["compute_capability"] = tuple(values["compute_capability"])
    return _construct(Device, values, where)


def save_device(device: Device, path: str | os.PathLike[str]) -> None:
    """Writes a device to a JSON file."""
    Path(path).write_text(dump_device(device), "utf-8")


def dump_device(device: Device) -> str:
    """The text of a device's JSON file."""
    data = {"format": FORMAT, "version": VERSION, "device": device_to_json(device)}
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def load_device(path: str | os.PathLike[str]) -> Device:
    """Reads a device from a JSON file."""
    data = read_json(path, "device", FORMAT, VERSION)
    if set(data) != {"format", "version", "device"}:
        _refuse(f"{path}", f"has the parts {sorted(data)}", "format, version and device")
    return device_from_json(data["device"], f"{path}")


def read_json(path: str | os.PathLike[str], kind: str, form: str, version: int) -> dict:
    """Reads a versioned JSON file, or says what it is instead."""
    try:
        data = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise BadArgumentError(
            f"No {kind} can be read from `{path}`: {error.strerror}. Give the path of a file "
            f"that `{kind.capitalize()}.save` wrote."
        ) from error
    except ValueError as error:
        raise BadArgumentError(
            f"No {kind} can be read from `{path}`: it is not JSON ({error}). Give the path of a "
            f"file that `{kind.capitalize()}.save` wrote."
        ) from error
    if not isinstance(data, dict) or data.get("format") != form:
        _refuse(f"{path}", "does not say so", f'a JSON object with `"format": "{form}"`', kind)
    if data.get("version") != version:
        found = f"is of version {data.get('version')!r}"
        _refuse(f"{path}", found, f"version {version}, which this jaxswap reads", kind)
    return data


def _check_fields(data: object, cls: type, where: str) -> dict[str, Any]:
    known = {each.name: each for each in fields(cls)}
    if not isinstance(data, dict):
        _refuse(where, f"is {data!r}", f"an object with the fields {', '.join(known)}")
    required = {
        n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING
    }
    if missing := sorted(required - set(data)):
        _refuse(where, f"lacks {', '.join(missing)}", f"all of {', '.join(sorted(required))}")
    if unknown := sorted(set(data) - set(known)):
        _refuse(where, f"has unknown {', '.join(unknown)}", f"only {', '.join(known)}")
    return data


def _construct(cls: type, values: Mapping[str, Any], where: str) -> Any:
    try:
        return cls(**values)
    except BadArgumentError as error:
        raise BadArgumentError(f"In {where}: {error}") from error


def _refuse(where: str, found: str, wanted: str, kind: str = "device") -> NoReturn:
    raise BadArgumentError(f"{where} is not a {kind} file: it {found}. It has {wanted}.")
