"""Transfers: how long does a copy between the device and the host take?

Input: a `Device`, sizes in bytes and a direction. Output: seconds.
A copy takes a fixed start plus its bytes at the link's rate, `t = latency + bytes / bandwidth`,
and the rate falls while the other direction is busy too. Copies are of pinned host memory.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxswap._errors import BadArgumentError

if TYPE_CHECKING:
    from jaxswap.model.device import Device

Direction = Literal["to_host", "to_device"]
"""`"to_host"` is device → host (offload), `"to_device"` is host → device (reload)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction of the link between the device and the host.

    Attributes:
        latency_s: what a copy of any size costs before its first byte.
        bandwidth_bytes_per_s: the rate of a large copy of pinned memory, alone on the link.
        both_fraction: the part of that rate which is left while the other direction is busy.

    Example:
        >>> Link(latency_s=5e-6, bandwidth_bytes_per_s=25e9, both_fraction=0.5).seconds(25e6)
        0.001005
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    both_fraction: float = 1.0

    def __post_init__(self) -> None:
        _require_number(self, "latency_s", least=0.0, rule="a number of seconds, zero or more")
        _require_number(
            self, "bandwidth_bytes_per_s", above=0.0, rule="a number of bytes/s above zero"
        )
        _require_number(
            self, "both_fraction", above=0.0, most=1.0, rule="a fraction above 0, at most 1"
        )

    @overload
    def seconds(self, size_bytes: float, *, both: bool = False) -> float: ...
    @overload
    def seconds(
        self, size_bytes: ArrayLike, *, both: bool = False
    ) -> float | NDArray[np.float64]: ...
    def seconds(self, size_bytes: ArrayLike, *, both: bool = False) -> float | NDArray[np.float64]:
        """The time of one copy of `size_bytes`; no bytes, no copy, no time."""
        sizes = np.asarray(size_bytes, dtype=np.float64)
        if not np.all(sizes >= 0):  # false for NaN too
            raise BadArgumentError(
                f"`size_bytes={size_bytes!r}` has a size that no copy can have: give sizes of "
                "zero bytes or more."
            )
        rate = self.bandwidth_bytes_per_s * (self.both_fraction if both else 1.0)
        times = np.where(sizes > 0, self.latency_s + sizes / rate, 0.0)
        return float(times) if times.ndim == 0 else times


@overload
def transfer_s(
    device: "Device", size_bytes: float, direction: Direction, both: bool = False
) -> float: ...
@overload
def transfer_s(
    device: "Device", size_bytes: ArrayLike, direction: Direction, both: bool = False
) -> float | NDArray[np.float64]: ...
def transfer_s(
    device: "Device", size_bytes: ArrayLike, direction: Direction, both: bool = False
) -> float | NDArray[np.float64]:
    """Seconds to copy `size_bytes` between the device and pinned host memory.

    Args:
        device: whose link to use.
        size_bytes: one size, or an array of sizes (one copy each).
        direction: `"to_host"` or `"to_device"`.
        both: whether the other direction is busy during the whole copy.

    Example:
        >>> from jaxswap.model.device import Device
        >>> round(1e3 * transfer_s(Device.named("h100-sxm"), 2**30, "to_host"), 1)
        19.5
    """
    return device.link(direction).seconds(size_bytes, both=both)


def fit_start_and_rate(work: ArrayLike, time_s: ArrayLike) -> tuple[float, float]:
    """Fits `t = start + work / rate` to measurements, in relative error.

    The same line serves copies (latency and bandwidth) and kernels, where an achieved rate of
    `F(w) = rate · w / (w + w_half)` is a time of `(w + w_half) / rate`: `w_half = start · rate`.

    Args:
        work: bytes, or FLOPs, one per measurement.
        time_s: the seconds each took.

    Returns:
        The start in seconds, never negative, and the rate, above zero.

    Example:
        >>> start_s, rate = fit_start_and_rate([1e6, 2e6, 4e6], [0.002, 0.003, 0.005])
        >>> round(start_s, 6), round(rate)
        (0.001, 1000000000)
    """
    amounts = np.asarray(work, dtype=np.float64)
    times = np.asarray(time_s, dtype=np.float64)
    if amounts.size == 0 or amounts.shape != times.shape or not np.all(times > 0):
        raise BadArgumentError(
            f"A line cannot be fitted to {amounts.size} amounts and {times.size} times: give as "
            "many times as amounts, at least one, all above zero."
        )
    best_rate = float(np.max(amounts / times))
    # Dividing each equation by its time weighs a 1 KiB copy as much as a 1 GiB one.
    scaled = np.stack([1.0 / times, amounts / times], axis=1)
    start_s, inverse_rate = np.linalg.lstsq(scaled, np.ones_like(times), rcond=None)[0]
    if start_s < 0:
        slowness = scaled[:, 1]
        start_s, inverse_rate = 0.0, float(slowness.sum() / (slowness**2).sum())
    if inverse_rate <= 0:
        return 0.0, best_rate
    return float(start_s), float(1.0 / inverse_rate)


def _require_number(
    owner: Any,
    field: str,
    *,
    rule: str,
    above: float = -np.inf,
    least: float = -np.inf,
    most: float = np.inf,
) -> None:
    value = getattr(owner, field)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and np.isfinite(value) and value > above and least <= value <= most):
        raise BadArgumentError(
            f"`{type(owner).__name__}.{field}={value!r}` is not possible: it is {rule}."
        )
