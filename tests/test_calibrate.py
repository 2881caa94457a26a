"""Calibration: whatever the machine, the measured device is possible and exact in its file."""

import itertools
import math
import time
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxswap._errors import BadArgumentError
from jaxswap.model import calibrate, probes
from jaxswap.model.device import Device
from jaxswap.model.presets import devices
from jaxswap.model.transfer import transfer_s

LABELS = [
    "f32 dots",
    "bf16 dots",
    "f16 dots",
    "f32 convolutions",
    "memory bandwidth",
    "kernel launch",
    "copies to the host",
    "copies to the device",
    "copies both ways",
    "done",
]
MEASURED = {
    "dot_f32_flops_per_s": 3e13,
    "dot_f32_half_work_flops": 3e7,
    "dot_bf16_flops_per_s": 5e13,
    "dot_bf16_half_work_flops": 5e7,
    "dot_f16_flops_per_s": 6e13,
    "dot_f16_half_work_flops": 6e7,
    "conv_f32_flops_per_s": 2e13,
    "conv_f32_half_work_flops": 2e7,
    "memory_bandwidth_bytes_per_s": 7e11,
    "launch_overhead_s": 2e-6,
    "to_host_latency_s": 3e-6,
    "to_host_bandwidth_bytes_per_s": 11e9,
    "to_host_both_fraction": 0.8,
    "to_device_latency_s": 4e-6,
    "to_device_bandwidth_bytes_per_s": 12e9,
    "to_device_both_fraction": 0.7,
}


@pytest.fixture(scope="module")
def calibrated():
    calls = []
    return Device.calibrate(progress=lambda *call: calls.append(call), quick=True), calls


def test_every_measured_value_is_possible(calibrated):
    device, _ = calibrated
    assert set(device.measured) == set(MEASURED)
    for name, value in device.measured.items():
        assert math.isfinite(value)
        # A fitted start may be nothing; a rate may not.
        may_be_zero = name.endswith(("_latency_s", "_half_work_flops"))
        assert value > 0 or (may_be_zero and value == 0), name


def test_the_device_is_made_of_what_was_measured(calibrated):
    device, _ = calibrated
    measured = device.measured
    if jax.default_backend() == "cpu":
        assert device.peak_flops_per_s == {
            kind: measured[f"dot_{kind}_flops_per_s"] for kind in ("f32", "bf16", "f16")
        }
        assert device.dot_half_work_flops("bf16") == measured["dot_bf16_half_work_flops"]
    assert device.memory_bandwidth_bytes_per_s == measured["memory_bandwidth_bytes_per_s"]
    assert device.launch_overhead_s == measured["launch_overhead_s"]
    assert device.to_host.bandwidth_bytes_per_s == measured["to_host_bandwidth_bytes_per_s"]
    assert device.to_device.both_fraction == measured["to_device_both_fraction"]
    assert transfer_s(device, 2**30, "to_device") > transfer_s(device, 2**20, "to_device") > 0
    assert device.sources["to_host"].startswith("measured by Device.calibrate on ")


def test_its_file_is_exact(calibrated, tmp_path):
    device, _ = calibrated
    device.save(tmp_path / "mine.json")
    assert Device.load(tmp_path / "mine.json") == device


def test_progress_counts_up_to_the_end(calibrated):
    _, calls = calibrated
    assert [done for done, _, _ in calls] == list(range(len(LABELS)))
    assert {total for _, total, _ in calls} == {len(LABELS) - 1}
    assert [label for _, _, label in calls] == LABELS


def test_a_cpu_serves_for_forecasts_only(calibrated):
    device, _ = calibrated
    if jax.default_backend() != "cpu":
        pytest.skip("JAX runs on an accelerator here")
    assert device.compute_capability is None
    assert device.memory_bytes == device.host_memory_bytes
    with pytest.raises(BadArgumentError, match="Device `calibrated` cannot be compiled for"):
        device.target_config()


def fake_gpu(kind, **attributes):
    return SimpleNamespace(
        platform="gpu",
        device_kind=kind,
        memory_stats=lambda: {"bytes_limit": 9 * 10**9},
        **attributes,
    )


