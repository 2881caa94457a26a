"""Device files: exact, versioned, and strict about every field."""

import json
import re
from dataclasses import fields, replace

import pytest

from jaxswap._errors import BadArgumentError
from jaxswap.model.device import Device
from jaxswap.model.device_json import device_from_json, device_to_json
from jaxswap.model.presets import devices
from jaxswap.model.transfer import Link

LINK = Link(latency_s=1e-6, bandwidth_bytes_per_s=1e9, both_fraction=0.5)
TOY = Device(
    name="toy",
    description="A toy",
    memory_bytes=1000,
    peak_flops_per_s={"f32": 100.0},
    memory_bandwidth_bytes_per_s=10.0,
    l2_cache_bytes=0,
    launch_overhead_s=0.0,
    to_host=LINK,
    to_device=LINK,
)


def raises(message):
    return pytest.raises(BadArgumentError, match=f"^{re.escape(message)}$")


def test_files_are_exact(tmp_path):
    odd = replace(
        devices()["v100-32gb"],
        launch_overhead_s=0.1 + 0.2,
        measured={"dot_f32_flops_per_s": 1e13 / 3},
        host_memory_bytes=2**62 + 1,
    )
    for device in (TOY, odd):
        device.save(tmp_path / "device.json")
        assert Device.load(tmp_path / "device.json") == device
        assert Device.load(str(tmp_path / "device.json")) == device


def write(folder, content):
    path = folder / "device.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def envelope(**changes):
    return {"format": "jaxswap.device", "version": 1, "device": device_to_json(TOY) | changes}


def test_files_that_are_not_there_are_refused(tmp_path):
    path = tmp_path / "none.json"
    with raises(
        f"No device can be read from `{path}`: No such file or directory. Give the path of a "
        "file that `Device.save` wrote."
    ):
        Device.load(path)


def test_files_that_are_not_json_are_refused(tmp_path):
    path = write(tmp_path, "{")
    start = f"No device can be read from `{path}`: it is not JSON (Expecting property name"
    with pytest.raises(BadArgumentError, match=f"^{re.escape(start)}"):
        Device.load(path)


@pytest.mark.parametrize("content", [[], {}, {"format": "jaxswap.plan", "version": 1}])
def test_files_of_another_format_are_refused(tmp_path, content):
    path = write(tmp_path, content)
    with raises(
        f"{path} is not a device file: it does not say so. It has a JSON object with "
        '`"format": "jaxswap.device"`.'
    ):
        Device.load(path)


def test_files_of_another_version_are_refused(tmp_path):
    path = write(tmp_path, envelope() | {"version": 2})
    with raises(
        f"{path} is not a device file: it is of version 2. It has version 1, which this "
        "jaxswap reads."
    ):
        Device.load(path)


def test_files_with_other_parts_are_refused(tmp_path):
    path = write(tmp_path, envelope() | {"extra": 1})
    with raises(
        f"{path} is not a device file: it has the parts ['device', 'extra', 'format', "
        "'version']. It has format, version and device."
    ):
        Device.load(path)


def test_files_with_missing_fields_are_refused(tmp_path):
    content = envelope()
    del content["device"]["memory_bytes"], content["device"]["to_host"]
    path = write(tmp_path, content)
    with raises(
        f"{path} is not a device file: it lacks memory_bytes, to_host. It has all of "
        "description, l2_cache_bytes, launch_overhead_s, memory_bandwidth_bytes_per_s, "
        "memory_bytes, name, peak_flops_per_s, to_device, to_host."
    ):
        Device.load(path)


def test_files_with_unknown_fields_are_refused(tmp_path):
    path = write(tmp_path, envelope(memory_gb=80))
    known = ", ".join(each.name for each in fields(Device))
    with raises(f"{path} is not a device file: it has unknown memory_gb. It has only {known}."):
        Device.load(path)


def test_files_with_impossible_fields_are_refused(tmp_path):
    path = write(tmp_path, envelope(memory_bytes=-1))
    with raises(
        f"In {path}: `Device.memory_bytes=-1` is not possible: it is a whole number above zero."
    ):
        Device.load(path)
    path = write(tmp_path, envelope(to_host={"latency_s": 0.0}))
    with raises(
        f"{path}, `to_host` is not a device file: it lacks bandwidth_bytes_per_s. It has "
        "all of bandwidth_bytes_per_s, latency_s."
    ):
        Device.load(path)
    path = write(tmp_path, envelope(to_host=[1]))
    with raises(
        f"{path}, `to_host` is not a device file: it is [1]. It has an object with the "
        "fields latency_s, bandwidth_bytes_per_s, both_fraction."
    ):
        Device.load(path)
    link = {"latency_s": 0.0, "bandwidth_bytes_per_s": "fast"}
    path = write(tmp_path, envelope(to_host=link))
    with raises(
        f"In {path}, `to_host`: `Link.bandwidth_bytes_per_s='fast'` is not possible: it is a "
        "number of bytes/s above zero."
    ):
        Device.load(path)


def test_nan_in_a_file_is_refused(tmp_path):
    path = write(tmp_path, json.dumps(envelope(launch_overhead_s=float("nan"))))
    with raises(
        f"In {path}: `Device.launch_overhead_s=nan` is not possible: it is a number, zero or more."
    ):
        Device.load(path)


def test_plain_values_hold_everything():
    for device in devices().values():
        plain = json.loads(json.dumps(device_to_json(device)))
        assert device_from_json(plain, "here") == device
