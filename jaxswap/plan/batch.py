"""Batch: which batch size trains the most samples per second?

Input: what a few batch sizes need and take without a plan, and a way to plan one. Output: the
sizes that are worth a plan, until no other can win.

The first stage of pommDNN (FGCS 152, 2024): do not enlarge the batch for its own sake, but as
far as throughput rises. Per batch size, in its words: the bytes that must leave the device
(the lower bound on what is swapped), and the ideal throughput, at which those bytes are copied
entirely beside the compute. Bytes and seconds of a step grow nearly linearly with its batch, so
a few traced sizes predict the rest.

What differs: values can be made again instead of copied, so the paper's ideal is not the best
there is. `find_bound_s` has both, and a size whose bound is no better than what another size
has been planned to reach is not planned at all.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from jaxswap.model.device import Device
from jaxswap.model.transfer import transfer_s

# A larger batch has to promise this much more throughput. It costs memory, and often accuracy.
MIN_GAIN = 0.01
# Throughput rises with the batch, and falls once a plan costs more than the batch gains. After
# so many sizes that were worse than the best, the rest are not tried.
_PATIENCE = 2
# Sizes whose forecast is this much slower than the best are given up: it is not off by more.
_HOPELESS = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one batch size needs and takes as it is written.

    Attributes:
        peak_bytes: device bytes.
        step_s: seconds of a step.
        update_s: those of them after the backward pass, once per step.
        again_s_per_byte: of making the cheapest value again.
        kept_bytes: device bytes if a plan kept everything.
        kept_s: seconds of a step then.
    """

    peak_bytes: float
    step_s: float
    update_s: float
    again_s_per_byte: float
    kept_bytes: float
    kept_s: float


def predict_samples(known: Mapping[int, Sample], sizes: Iterable[int]) -> dict[int, Sample]:
    """Samples for all sizes: the known ones, and straight lines through the nearest two.

    Example:
        >>> line = lambda b: Sample(peak_bytes=10 * b, step_s=b, update_s=1, again_s_per_byte=1,
        ...                         kept_bytes=9 * b, kept_s=b)
        >>> predict_samples({1: line(1), 3: line(3)}, [2])[2].peak_bytes
        20.0
    """
    traced = sorted(known)
    found = {}
    for size in sizes:
        above = next((k for k in range(1, len(traced) - 1) if traced[k] > size), len(traced) - 1)
        low, high = traced[above - 1], traced[above]
        share = (size - low) / (high - low)
        ends = [(getattr(known[low], name), getattr(known[high], name)) for name in _FIELDS]
        values = {n: a + share * (b - a) for n, (a, b) in zip(_FIELDS, ends, strict=True)}
        found[size] = known.get(size) or Sample(**values)
    return found


_FIELDS = ("peak_bytes", "step_s", "update_s", "again_s_per_byte", "kept_bytes", "kept_s")


def find_min_swap_bytes(sample: Sample, budget_bytes: int) -> int:
    """The bytes that cannot be on the device at the peak: the least that has to leave it."""
    return max(int(sample.kept_bytes) - budget_bytes, 0)


def find_ideal_s(sample: Sample, budget_bytes: int, device: Device) -> float:
    """The ideal of pommDNN: all that must leave is copied, entirely beside the compute."""
    return max(sample.kept_s, _copy_s(find_min_swap_bytes(sample, budget_bytes), device))


def find_bound_s(sample: Sample, budget_bytes: int, device: Device) -> float:
    """Seconds that no plan can beat: what the link has no time for is made again at the least cost.

    With `x` bytes copied of `n` that must leave, the step takes the longer of the copies,
    `x · c`, and the compute, `t + (n − x) · r`. The least of that is where both are equal.
    """
    leaving = find_min_swap_bytes(sample, budget_bytes)
    copied_s = _copy_s(leaving, device)
    if copied_s <= sample.kept_s:
        return sample.kept_s
    again_s = leaving * sample.again_s_per_byte
    share = min((sample.kept_s + again_s) / (copied_s + again_s), 1.0)
    return share * copied_s


def _copy_s(size_bytes: int, device: Device) -> float:
    """The directions have a link each; the slower one counts."""
    if not size_bytes:
        return 0.0
    size = float(size_bytes)
    return max(transfer_s(device, size, "to_host"), transfer_s(device, size, "to_device"))


