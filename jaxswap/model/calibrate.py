"""Calibration: what does the device that JAX runs on really reach?

Input: the machine itself. Output: a `Device` whose rates are measured, a CPU's included.
Peaks are those of the fitted curve `F(w) = F · w / (w + w_half)`, and the preset's figures stay
where nothing was measured. Every figure's source says which it is.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from jaxswap._errors import BadArgumentError, UnknownDeviceError
from jaxswap.model import probes
from jaxswap.model.capability import Capability, compiled_as
from jaxswap.model.detect import match_kind, read_memory_limit
from jaxswap.model.device import Device, Progress
from jaxswap.model.transfer import Link

_DOT_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
# Only for the compiler's own cost model, where JAX does not say and no preset knows.
_ASSUMED_CLOCK_GHZ = 1.5


def calibrate_device(*, progress: Progress | None = None, quick: bool = False) -> Device:
    """Measures the device that JAX runs on; see `Device.calibrate`."""
    effort = probes.QUICK if quick else probes.FULL
    measured: dict[str, float] = {}
    steps = _plan_probes(effort, measured)
    for done, (label, measure) in enumerate(steps):
        if progress is not None:
            progress(done, len(steps), label)
        measure()
    if progress is not None:
        progress(len(steps), len(steps), "done")
    return _build_device(jax.devices()[0], measured)


def _plan_probes(
    effort: probes.Effort, measured: dict[str, float]
) -> list[tuple[str, Callable[[], None]]]:
    """The probes in order, each with a label; each writes what it finds into `measured`."""

    def note_ops(op: str, name: str, sweep: Callable[..., probes.Sweep]) -> None:
        start_s, rate = sweep(_DOT_DTYPES[name], effort).fit()
        measured[f"{op}_{name}_flops_per_s"] = rate
        measured[f"{op}_{name}_half_work_flops"] = start_s * rate

    def note_copies(direction: Any) -> None:
        start_s, rate = probes.sweep_copies(direction, effort).fit()
        measured[f"{direction}_latency_s"] = start_s
        measured[f"{direction}_bandwidth_bytes_per_s"] = rate

    def note_both() -> None:
        for direction, fraction in probes.measure_both(effort).items():
            measured[f"{direction}_both_fraction"] = fraction

    def note(name: str, measure: Callable[[probes.Effort], float]) -> None:
        measured[name] = measure(effort)

    dots = [
        (f"{name} dots", lambda name=name: note_ops("dot", name, probes.sweep_dots))
        for name in _DOT_DTYPES
    ]
    return [
        *dots,
        ("f32 convolutions", lambda: note_ops("conv", "f32", probes.sweep_convolutions)),
        (
            "memory bandwidth",
            lambda: note("memory_bandwidth_bytes_per_s", probes.measure_bandwidth),
        ),
        ("kernel launch", lambda: note("launch_overhead_s", probes.measure_launch)),
        ("copies to the host", lambda: note_copies("to_host")),
        ("copies to the device", lambda: note_copies("to_device")),
        ("copies both ways", note_both),
    ]


def _build_device(device: Any, measured: dict[str, float]) -> Device:
    base = _describe(device, measured)
    links = {
        direction: Link(
            latency_s=measured[f"{direction}_latency_s"],
            bandwidth_bytes_per_s=measured[f"{direction}_bandwidth_bytes_per_s"],
            both_fraction=measured[f"{direction}_both_fraction"],
        )
        for direction in ("to_host", "to_device")
    }
    peaks, half_works = dict(base.peak_flops_per_s), dict(base.half_work_flops)
    for name in _DOT_DTYPES:
        kind = _measured_class(name, base.compute_capability)
        if kind is not None:
            peaks[kind] = measured[f"dot_{name}_flops_per_s"]
            half_works[kind] = measured[f"dot_{name}_half_work_flops"]
    by = f"measured by Device.calibrate on {device.device_kind}"
    figures = ["memory_bandwidth_bytes_per_s", "launch_overhead_s", "to_host", "to_device"]
    figures += [f"peak_flops_per_s.{kind}" for kind in half_works]
    return replace(
        base,
        peak_flops_per_s=peaks,
        half_work_flops=half_works,
        memory_bandwidth_bytes_per_s=measured["memory_bandwidth_bytes_per_s"],
        launch_overhead_s=measured["launch_overhead_s"],
        # Measured rates are sustained ones already.
        sustained_fraction=1.0,
        measured=measured,
        sources=dict(base.sources) | dict.fromkeys(figures, by),
        **links,
    )


def _measured_class(name: str, capability: Capability | None) -> str | None:
    """The class whose peak a measured dot shows: JAX's default on a GPU may be another's."""
    if name == "f32" and capability is not None and capability >= (8, 0):
        return "tf32"
    if name == "bf16" and capability is not None and capability < (8, 0):
        return None
    return name


def _describe(device: Any, measured: dict[str, float]) -> Device:
    """What is known of the device apart from its rates: the preset, or what JAX says."""
    memory_bytes = read_memory_limit(device) or _host_memory_bytes()
    if device.platform in ("gpu", "cuda"):
        try:
            preset = match_kind(device.device_kind, memory_bytes)
            return replace(preset, name="calibrated", host_memory_bytes=_host_memory_bytes())
        except UnknownDeviceError:
            pass  # no preset of that model: JAX's own description has to do
    capability, sm_count = _read_capability(device)
    placeholder = Link(latency_s=0.0, bandwidth_bytes_per_s=1.0)
    return Device(
        name="calibrated",
        description=f"{device.device_kind} ({device.platform})",
        memory_bytes=memory_bytes,
        peak_flops_per_s={"f32": measured["dot_f32_flops_per_s"]},
        memory_bandwidth_bytes_per_s=measured["memory_bandwidth_bytes_per_s"],
        l2_cache_bytes=0,
        launch_overhead_s=measured["launch_overhead_s"],
        to_host=placeholder,
        to_device=placeholder,
        host_memory_bytes=_host_memory_bytes(),
        compute_capability=capability,
        sm_count=sm_count,
        clock_rate_ghz=None if capability is None else _ASSUMED_CLOCK_GHZ,
        sources={
            "memory_bytes": "bytes_limit of JAX's memory_stats()"
            if read_memory_limit(device)
            else "physical memory of the machine",
        },
    )


def _read_capability(device: Any) -> tuple[Capability | None, int | None]:
    """The compute capability and multiprocessors of a GPU that can be compiled for."""
    text = str(getattr(device, "compute_capability", ""))
    sm_count = getattr(device, "core_count", None)
    major, _, minor = text.partition(".")
    if not (major.isdigit() and minor.isdigit() and sm_count):
        return None, None
    capability = int(major), int(minor)
    try:
        compiled_as(capability)
    except BadArgumentError:
        return None, None
    return capability, int(sm_count)


def _host_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
