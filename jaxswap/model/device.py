"""Device: what does the machine that runs the step have, and how fast is it?

Input: a preset's name, a JSON file, or a measurement. Output: a `Device`, which is numbers
only: this module imports no JAX.
Units are bytes, seconds and FLOP/s, and one multiply-add is two FLOPs.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from jaxswap._errors import BadArgumentError
from jaxswap.model.capability import (
    CORE_LIMITS,
    Capability,
    CoreLimits,
    compiled_as,
    explain_compiled_as,
    render_target,
)
from jaxswap.model.dtypes import DTYPE_CLASSES, classify_dtype
from jaxswap.model.transfer import Direction, Link

Progress = Callable[[int, int, str], None]
"""Called as `progress(done, total, label)`, with `label` naming what comes next."""

RAMP_S = 6.0e-6
"""Half-saturation of a dot, as a time: its start and ramp, launch included.

Fitted to XLA's own measurements of bf16 dots on an H100, which a line `t = 5.95 µs + w / F`
with `F = 797 TFLOP/s` follows within 8% from 67 MFLOP to 137 GFLOP (openxla/xla
xla/service/gpu/model/matmul_interpolator_data.h). Assumed for the other devices.
"""

# Which peak a dot of a class runs at, best first, where the device has several. f32 dots take
# tf32 tensor cores, JAX's default precision. Without native bf16 XLA widens to f32; without f8
# units to f16; integers other than 8-bit ones have no tensor cores.
_DOT_PEAKS = {
    "f64": ("f64",),
    "f32": ("tf32", "f32"),
    "tf32": ("tf32", "f32"),
    "bf16": ("bf16", "f32"),
    "f16": ("f16", "f32"),
    "f8": ("f8", "f16", "f32"),
    "int8": ("int8", "f32"),
    "int": ("f32",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator and its link to the host.

    Attributes:
        name: the preset's name, or the file's.
        description: what it is, as its vendor calls it.
        memory_bytes: device memory that a program can have.
        peak_flops_per_s: FLOP/s by dtype class: `f32` (required; plain units, no tensor cores),
            `tf32`, `bf16`, `f16`, `f64`, `f8`, `int8`, with f32 accumulation.
        memory_bandwidth_bytes_per_s: device memory, reads and writes together.
        l2_cache_bytes: the last cache before device memory; 0 if not known.
        launch_overhead_s: what each kernel costs however small it is.
        to_host: the link from the device to pinned host memory (offloads).
        to_device: the link from pinned host memory to the device (reloads).
        sustained_fraction: the part of the peaks that the power limit lets last.
        half_work_flops: FLOPs of a dot that reach half its peak, by dtype class, where known.
        host_memory_bytes: memory of the host, if known.
        compute_capability: `(major, minor)` of an NVIDIA GPU, None for anything else.
        sm_count: streaming multiprocessors; None without a compute capability.
        clock_rate_ghz: boost clock; None without a compute capability.
        measured: what `Device.calibrate` measured, by name, with units in the names.
        sources: where each figure comes from, by field (`peak_flops_per_s.bf16` for a class).

    Example:
        >>> Device.named("a100-40gb").dot_flops_per_s("float32")
        156000000000000.0
    """

    name: str
    description: str
    memory_bytes: int
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    memory_bandwidth_bytes_per_s: float
    l2_cache_bytes: int
    launch_overhead_s: float
    to_host: Link
    to_device: Link
    sustained_fraction: float = 1.0
    half_work_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    host_memory_bytes: int | None = None
    compute_capability: Capability | None = None
    sm_count: int | None = None
    clock_rate_ghz: float | None = None
    measured: Mapping[str, float] = field(default_factory=dict, hash=False)
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        from jaxswap.model.device_json import check_device

        check_device(self)
        for each in ("peak_flops_per_s", "half_work_flops", "measured", "sources"):
            object.__setattr__(self, each, MappingProxyType(dict(getattr(self, each))))

    def __reduce__(self) -> tuple[Any, ...]:
        # Read-only mappings do not pickle or copy by themselves.
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        plain = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
        return _rebuild, (plain,)

    def link(self, direction: Direction) -> Link:
        """The link in one direction: `"to_host"` or `"to_device"`."""
        if direction not in ("to_host", "to_device"):
            raise BadArgumentError(
                f"`direction={direction!r}` is not a direction of the link: it is "
                '"to_host" (offload) or "to_device" (reload).'
            )
        return self.to_host if direction == "to_host" else self.to_device

    def dot_flops_per_s(self, dtype: object) -> float:
        """The rate of a large dot or convolution at JAX's default precision.

        Args:
            dtype: of the operands, as a dtype or its name in NumPy or HLO (`"bf16"`).

        Example:
            >>> Device.named("v100-16gb").dot_flops_per_s("bf16")  # no native bf16: as f32
            15700000000000.0
        """
        kind = classify_dtype(dtype)
        if kind == "f64" and "f64" not in self.peak_flops_per_s:
            return self.vector_flops_per_s / 2
        peak = next(c for c in _DOT_PEAKS[kind] if c in self.peak_flops_per_s)
        return self.peak_flops_per_s[peak] * self.sustained_fraction

    @property
    def vector_flops_per_s(self) -> float:
        """The rate of f32 arithmetic that uses no tensor cores: elementwise, reductions."""
        return self.peak_flops_per_s["f32"] * self.sustained_fraction

    def dot_half_work_flops(self, dtype: object) -> float:
        """FLOPs of a dot that reach half of `dot_flops_per_s`: `F(w) = F · w / (w + this)`.

        As given or measured for the dtype's class, otherwise what `RAMP_S` gives.
        """
        kind = classify_dtype(dtype)
        for each in _DOT_PEAKS[kind]:
            if each in self.half_work_flops:
                return self.half_work_flops[each]
        return self.dot_flops_per_s(dtype) * RAMP_S

    @property
    def core_limits(self) -> CoreLimits:
        """Limits of one streaming multiprocessor, as compiled for."""
        return CORE_LIMITS[self.compiled_as]

    @property
    def compiled_as(self) -> Capability:
        """The compute capability that steps for this device are compiled as."""
        return compiled_as(self._require_capability())

    @property
    def compile_note(self) -> str | None:
        """What is not exact about the compiled step, for reports; None if nothing is."""
        return explain_compiled_as(self._require_capability())

    def target_config(self) -> str:
        """The text from which XLA's GPU compiler builds this device, present or not.

        Example:
            >>> "core_count: 132" in Device.named("h100-sxm").target_config()
            True
        """
        capability = self._require_capability()
        assert self.sm_count is not None
        assert self.clock_rate_ghz is not None
        return render_target(
            description=self.description,
            capability=capability,
            sm_count=self.sm_count,
            clock_rate_ghz=self.clock_rate_ghz,
            memory_bytes=self.memory_bytes,
            memory_bandwidth_bytes_per_s=self.memory_bandwidth_bytes_per_s,
            l2_cache_bytes=self.l2_cache_bytes,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the device to a versioned JSON file, exactly."""
        from jaxswap.model.device_json import save_device

        save_device(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Device":
        """Reads what `save` wrote, and refuses anything else."""
        from jaxswap.model.device_json import load_device

        return load_device(path)

    @classmethod
    def named(cls, name: str) -> "Device":
        """The preset of that name; case, spaces, dashes and underscores do not matter.

        Example:
            >>> Device.named("RTX 4090").name
            'rtx4090'
        """
        from jaxswap.model.presets import find_preset

        return find_preset(name)

    @classmethod
    def detect(cls) -> "Device":
        """The preset of the GPU that JAX runs on, with the memory JAX may use there."""
        from jaxswap.model.detect import detect_device

        return detect_device()

    @classmethod
    def calibrate(cls, progress: Progress | None = None, quick: bool = False) -> "Device":
        """Measures the device that JAX runs on, a CPU included.

        Args:
            progress: called as `progress(done, total, label)` before each measurement and at
                the end.
            quick: seconds instead of most of a minute, and rougher figures.
        """
        from jaxswap.model.calibrate import calibrate_device

        return calibrate_device(progress=progress, quick=quick)

    def _require_capability(self) -> Capability:
        if self.compute_capability is None:
            raise BadArgumentError(
                f"Device `{self.name}` cannot be compiled for: it has no CUDA compute "
                "capability, so it serves for forecasts only. To compile, pass a GPU by name, "
                'such as "h100-sxm".'
            )
        return self.compute_capability


def _rebuild(values: Mapping[str, Any]) -> Device:
    return Device(**values)


assert set(DTYPE_CLASSES) | {"int"} == set(_DOT_PEAKS)
