"""Probes: how fast is the device that JAX runs on, one property at a time?

Input: an `Effort`, which bounds what each probe may take. Output: sweeps of work against time.
Every time is a median after a warm-up, up to `jax.block_until_ready`. Kernels are timed inside
one compiled program, as in a training step, so Python's dispatch is not in them. Copies are
dispatched from Python, so their measured latency is an upper bound.
"""

import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxswap.model.transfer import Direction, fit_start_and_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long a calibration may take.

    Attributes:
        repeats: timings per measurement, of which the median counts.
        probe_s: seconds after which a measurement takes no further repeat.
        longest_run_s: no larger size is tried once it would run longer than this.
        array_bytes: size of the arrays whose bandwidth is measured.
        copy_bytes: the largest copy between device and host.
    """

    repeats: int
    probe_s: float
    longest_run_s: float
    array_bytes: int
    copy_bytes: int


QUICK = Effort(repeats=3, probe_s=0.1, longest_run_s=0.06, array_bytes=2**27, copy_bytes=2**24)
FULL = Effort(repeats=9, probe_s=0.6, longest_run_s=0.6, array_bytes=2**28, copy_bytes=2**28)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Amounts of work (FLOPs or bytes) and the seconds each took.

    Example:
        >>> start_s, rate = Sweep(work=(1e9, 2e9), time_s=(0.002, 0.003)).fit()
        >>> f"{start_s:.3g} s, then {rate:.3g} per second"
        '0.001 s, then 1e+12 per second'
    """

    work: tuple[float, ...]
    time_s: tuple[float, ...]

    def fit(self) -> tuple[float, float]:
        """The start in seconds and the rate that `t = start + work / rate` fits best."""
        return fit_start_and_rate(self.work, self.time_s)


def median_s(run: Callable[[], object], effort: Effort) -> float:
    """The median time of `run`, after one run that compiles it and warms it up."""
    jax.block_until_ready(run())
    samples: list[float] = []
    while len(samples) < effort.repeats and sum(samples) < effort.probe_s:
        start = time.perf_counter()
        jax.block_until_ready(run())
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def sweep_dots(dtype: str, effort: Effort) -> Sweep:
    """Times square matrix products of growing size."""

    def prepare(width: int) -> tuple[float, Callable[..., jax.Array], tuple[jax.Array, ...]]:
        # Scaled so that a product of products neither grows nor vanishes.
        weights = _normal((width, width), dtype) * jnp.asarray(width**-0.5, dtype)
        return 2.0 * width**3, jnp.matmul, (_normal((width, width), dtype), weights)

    return _sweep([128 * 2**k for k in range(7)], prepare, effort)