def test_a_known_gpu_keeps_what_was_not_measured():
    device = calibrate._build_device(fake_gpu("NVIDIA GeForce RTX 4090"), MEASURED)
    preset = devices()["rtx4090"]
    assert device.name == "calibrated"
    assert device.memory_bytes == 9 * 10**9
    assert device.target_config() != preset.target_config()
    assert device.compute_capability == (8, 9)
    # An f32 dot of an Ada card is a tf32 one: its plain f32 peak was not seen.
    assert device.peak_flops_per_s == dict(preset.peak_flops_per_s) | {
        "tf32": 3e13,
        "bf16": 5e13,
        "f16": 6e13,
    }
    assert device.sources["peak_flops_per_s.f32"] == preset.sources["peak_flops_per_s.f32"]
    assert device.sources["peak_flops_per_s.tf32"].startswith("measured by")


def test_a_derated_gpu_is_not_derated_twice():
    device = calibrate._build_device(fake_gpu("Tesla T4"), MEASURED)
    assert device.sustained_fraction == 1.0
    assert device.dot_flops_per_s("f16") == 6e13
    # Turing has no bf16: what was measured is the cost of widening it, not a peak.
    assert "bf16" not in device.peak_flops_per_s
    assert device.dot_flops_per_s("f32") == 3e13


def test_an_unknown_gpu_is_described_by_jax():
    gpu = fake_gpu("NVIDIA GeForce RTX 5090", compute_capability="12.0", core_count=170)
    device = calibrate._build_device(gpu, MEASURED)
    assert device.description == "NVIDIA GeForce RTX 5090 (gpu)"
    assert device.compute_capability == (12, 0)
    assert device.sm_count == 170
    assert "core_count: 170" in device.target_config()
    assert device.sources["memory_bytes"] == "bytes_limit of JAX's memory_stats()"


@pytest.mark.parametrize("capability", ["6.1", "gfx942", ""])
def test_a_gpu_that_cannot_be_compiled_for_has_no_capability(capability):
    gpu = fake_gpu("Another GPU", compute_capability=capability, core_count=30)
    assert calibrate._build_device(gpu, MEASURED).compute_capability is None


def test_medians_ignore_an_outlier_and_the_warm_up(monkeypatch):
    durations = itertools.chain([100.0, 1.0, 50.0, 2.0, 3.0, 2.0])
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def run():
        clock[0] += next(durations)

    effort = probes.Effort(repeats=5, probe_s=1e9, longest_run_s=1.0, array_bytes=4, copy_bytes=4)
    assert probes.median_s(run, effort) == 2.0


def test_a_slow_measurement_is_not_repeated(monkeypatch):
    clock, runs = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def run():
        clock[0] += 7.0
        runs.append(1)

    effort = probes.Effort(repeats=5, probe_s=7.0, longest_run_s=1.0, array_bytes=4, copy_bytes=4)
    assert probes.median_s(run, effort) == 7.0
    assert len(runs) == 2  # the warm-up, and one


@pytest.mark.parametrize("direction", ["to_host", "to_device"])
@pytest.mark.parametrize("pinned", [True, False])
def test_copies_copy(direction, pinned, monkeypatch):
    if pinned and not probes.has_pinned_host():
        pytest.skip("this backend has no pinned host memory")
    monkeypatch.setattr(probes, "has_pinned_host", lambda: pinned)
    copies: Any = probes._copier(direction, 4096, 3)()
    assert len(copies) == 3
    for each in copies:
        np.testing.assert_array_equal(np.asarray(each), np.ones(1024, np.float32))
    if pinned:
        kind = "pinned_host" if direction == "to_host" else "device"
        assert {each.sharding.memory_kind for each in copies} == {kind}


def test_sweeps_grow_until_they_would_take_too_long():
    brief = probes.Effort(
        repeats=1, probe_s=1.0, longest_run_s=0.0, array_bytes=2**12, copy_bytes=2**14
    )
    assert probes.sweep_dots("float32", brief).work == (2.0 * 128**3,)
    assert probes.sweep_convolutions("float32", brief).work == (2.0 * 8 * 16**2 * 9 * 16**2,)
    assert probes.sweep_copies("to_host", brief).work == (1024.0, 4096.0, 16384.0)
