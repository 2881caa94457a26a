"""Effort: what does XLA think an operation costs, when it chooses what to fuse?

Input: a `Device`. Output: a `Yardstick`, which times kernels as XLA:GPU's own cost model does:
bytes at the device's bandwidth, and clock cycles per element at the rate of its f32 units.
Which of two ways is faster depends on the device: a card with little bandwidth computes a `tanh`
again where another writes it to memory and reads it back. These times are for choosing alone;
what kernels take is `model/kernel.py`'s matter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from jaxswap.model.capability import CORE_LIMITS
from jaxswap.model.device import Device
from jaxswap.program.graph import Graph, Node

_LAUNCH_S = 1e-6
# Memory and arithmetic hide each other, but for this share of the shorter one.
_UNHIDDEN = 0.05
# Cycles of what is not listed, and of all arithmetic in 16 bits or whole numbers.
_DEFAULT_CYCLES = 3.0
# Cycles per f32 element, by compute capability; of one that is not here, those of 8.6. As
# published in openxla/xla, xla/service/gpu/model/hlo_op_profiles_data.h.
_LISTED = ("exp", "expm1", "log", "log1p", "rsqrt", "sqrt", "tanh", "sin", "cos", "cbrt", "atan2",
           "pow")  # fmt: skip


def _list(*cycles: float, **more: float) -> Mapping[str, float]:
    return MappingProxyType(dict(zip(_LISTED, cycles, strict=True)) | more)


_CYCLES: Mapping[tuple[int, int], Mapping[str, float]] = MappingProxyType(
    {
        (7, 5): _list(83, 319, 201, 218, 74, 74, 167, 717, 737, 783, 414, 1085),
        (8, 0): MappingProxyType({"log": 259.0, "tanh": 504.0, "pow": 1221.0}),
        (8, 6): _list(86, 381, 244, 262, 75, 75, 190, 662, 662, 867, 486, 925),
        (9, 0): _list(
            79, 190, 166, 229, 75, 75, 467, 958, 978, 178, 431, 510, add=7, sub=7, div=19
        ),
        (10, 0): _list(
            82, 196, 165, 200, 74, 74, 137, 990, 1002, 180, 373, 463, add=7, sub=7, div=23, mul=7
        ),
    }
)
_OTHERWISE = (8, 6)
# What XLA writes out in simpler operations first: about how many of each, and of others.
_MADE_OF: Mapping[str, tuple[Mapping[str, int], int]] = MappingProxyType({
    "add_any": ({"add": 1}, 0),
    "exp2": ({"exp": 1, "mul": 1}, 0),
    "logistic": ({"exp": 1, "add": 1, "div": 1}, 1),
    "tan": ({"sin": 1, "cos": 1, "div": 1}, 0),
    "erfc": ({"exp": 1, "div": 3, "mul": 25, "add": 25}, 8),
    "erf_inv": ({"log1p": 1, "sqrt": 1, "mul": 18, "add": 18}, 4),
    "lgamma": ({"log": 2, "log1p": 1, "div": 8, "add": 20, "sin": 1}, 8),
    "digamma": ({"log": 1, "div": 10, "add": 20, "tan": 1}, 8),
    "sinh": ({"exp": 2, "sub": 1, "mul": 1}, 8),
    "cosh": ({"exp": 2, "add": 1}, 2),
})  # fmt: skip
_WIDE = ("float32", "float64")
_TRITON_SINCE = (8, 0)  # which XLA writes row-wise kernels in


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What kernels are compared with.

    Attributes:
        bytes_per_s: device memory, reads and writes together.
        cycles_per_s: cycles of all f32 units together, two operations each.
        cycles: what the operations of a capability take per element.
        has_row_kernels: whether one kernel reduces a row and goes on with it (a softmax).
    """

    bytes_per_s: float
    cycles_per_s: float
    cycles: Mapping[str, float]
    has_row_kernels: bool = True

    def seconds(self, size_bytes: float, effort: float) -> float:
        """How long a kernel takes."""
        moved_s, work_s = size_bytes / self.bytes_per_s, effort / self.cycles_per_s
        return _LAUNCH_S + max(moved_s, work_s) + _UNHIDDEN * min(moved_s, work_s)

    def is_computing(self, size_bytes: float, effort: float) -> bool:
        """Whether a kernel takes longer to compute than to read and write."""
        return effort / self.cycles_per_s > size_bytes / self.bytes_per_s

    def effort(self, graph: Graph, node: Node) -> float:
        """Cycles of one node."""
        if node.kind == "opaque" or not node.writes:
            return 0.0
        flops, made = node.cost.flops + node.cost.transcendentals, graph.arrays[node.writes[0]]
        if node.kind == "reduce":
            return flops * self._per_element("add", made.dtype)
        return flops * self._per_element(node.name, made.dtype)

    def _per_element(self, name: str, dtype: str) -> float:
        if name in _MADE_OF:
            parts, plain = _MADE_OF[name]
            known = sum(n * self._per_element(part, dtype) for part, n in parts.items())
            return known + plain * _DEFAULT_CYCLES
        if name in ("add", "sub", "mul", "div") and dtype not in _WIDE:
            return _DEFAULT_CYCLES
        return self.cycles.get(name, _DEFAULT_CYCLES)


def yardstick_for(device: Device) -> Yardstick:
    """The yardstick of a device; that of a large one where it does not say what it is."""
    capability = device.compute_capability or (0, 0)
    if capability not in CORE_LIMITS or not device.sm_count or not device.clock_rate_ghz:
        return DEFAULT
    limits = CORE_LIMITS[capability]
    return Yardstick(
        bytes_per_s=device.memory_bandwidth_bytes_per_s,
        cycles_per_s=device.sm_count * limits.fpus_per_core * device.clock_rate_ghz * 2e9,
        cycles=_CYCLES.get(capability, _CYCLES[_OTHERWISE]),
        has_row_kernels=capability >= _TRITON_SINCE,
    )


# An H100, in round numbers.
DEFAULT = Yardstick(bytes_per_s=3.35e12, cycles_per_s=67e12, cycles=_CYCLES[9, 0])
