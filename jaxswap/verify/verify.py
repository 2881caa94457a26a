"""Verify: does the step fit the device, and how long would it take there?

Input: a step, its arguments and a device, attached or not. Output: a `Verified`.
Bytes are the real GPU compiler's. The time is measured where the device is attached,
otherwise replayed from the compiled schedule; `time_is` says which.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import jax
import numpy as np

from jaxswap._units import format_bytes, format_seconds
from jaxswap.apply.step import apply_decisions
from jaxswap.model.device import Device
from jaxswap.model.presets import find_device
from jaxswap.plan.plan import Plan
from jaxswap.verify.hlo import Module, parse_module
from jaxswap.verify.memory import MemoryCurve, memory_curve
from jaxswap.verify.replay import Timeline, replay
from jaxswap.verify.target import (
    Compiled,
    as_jitted,
    begin_compiling,
    compile_together,
    compiled_from,
)

_MEASURED_RUNS = 5


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What the compiler says of a step on a device.

    Attributes:
        device: the device that it was compiled for.
        compiled: the compiler's own figures.
        step_s: seconds per step; `time_is` says how it was found.
        time_is: "measured" on the device, or "replayed" from the compiled schedule.
        timeline: the replay: every kernel and copy.
    """

    device: Device
    compiled: Compiled
    module: Module = field(repr=False)
    step_s: float
    time_is: Literal["measured", "replayed"]
    timeline: Timeline = field(repr=False)

    @property
    def device_bytes(self) -> int:
        """What the step needs on the device: arguments + outputs − aliased + temporaries."""
        return self.compiled.device_bytes

    @property
    def host_bytes(self) -> int:
        """What the step needs in pinned host memory."""
        return self.compiled.host_bytes

    @property
    def hlo_text(self) -> str:
        """The scheduled module."""
        return self.compiled.hlo_text

    @property
    def fits(self) -> bool:
        """Whether the device has that much memory."""
        return self.device_bytes <= self.device.memory_bytes

    @cached_property
    def memory(self) -> MemoryCurve:
        """Device bytes at every instruction, and whose they are."""
        return memory_curve(self.module)

    def source_of(self, name: str) -> str:
        """`file.py:line` of an instruction of the entry computation, or ''."""
        instruction = self.module.entry.by_name.get(name)
        return self.module.source_of(instruction) if instruction else ""

    def to_json(self) -> dict[str, Any]:
        """The figures as plain data, each time with how it was found."""
        return {
            "device": self.device.name,
            "device_memory_bytes": self.device.memory_bytes,
            "device_bytes": self.device_bytes,
            "host_bytes": self.host_bytes,
            "temp_bytes": self.compiled.temp_bytes,
            "fits": self.fits,
            "step_s": self.step_s,
            "time_is": self.time_is,
            "replayed": {
                "step_s": self.timeline.step_s,
                "compute_s": self.timeline.compute_s,
                "stall_s": self.timeline.stall_s,
                "flops": self.timeline.flops,
                "to_host_bytes": self.timeline.to_host_bytes,
                "to_device_bytes": self.timeline.to_device_bytes,
            },
            "notes": self.notes,
        }

    @property
    def notes(self) -> list[str]:
        """What is assumed or not exact, in sentences."""
        said = (self.device.compile_note, self.compiled.note, *self.timeline.notes)
        return [note for note in said if note]

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        peak = self.memory.names[self.memory.peak_index] if self.memory.names else ""
        base_bytes = self.device_bytes - self.compiled.temp_bytes
        lines = [
            f"{self.device.description}: {format_bytes(self.device_bytes)} of "
            f"{format_bytes(self.device.memory_bytes)} (compiled), {verdict}",
            f"  arguments and outputs  {format_bytes(base_bytes)}",
            f"  temporaries            {format_bytes(self.compiled.temp_bytes)}",
            f"  host memory            {format_bytes(self.host_bytes)}",
            f"  step                   {format_seconds(self.step_s)} ({self.time_is})",
            f"  stalls                 {format_seconds(self.timeline.stall_s)} (replayed)",
            f"  peak                   at {peak}",
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def verify(
    fn: Callable,
    *args: Any,
    device: Device | str | None = None,
    plan: Plan | None = None,
    donate_argnums: int | tuple[int, ...] = (),
    options: Mapping[str, Any] | None = None,
) -> Verified:
    """Compiles a step with the real XLA:GPU compiler and says what it needs and takes.

    Args:
        fn: the step: any traceable function, jitted or not.
        *args: its arguments, arrays or `jax.ShapeDtypeStruct`s.
        device: a preset's name, a `Device` or the path of one; the attached GPU by default.
        plan: a plan to apply first, with the compiler options that it asks for.
        donate_argnums: as in `jax.jit`. A jitted `fn` brings its own.
        options: XLA options for the compiler.

    Returns:
        A `Verified`. A step that needs more than the device has is an answer, not an error.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
        >>> verify(lambda x: x @ x, x, device="rtx4090").device_bytes  # doctest: +SKIP
        12582912
    """
    donated = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    target = Device.detect() if device is None else find_device(device)
    if plan is not None and not plan.is_empty:
        fn = apply_decisions(fn, plan.all_decisions, rest_as_written=plan.rest_as_written)
        options = plan.compiler_options() | dict(options or {})
    [found] = verify_together([(fn, options)], args, target, donated)
    return found


def verify_together(
    steps: Sequence[tuple[Callable, Mapping[str, Any] | None]],
    args: tuple,
    device: Device,
    donated: tuple[int, ...],
) -> list[Verified]:
    """`verify` of several steps with the same arguments, each with its XLA options.

    They are compiled at once, but one by one where each is also timed.
    """
    if _is_attached(device):
        return [_verify_attached(fn, args, device, donated, options) for fn, options in steps]
    compiled = compile_together(steps, args, device, donate_argnums=donated)
    return [_replay_compiled(each, device) for each in compiled]


def begin_verifying(
    fn: Callable, args: tuple, device: Device, donated: tuple[int, ...], pool: Executor
) -> None:
    """Has a step compiled in a pool that will be verified soon; not where it is also timed.

    If the compiler fails, whoever verifies the step is told.
    """
    if not _is_attached(device):
        begin_compiling(fn, args, device, pool, donate_argnums=donated)


def _replay_compiled(compiled: Compiled, device: Device) -> Verified:
    module = parse_module(compiled.hlo_text)
    timeline = replay(module, device)
    return Verified(
        device=device,
        compiled=compiled,
        module=module,
        step_s=timeline.step_s,
        time_is="replayed",
        timeline=timeline,
    )


def _is_attached(device: Device) -> bool:
    """Whether this process runs on that device."""
    return jax.default_backend() == "gpu" and Device.detect().name == device.name


def _verify_attached(
    fn: Callable,
    args: tuple,
    device: Device,
    donated: tuple[int, ...],
    options: Mapping[str, Any] | None,
) -> Verified:
    """Compiles and times on the attached GPU. Arguments are made up if only shapes are given."""
    lowered = as_jitted(fn, donated).lower(*args)
    executable = lowered.compile(compiler_options=dict(options or {}))
    compiled = compiled_from(executable.runtime_executable())
    module = parse_module(compiled.hlo_text)
    timeline = replay(module, device)
    fits = compiled.device_bytes <= device.memory_bytes
    return Verified(
        device=device,
        compiled=compiled,
        module=module,
        step_s=_measure_s(executable, args) if fits else timeline.step_s,
        time_is="measured" if fits else "replayed",
        timeline=timeline,
    )


def _measure_s(executable: Any, args: tuple) -> float:
    """The median time of a few runs, on copies: the caller's arguments may be donated."""
    times = []
    for _ in range(_MEASURED_RUNS + 1):
        copies = jax.block_until_ready(jax.tree.map(_copy_of, args))
        start = time.perf_counter()
        jax.block_until_ready(executable(*copies))
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])  # the first run warms up


def _copy_of(leaf: Any) -> jax.Array:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.numpy.zeros(leaf.shape, leaf.dtype)
    return jax.numpy.array(np.asarray(leaf)) if not isinstance(leaf, jax.Array) else leaf.copy()
