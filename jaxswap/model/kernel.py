"""Kernels: how long does one GPU kernel take?

Input: a kernel's work (`KernelCost`) and a `Device`. Output: seconds.
A roofline whose roofs bend: a kernel is as slow as its slowest resource (matrix units,
vector units, memory), and each resource reaches its peak only with enough work, which is
the thesis's `FLOPS(FLOPs)` (see docs/papers.md). The constants are fitted to published
training throughput by `benchmarks/throughput_table.py --fit`; none belongs to a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jaxswap.model.device import Device
from jaxswap.model.dtypes import classify_dtype

KernelKind = Literal["dot", "conv", "other"]
MatrixUnits = Literal["half", "tf32", "f32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCost:
    """The work of one kernel.

    Attributes:
        kind: what its matrix work is.
        dtype: of the operands of that work.
        is_exact: whether f32 operands may not be rounded to tf32.
        matrix_flops: the dot's or convolution's own.
        vector_flops: all others, outside tensor cores.
        transcendentals: calls of `exp`, `tanh` and their like.
        size_bytes: device memory read and written.
    """

    kind: KernelKind = "other"
    dtype: str = "f32"
    is_exact: bool = False
    matrix_flops: float = 0.0
    vector_flops: float = 0.0
    transcendentals: float = 0.0
    size_bytes: float = 0.0

    @property
    def flops(self) -> float:
        """All floating-point operations, matrix and vector."""
        return self.matrix_flops + self.vector_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What kernels reach of a device's peaks, and the work at which they reach half of it.

    Attributes:
        dot_half: the share of the matrix peak that a large dot in 16 bits reaches.
        dot_tf32: the same for f32 operands that are rounded to tf32.
        dot_f32: the same for f32 on plain units, and for everything wider.
        conv_half: as `dot_half`, for a convolution.
        conv_tf32: as `dot_tf32`, for a convolution.
        conv_f32: as `dot_f32`, for a convolution.
        vector: the share of the vector peak that fused elementwise code reaches.
        memory: the share of the memory bandwidth that a large kernel reaches.
        half_matrix_s: matrix work, in seconds at peak, at which half of it is reached.
        half_memory_s: memory work, in seconds at peak, at which half of it is reached.
        transcendental_flops: vector operations that one `exp` or `tanh` costs.
    """

    dot_half: float = 0.75
    dot_tf32: float = 0.75
    dot_f32: float = 0.85
    conv_half: float = 0.6
    conv_tf32: float = 0.4
    conv_f32: float = 0.85
    vector: float = 0.5
    memory: float = 0.85
    half_matrix_s: float = 10e-6
    half_memory_s: float = 3e-6
    transcendental_flops: float = 8.0

    def matrix_share(self, kind: KernelKind, units: MatrixUnits) -> float:
        """What a large kernel reaches on those units."""
        shares = {
            ("dot", "half"): self.dot_half,
            ("dot", "tf32"): self.dot_tf32,
            ("dot", "f32"): self.dot_f32,
            ("conv", "half"): self.conv_half,
            ("conv", "tf32"): self.conv_tf32,
            ("conv", "f32"): self.conv_f32,
        }
        return shares["conv" if kind == "conv" else "dot", units]


# `python -m benchmarks.throughput_table --fit`, 35 published runs; docs/throughput.md.
FITTED = Efficiency(
    dot_half=0.683,
    dot_tf32=0.708,
    dot_f32=0.941,
    conv_half=0.851,
    conv_tf32=0.404,
    conv_f32=1.16,
    vector=0.124,
    memory=0.595,
    half_matrix_s=1.78e-05,
    half_memory_s=3.77e-06,
    transcendental_flops=11.0,
)


def kernel_s(device: Device, cost: KernelCost, efficiency: Efficiency = FITTED) -> float:
    """Seconds that a kernel takes on a device, launch included.

    Example:
        >>> h100 = Device.named("h100-sxm")
        >>> kernel_s(h100, KernelCost(size_bytes=1e6)) < kernel_s(h100, KernelCost(size_bytes=1e9))
        True
    """
    return float(kernels_s(device, [cost], efficiency)[0])


def kernels_s(
    device: Device, costs: Sequence[KernelCost], efficiency: Efficiency = FITTED
) -> np.ndarray:
    """`kernel_s` of many kernels at once."""
    matrix = np.array([c.matrix_flops for c in costs])
    vector = np.array([c.vector_flops for c in costs])
    transcendental = np.array([c.transcendentals for c in costs])
    size_bytes = np.array([c.size_bytes for c in costs])
    rates = np.ones_like(matrix)
    for k, cost in enumerate(costs):
        if cost.matrix_flops:
            units, rate = matrix_units(device, cost)
            rates[k] = rate * efficiency.matrix_share(cost.kind, units)
    vector_flops = vector + efficiency.transcendental_flops * transcendental
    vector_s = vector_flops / (efficiency.vector * device.vector_flops_per_s)
    # Work w at share e with half-work h takes w/e + h: a rate of e·w/(w + e·h).
    matrix_s = matrix / rates + efficiency.half_matrix_s * (matrix > 0)
    bandwidth = device.memory_bandwidth_bytes_per_s * efficiency.memory
    memory_s = size_bytes / bandwidth + efficiency.half_memory_s * (size_bytes > 0)
    return device.launch_overhead_s + np.maximum(np.maximum(matrix_s, memory_s), vector_s)


def matrix_units(device: Device, cost: KernelCost) -> tuple[MatrixUnits, float]:
    """The units that a kernel's matrix work runs on, and their peak FLOP/s."""
    kind = classify_dtype(cost.dtype)
    if kind == "f32" and cost.is_exact:
        return "f32", device.vector_flops_per_s
    rate = device.dot_flops_per_s(cost.dtype)
    if rate <= device.vector_flops_per_s:
        return "f32", rate
    return ("tf32" if kind in ("f32", "tf32") else "half"), rate
