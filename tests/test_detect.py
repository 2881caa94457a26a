"""Detection: JAX's device kinds are matched to presets by rule, or refused."""

import re
from types import SimpleNamespace

import jax
import pytest

from jaxswap._errors import UnknownDeviceError
from jaxswap.model.detect import Kind, match_kind, parse_kind
from jaxswap.model.device import Device
from jaxswap.model.presets import devices


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", Kind(model="h100", is_card=False, memory_gb=80)),
        ("NVIDIA A100-PCIE-40GB", Kind(model="a100", is_card=True, memory_gb=40)),
        ("NVIDIA GeForce RTX 3090 Ti", Kind(model="rtx3090ti", is_card=False, memory_gb=None)),
        ("h100-sxm", Kind(model="h100", is_card=False, memory_gb=None)),
        ("a100-pcie-80gb", Kind(model="a100", is_card=True, memory_gb=80)),
    ],
)
def test_kinds_are_taken_apart(kind, expected):
    assert parse_kind(kind) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", "gh200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100-SXM-64GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-SXM3-32GB", "v100-32gb"),
        ("Tesla V100-PCIE-32GB", "v100-32gb"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A10", "a10"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 3090 Ti", "rtx3090ti"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("GeForce RTX 2080 Ti", "rtx2080ti"),
    ],
)
def test_kinds_match_the_nearest_preset(kind, expected):
    assert match_kind(kind) is devices()[expected]


def test_every_preset_matches_its_own_name():
    for name, preset in devices().items():
        assert match_kind(name) is preset


def test_memory_decides_where_the_kind_does_not_say():
    # JAX offers three quarters of the memory unless told otherwise.
    for name in ("v100-16gb", "v100-32gb"):
        offered = devices()[name].memory_bytes * 3 // 4
        assert match_kind("Tesla V100", offered).name == name
    assert match_kind("Tesla V100", 10**12).name == "v100-32gb"


def test_the_memory_jax_may_use_replaces_the_presets():
    found = match_kind("NVIDIA A100-SXM4-80GB", 30 * 10**9)
    assert found.name == "a100-80gb"
    assert found.memory_bytes == 30 * 10**9
    assert found.sources["memory_bytes"] == "bytes_limit of JAX's memory_stats()"


@pytest.mark.parametrize(
    ("kind", "nearest"),
    [
        ("NVIDIA A10G", " (nearest: a10, a100-80gb, a100-40gb)"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", " (nearest: rtx4090, rtx3090, rtx3090ti)"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", " (nearest: h100-sxm, h100-pcie)"),
        ("Quantum 9000", ""),
    ],
)
def test_other_models_are_refused_rather_than_guessed(kind, nearest):
    message = (
        f"JAX runs on {kind!r}, and no preset is of that model{nearest}. Measure it with "
        "`Device.calibrate()`, or pass the preset that is nearest to it."
    )
    with pytest.raises(UnknownDeviceError, match=f"^{re.escape(message)}$"):
        match_kind(kind)


def test_a_machine_without_a_gpu_is_told_what_to_pass():
    if jax.default_backend() != "cpu":
        pytest.skip("JAX runs on an accelerator here")
    message = (
        "`Device.detect()` looks for the GPU that JAX runs on, and JAX runs on 'cpu' here. Pass a "
        'device by name instead, such as device="h100-sxm" (`jaxswap.devices()` has them all), or '
        "measure this machine with `Device.calibrate()`."
    )
    with pytest.raises(UnknownDeviceError, match=f"^{re.escape(message)}$"):
        Device.detect()


@pytest.mark.parametrize(
    ("stats", "memory_bytes"),
    [({"bytes_limit": 11 * 10**9}, 11 * 10**9), ({}, None), (None, None)],
)
def test_an_attached_gpu_is_detected(monkeypatch, stats, memory_bytes):
    gpu = SimpleNamespace(platform="gpu", device_kind="Tesla T4", memory_stats=lambda: stats)
    monkeypatch.setattr(jax, "devices", lambda: [gpu])
    found = Device.detect()
    assert found.name == "t4"
    assert found.memory_bytes == (memory_bytes or devices()["t4"].memory_bytes)


@pytest.mark.gpu
def test_the_real_gpu_is_detected():
    assert Device.detect().name in devices()
