"""Replay: how long would the compiled schedule take on this device, and where does it wait?

Input: a scheduled `Module` and a `Device`. Output: a `Timeline` of every kernel and copy.
One compute stream, one copy stream per direction, one for collectives. An asynchronous
instruction starts when the compute stream reaches it and its own stream is free; its `done`
makes the compute stream wait, and that wait is a stall. Times are predicted from the
compiled schedule ("replayed"), never measured.
"""

from dataclasses import dataclass, field
from typing import Literal

from jaxswap.model.device import Device
from jaxswap.model.kernel import FITTED, Efficiency, KernelCost, kernel_s
from jaxswap.model.transfer import Direction, transfer_s
from jaxswap.verify.cost import KernelCosts
from jaxswap.verify.hlo import Computation, Instruction, Module, parse_arrays

Stream = Literal["compute", "to_host", "to_device", "collective"]
_FREE = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "domain",
     "partition-id", "replica-id", "optimization-barrier", "add-dependency")
)  # fmt: skip
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
                "ragged-all-to-all", "collective-broadcast")  # fmt: skip
# Loops up to this many iterations are replayed one by one; longer ones until they repeat.
_UNROLL_LIMIT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A kernel, which has a cost, or a copy, on its stream."""

    name: str
    op_name: str
    stream: Stream
    start_s: float
    duration_s: float
    size_bytes: float = 0.0
    cost: KernelCost | None = None

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The compute stream has nothing to do until a copy, or a collective, is over."""

    name: str
    stream: Stream
    duration_s: float
    is_blocking: bool = False  # nothing could run beside it, whenever it started


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The replayed step. Every time is predicted from the compiled schedule.

    Attributes:
        events: kernels and copies in the order they were issued.
        step_s: when the last of them is over.
        compute_s: how long the compute stream works.
        stall_s: how long the compute stream waits for copies and collectives.
        flops: floating-point operations of all kernels.
        matrix_flops: those of dots and convolutions.
        to_host_bytes: bytes offloaded.
        to_device_bytes: bytes reloaded.
        notes: what the replay had to assume.
        waits: what the compute stream waited for, in order; of a long loop, as with events,
            those of the iterations that were played.
    """

    events: tuple[Event, ...]
    step_s: float
    compute_s: float
    stall_s: float
    flops: float
    matrix_flops: float
    to_host_bytes: float
    to_device_bytes: float
    notes: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()


def replay(module: Module, device: Device, efficiency: Efficiency = FITTED) -> Timeline:
    r"""Plays a module's schedule on a device.

    Example:
        >>> from jaxswap.verify.hlo import parse_module
        >>> text = "HloModule m\n\nENTRY %e (p: f32[4]) -> f32[4] {\n  ROOT %p = f32[4] parameter(0)\n}"
        >>> replay(parse_module(text), Device.named("h100-sxm")).step_s
        0.0
    """  # noqa: E501
    player = _Player(module, device, efficiency)
    player.play(module.entry)
    return player.timeline()


@dataclass(slots=True)
class _Clock:
    """Where each stream is, and what has been summed up so far."""

    free_s: dict[Stream, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("compute", "to_host", "to_device", "collective"), 0.0
        )
    )
    sums: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("compute_s", "stall_s", "flops", "matrix_flops", "to_host", "to_device"), 0.0
        )
    )

    def snapshot(self) -> list[float]:
        return [*self.free_s.values(), *self.sums.values()]

    def advance(self, delta: list[float], times: int) -> None:
        """Repeats what the last iteration added."""
        count = len(self.free_s)
        for stream, step in zip(self.free_s, delta[:count], strict=True):
            self.free_s[stream] += step * times
        for name, step in zip(self.sums, delta[count:], strict=True):
            self.sums[name] += step * times


class _Player:
    def __init__(self, module: Module, device: Device, efficiency: Efficiency):
        self.module, self.device, self.efficiency = module, device, efficiency
        self.costs = KernelCosts(module)
        self.clock = _Clock()
        self.events: list[Event] = []
        self.waits: list[Wait] = []
        self.notes: dict[str, None] = {}

    def timeline(self) -> Timeline:
        sums = self.clock.sums
        return Timeline(
            events=tuple(self.events),
            step_s=max(self.clock.free_s.values()),
            compute_s=sums["compute_s"],
            stall_s=sums["stall_s"],
            flops=sums["flops"],
            matrix_flops=sums["matrix_flops"],
            to_host_bytes=sums["to_host"],
            to_device_bytes=sums["to_device"],
            notes=tuple(self.notes),
            waits=tuple(self.waits),
        )

    def play(self, computation: Computation) -> None:
        under_way: dict[str, Event] = {}  # by the name of the instruction that starts it
        for instruction in computation.instructions:
            opcode = instruction.opcode
            if opcode in _FREE:
                continue
            if opcode == "while":
                self._play_loop(instruction)
            elif opcode == "conditional":
                self._play_longest(instruction)
            elif opcode in ("call", "async-start") and not _is_copy(instruction, computation):
                self.play(self.module.computation(instruction.called[0]))
            elif opcode.endswith("-start"):
                if started := self._start(instruction, computation):
                    under_way[instruction.name] = started
            elif opcode.endswith("-done"):
                if started := under_way.get(instruction.operands[0]):
                    self._wait(started)
            else:
                self._run(instruction, computation)

    def _run(self, instruction: Instruction, computation: Computation) -> None:
        """A kernel, or a copy that the compute stream itself has to wait for."""
        if 'custom_call_target="AllocateBuffer"' in instruction.attributes:
            return
        if direction := _direction(instruction, computation):
            size_bytes = _moved_bytes(instruction, self.module, direction)
            self._wait(self._copy(instruction, direction, size_bytes), is_blocking=True)
            return
        if instruction.opcode.startswith(_COLLECTIVES):
            self._wait(self._collect(instruction), is_blocking=True)
            return
        cost = self.costs.of(instruction, computation)
        duration_s = kernel_s(self.device, cost, self.efficiency)
        start_s = self.clock.free_s["compute"]
        self._record(instruction, "compute", start_s, duration_s, cost.size_bytes, cost)
        sums = self.clock.sums
        sums["compute_s"] += duration_s
        sums["flops"] += cost.flops
        sums["matrix_flops"] += cost.matrix_flops

    def _start(self, instruction: Instruction, computation: Computation) -> Event | None:
        if instruction.opcode.startswith(_COLLECTIVES):
            return self._collect(instruction)
        direction = _direction(instruction, computation)
        if direction is None:  # a copy within the device: the compute stream's own bandwidth
            self._run(instruction, computation)
            return None
        return self._copy(instruction, direction, _moved_bytes(instruction, self.module, direction))

    def _copy(self, instruction: Instruction, direction: Direction, size_bytes: float) -> Event:
        """Enqueues a host copy; where the other direction is busy both are slower."""
        free_s = self.clock.free_s
        start_s = max(free_s["compute"], free_s[direction])
        other: Direction = "to_device" if direction == "to_host" else "to_host"
        alone_s = float(transfer_s(self.device, size_bytes, direction))
        shared_s = float(transfer_s(self.device, size_bytes, direction, both=True))
        overlap_s = max(0.0, free_s[other] - start_s)
        # The share of the copy done while both run, then the rest at full speed.
        share = min(1.0, overlap_s / shared_s)
        duration_s = share * shared_s + (1 - share) * alone_s
        self.clock.sums[direction] += size_bytes
        return self._record(instruction, direction, start_s, duration_s, size_bytes)

    def _collect(self, instruction: Instruction) -> Event:
        size_bytes = sum(a.size_bytes for a in instruction.arrays)
        self.notes["collectives are charged at the rate of the host link"] = None
        duration_s = size_bytes / self.device.to_host.bandwidth_bytes_per_s
        if "all-reduce" in instruction.opcode:
            duration_s *= 2  # a ring sends everything round twice
        start_s = max(self.clock.free_s["compute"], self.clock.free_s["collective"])
        duration_s += self.device.launch_overhead_s
        return self._record(instruction, "collective", start_s, duration_s, size_bytes)

    def _wait(self, event: Event, *, is_blocking: bool = False) -> None:
        free_s = self.clock.free_s
        stall_s = event.end_s - free_s["compute"]
        if stall_s > 0:
            free_s["compute"] += stall_s
            self.clock.sums["stall_s"] += stall_s
            waited = Wait(
                name=event.name, stream=event.stream, duration_s=stall_s, is_blocking=is_blocking
            )
            self.waits.append(waited)

    def _record(
        self, instruction: Instruction, stream: Stream, start_s: float, duration_s: float,
        size_bytes: float = 0.0, cost: KernelCost | None = None,
    ) -> Event:  # fmt: skip
        event = Event(
            name=instruction.name,
            op_name=self.module.named(instruction).op_name,
            stream=stream,
            start_s=start_s,
            duration_s=duration_s,
            size_bytes=size_bytes,
            cost=cost,
        )
        self.events.append(event)
        self.clock.free_s[stream] = event.end_s
        return event

    def _play_loop(self, instruction: Instruction) -> None:
        """Plays a loop's iterations; a long one until two in a row are alike."""
        body = self.module.computation((instruction.attribute("body") or "").lstrip("%"))
        trips = instruction.trip_count
        if trips is None:
            self.notes[f"{instruction.name}: unknown trip count, replayed once"] = None
            trips = 1
        previous: list[float] = []
        for trip in range(trips):
            before = self.clock.snapshot()
            self.play(body)
            delta = [b - a for a, b in zip(before, self.clock.snapshot(), strict=True)]
            remaining = trips - trip - 1
            if trips > _UNROLL_LIMIT and remaining and _are_close(previous, delta):
                start_s, rest_s = self.clock.free_s["compute"], delta[0] * remaining
                self.clock.advance(delta, remaining)
                self._record(instruction, "compute", start_s, rest_s)  # the rest, as one
                return
            previous = delta

    def _play_longest(self, instruction: Instruction) -> None:
        """Of a conditional's branches, the one that takes longest."""
        start, events, waits = self.clock, self.events, self.waits
        best: tuple[float, _Clock, list[Event], list[Wait]] | None = None
        for name in instruction.called:
            self.clock = _Clock(dict(start.free_s), dict(start.sums))
            self.events, self.waits = [], []
            self.play(self.module.computation(name))
            end_s = self.clock.free_s["compute"]
            if best is None or end_s > best[0]:
                best = (end_s, self.clock, self.events, self.waits)
        if best is not None:
            self.clock = best[1]
            events += best[2]
            waits += best[3]
        self.events, self.waits = events, waits
        self.notes[f"{instruction.name}: conditional, replayed its longest branch"] = None


