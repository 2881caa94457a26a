"""Kernels: how long does one GPU kernel take?

Input: a kernel's work (`KernelCost`) and a `Device`. Output: seconds.
A roofline whose roofs bend: a kernel is as slow as its slowest resource (matrix units,
vector units, memory), and each resource reaches its peak only with enough work, which is
the thesis's `FLOPS(FLOPs)` (see docs/papers.md). The constants are fitted to published
training throughput by `benchmarks/calibrate_replay.py`; none belongs to a model.
"""

from dataclasses import dataclass
from typing import Literal

from jaxswap.model.device import Device

KernelKind = Literal["dot", "conv", "other"]


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
        dot: the share of the matrix peak that a large dot reaches.
        conv: the same for a convolution.
        vector: the share of the vector peak that fused elementwise code reaches.
        memory: the share of the memory bandwidth that a large kernel reaches.
        half_matrix_s: matrix work, in seconds at peak, at which half of it is reached.
        half_memory_s: memory work, in seconds at peak, at which half of it is reached.
        transcendental_flops: vector operations that one `exp` or `tanh` costs.
    """

    dot: float = 0.75
    conv: float = 0.6
    vector: float = 0.5
    memory: float = 0.85
    half_matrix_s: float = 10e-6
    half_memory_s: float = 3e-6
    transcendental_flops: float = 8.0


FITTED = Efficiency()


def kernel_s(device: Device, cost: KernelCost, efficiency: Efficiency = FITTED) -> float:
    """Seconds that a kernel takes on a device, launch included.

    Example:
        >>> h100 = Device.named("h100-sxm")
        >>> kernel_s(h100, KernelCost(size_bytes=1e6)) < kernel_s(h100, KernelCost(size_bytes=1e9))
        True
    """
    share = efficiency.conv if cost.kind == "conv" else efficiency.dot
    is_vector = cost.is_exact and cost.dtype == "f32"
    rate = device.vector_flops_per_s if is_vector else device.dot_flops_per_s(cost.dtype)
    matrix_s = cost.matrix_flops / rate
    vector_flops = cost.vector_flops + efficiency.transcendental_flops * cost.transcendentals
    vector_s = vector_flops / (efficiency.vector * device.vector_flops_per_s)
    memory_s = cost.size_bytes / device.memory_bandwidth_bytes_per_s
    # Work w at share e with half-work h: w/e + h is w/(e·w/(w + e·h)), a saturating rate.
    matrix_s = (matrix_s / share + efficiency.half_matrix_s) if matrix_s else 0.0
    memory_s = (memory_s / efficiency.memory + efficiency.half_memory_s) if memory_s else 0.0
    return device.launch_overhead_s + max(matrix_s, vector_s, memory_s)