def find_accumulated_s(samples: Mapping[int, Sample], size: int, budget_bytes: int) -> float | None:
    """Seconds of a step that adds up the gradients of the largest size that fits, part by part.

    None if no size fits as it is written. What is left over is counted as a whole part.
    """
    fitting = [b for b, s in samples.items() if s.peak_bytes <= budget_bytes and b <= size]
    if not fitting:
        return None
    sample, parts = samples[max(fitting)], -(-size // max(fitting))
    return parts * (sample.step_s - sample.update_s) + sample.update_s


def search_sizes(
    bounds_s: Mapping[int, float], plan_size: Callable[[int], float | None]
) -> Iterator[tuple[int, float]]:
    """Plans sizes, the smallest first, but none that cannot be worth it.

    Args:
        bounds_s: seconds that no plan of a size can beat, by size.
        plan_size: plans a size: seconds of its step, or None if no plan fits. Nothing larger
            than a size that does not fit is tried.

    Yields:
        Each size that was planned and fits, and its seconds.

    Example:
        >>> list(search_sizes({8: 1.0, 16: 1.5, 32: 4.0}, lambda size: size / 10))
        [(8, 0.8), (16, 1.6)]
    """
    best, worse = 0.0, 0
    for size in sorted(bounds_s):
        if size / bounds_s[size] <= best * (1.0 + MIN_GAIN):
            continue
        step_s = plan_size(size)
        if step_s is None:
            return
        yield size, step_s
        worse = 0 if size / step_s >= best else worse + 1
        best = max(best, size / step_s)
        if worse == _PATIENCE or size / step_s < _HOPELESS * best:
            return


def list_sizes(largest: int) -> list[int]:
    """Sizes that suit the hardware: multiples of 8, coarser as they grow; small ones as well.

    Example:
        >>> list_sizes(40)
        [1, 2, 4, 8, 16, 24, 32, 40]
        >>> list_sizes(200)[-6:]
        [80, 96, 112, 128, 160, 192]
    """
    sizes, size, stride = [1, 2, 4], 8, 8
    while size <= largest:
        sizes.append(size)
        stride = max(8, 1 << (size.bit_length() - 3))
        size += stride
    return [each for each in sizes if each <= largest]


def choose_best(throughputs: Mapping[int, float], at_least: float = 0.0) -> int:
    """The size with the most samples per second, or a smaller one that is within the gain.

    Args:
        throughputs: by size.
        at_least: what the smaller one has to reach: the throughput that is there without a plan.

    Example:
        >>> choose_best({8: 99.5, 16: 100.0})
        8
    """
    needed = max(max(throughputs.values()) / (1.0 + MIN_GAIN), at_least)
    best = max(throughputs, key=throughputs.__getitem__)
    return min((b for b, rate in throughputs.items() if rate >= needed), default=best)


def find_neighbours(forecasts: Mapping[int, float], size: int) -> list[int]:
    """A size with the one before and the one behind it, as far as they are not hopeless.

    Args:
        forecasts: samples per second by size.
        size: one of them.

    Example:
        >>> find_neighbours({4: 89.0, 8: 100.0, 16: 99.0, 32: 98.0}, 8)
        [8, 16]
    """
    ordered = sorted(forecasts)
    at = ordered.index(size)
    near = ordered[max(at - 1, 0) : at + 2]
    return [b for b in near if forecasts[b] >= _HOPELESS * forecasts[size]]


def climb(
    first: int,
    forecasts: Mapping[int, float],
    known: Mapping[int, float | None],
    try_size: Callable[[int], float | None],
    begin: Callable[[list[int]], None] = lambda sizes: None,
) -> dict[int, float]:
    """Tries a size and its neighbours, and goes on from the best of all until that is the top.

    Args:
        first: where to start: the best size by forecast.
        forecasts: samples per second by size.
        known: what was tried before: samples per second, or None for what does not fit.
        try_size: tries a size, likewise. While none fits, smaller ones are tried.
        begin: told of the sizes that are tried next, to begin with what takes long.

    Returns:
        Samples per second of all sizes that were tried and fit.

    Example:
        >>> climb(8, {8: 99.0, 16: 100.0, 32: 98.0}, {}, lambda size: float(size))
        {8: 8.0, 16: 16.0, 32: 32.0}
    """
    tried, rates = dict(known), {}
    best: int | None = first
    while best is not None:
        missing = [b for b in find_neighbours(forecasts, best) if b not in tried]
        begin(missing)
        tried |= {size: try_size(size) for size in missing}
        rates = {size: rate for size, rate in tried.items() if rate is not None}
        if rates:
            top = max(rates, key=rates.__getitem__)
            best = None if top == best else top
        else:
            best = max((b for b in forecasts if b < best and b not in tried), default=None)
    return rates