def sweep_convolutions(dtype: str, effort: Effort) -> Sweep:
    """Times 3×3 convolutions of growing width."""
    batch, side = 8, 16

    def prepare(width: int) -> tuple[float, Callable[..., jax.Array], tuple[jax.Array, ...]]:
        weights = _normal((3, 3, width, width), dtype) * jnp.asarray((9 * width) ** -0.5, dtype)
        convolve = partial(
            jax.lax.conv_general_dilated,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        work = 2.0 * batch * side**2 * 9 * width**2
        return work, convolve, (_normal((batch, side, side, width), dtype), weights)

    return _sweep([16 * 2**k for k in range(7)], prepare, effort)


def measure_bandwidth(effort: Effort) -> float:
    """Bytes per second of triads `b + s·a` over large arrays: two reads and a write each."""
    a, b = (jnp.full(effort.array_bytes // 4, value, jnp.float32) for value in (1.0, 2.0))
    count = 4  # in one program, so that its allocations are a small part
    triads = jax.jit(lambda a, b: jax.lax.fori_loop(0, count, lambda _, y: b + 0.5 * y, a))
    return 3 * a.nbytes * count / median_s(lambda: triads(a, b), effort)


def measure_launch(effort: Effort) -> float:
    """Seconds that one more kernel costs in a program of tiny ones."""
    x = jnp.eye(8)

    def chain_s(length: int) -> float:
        def multiply(x: jax.Array) -> jax.Array:
            for _ in range(length):
                x = x @ x
            return x

        compiled = jax.jit(multiply)
        return median_s(lambda: compiled(x), effort)

    short, long = 8, 136
    short_s, long_s = chain_s(short), chain_s(long)
    # Where noise hides the difference, the long chain's average is an upper bound.
    return (long_s - short_s) / (long - short) if long_s > short_s else long_s / long


def sweep_copies(direction: Direction, effort: Effort) -> Sweep:
    """Times copies between the device and the host's memory, from 1 KiB up."""
    sizes, times = [], []
    size_bytes = 2**10
    while size_bytes <= effort.copy_bytes:
        # Small copies are dispatched together, or Python would be most of what is timed.
        count = int(min(16, effort.copy_bytes // size_bytes))
        sizes.append(float(size_bytes))
        times.append(median_s(_copier(direction, size_bytes, count), effort) / count)
        size_bytes *= 4
    return Sweep(work=tuple(sizes), time_s=tuple(times))


def measure_both(effort: Effort) -> dict[Direction, float]:
    """The fraction of its rate that each direction keeps while the other is busy."""
    directions: tuple[Direction, Direction] = ("to_host", "to_device")
    copies = {d: _copier(d, effort.copy_bytes // 4, 1) for d in directions}
    window_s = max(effort.probe_s, 3 * max(median_s(copy, effort) for copy in copies.values()))

    def mean_s(direction: Direction, ready: threading.Barrier) -> float:
        ready.wait()
        count, start = 0, time.perf_counter()
        while (elapsed_s := time.perf_counter() - start) < window_s:
            jax.block_until_ready(copies[direction]())
            count += 1
        return elapsed_s / count

    alone_s = {d: mean_s(d, threading.Barrier(1)) for d in directions}
    ready = threading.Barrier(len(directions))
    with ThreadPoolExecutor(len(directions)) as pool:
        running = {d: pool.submit(mean_s, d, ready) for d in directions}
    return {d: min(1.0, alone_s[d] / running[d].result()) for d in directions}


def has_pinned_host() -> bool:
    """Whether JAX's device has pinned host memory to copy from and to."""
    kinds = {memory.kind for memory in jax.devices()[0].addressable_memories()}
    return {"device", "pinned_host"} <= kinds


def _copier(direction: Direction, size_bytes: int, count: int) -> Callable[[], object]:
    device = jax.devices()[0]
    host_arrays = [np.ones(size_bytes // 4, np.float32) for _ in range(count)]
    if has_pinned_host():
        kinds = ("device", "pinned_host")
        source, target = kinds if direction == "to_host" else kinds[::-1]
        held = jax.block_until_ready(jax.device_put(host_arrays, _memory(device, source)))
        return lambda: jax.device_put(held, _memory(device, target), may_alias=False)
    if direction == "to_device":
        return lambda: jax.device_put(host_arrays, device, may_alias=False)
    held = jax.block_until_ready(jax.device_put(host_arrays, device))
    # An array keeps the host copy it once gave, so each run asks new arrays.
    return lambda: [np.array(x + 0, copy=True) for x in held]


def _memory(device: Any, kind: str) -> jax.sharding.SingleDeviceSharding:
    return jax.sharding.SingleDeviceSharding(device, memory_kind=kind)


def _normal(shape: tuple[int, ...], dtype: str) -> jax.Array:
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    return jnp.asarray(values, jnp.dtype(dtype))


def _sweep(
    widths: list[int],
    prepare: Callable[[int], tuple[float, Callable[..., jax.Array], tuple[jax.Array, ...]]],
    effort: Effort,
) -> Sweep:
    works, times = [], []
    for width in widths:
        work, op, (x, weights) = prepare(width)
        # Many small ops in one program, so that their start is theirs and not the program's.
        count = int(min(64, max(1, 2**29 // work)))
        chain = jax.jit(
            lambda x, w, op=op, count=count: jax.lax.fori_loop(0, count, lambda _, y: op(y, w), x)
        )
        run_s = median_s(lambda chain=chain, x=x, weights=weights: chain(x, weights), effort)
        works.append(work)
        times.append(run_s / count)
        if 8 * times[-1] > effort.longest_run_s:
            break
    return Sweep(work=tuple(works), time_s=tuple(times))