def _are_close(left: list[float], right: list[float]) -> bool:
    return bool(left) and all(
        abs(a - b) <= 1e-9 * max(abs(a), abs(b), 1e-12) for a, b in zip(left, right, strict=True)
    )


def _direction(instruction: Instruction, computation: Computation) -> Direction | None:
    """Which way an instruction crosses the host link, if it does."""
    operands = (computation.by_name[name].type_text for name in instruction.operands)
    reads_host = any(a.is_on_host for text in operands for a in parse_arrays(text))
    if instruction.opcode == "copy-start":
        writes_host = instruction.arrays[0].is_on_host
    elif instruction.opcode.endswith("-start"):
        writes_host = instruction.arrays[-2].is_on_host  # (operands, results, context)
    else:
        writes_host = any(a.is_on_host for a in instruction.arrays)
    if writes_host:
        return "to_host"
    return "to_device" if reads_host else None


def _is_copy(instruction: Instruction, computation: Computation) -> bool:
    return instruction.opcode.endswith("-start") and bool(_direction(instruction, computation))


def _moved_bytes(instruction: Instruction, module: Module, direction: Direction) -> float:
    """Bytes over the link: of an update in place only the slice that is written."""
    if instruction.opcode in ("copy", "copy-start"):
        return float(instruction.arrays[0].size_bytes)
    if not instruction.called:
        return float(sum(a.size_bytes for a in instruction.arrays))
    inside = module.computation(instruction.called[0])
    root = inside.root
    if direction == "to_host" and root.opcode == "dynamic-update-slice":
        return float(inside.by_name[root.operands[1]].arrays[0].size_bytes)
    return float(sum(a.size_bytes for a in root.arrays))
