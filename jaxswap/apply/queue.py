"""Queue: when must each copy start, if copies wait for one another?

Input: a compiled schedule and its replay. Output: hints, microseconds of every kernel and copy,
for XLA's scheduler (`overlap.py`).

XLA starts a copy as long ahead of its use as it believes the copy to take, each as if it were
alone. There is one link per direction, and what starts first goes first: a large copy that is
wanted late may hold up a small one that is wanted soon. So the hint of a copy is the time from
its latest start to its use, where the starts are found from the last use backwards: each copy
is over when it is wanted, and when the next one has to start.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

# Kernels and copies take longer or shorter than was replayed: copies are given this much more.
_MARGIN = 1.15


class Timed(Protocol):
    """A kernel or a copy of a replayed schedule."""

    @property
    def name(self) -> str:
        """The instruction's."""
        ...

    @property
    def stream(self) -> str:
        """`"compute"`, or what a copy runs on."""
        ...

    @property
    def duration_s(self) -> float:
        """How long it takes."""
        ...


class Scheduled(Protocol):
    """An instruction of the entry computation."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def opcode(self) -> str:
        """What it does."""
        ...

    @property
    def operands(self) -> Sequence[str]:
        """The names of what it reads."""
        ...


def make_queue_hints(
    instructions: Sequence[Scheduled], events: Sequence[Timed]
) -> dict[str, float]:
    """Microseconds of each instruction; of a copy, from its latest start to its use.

    Args:
        instructions: the scheduled entry computation. Copies inside loops keep their own time.
        events: the replay of the schedule, in the order of issue.

    Example:
        >>> make_queue_hints([], [])
        {}
    """
    hints: dict[str, float] = {}
    for event in events:
        factor = 1.0 if event.stream == "compute" else _MARGIN
        hints.setdefault(event.name, round(event.duration_s * 1e6 * factor, 1))
    copies = {e.name: e for e in events if e.stream != "compute"}
    wanted_s = _find_uses(instructions, events)
    for stream in {e.stream for e in copies.values()}:
        queue = [
            (wanted_s[n], n) for n, e in copies.items() if e.stream == stream and n in wanted_s
        ]
        free_s = float("inf")
        for use_s, name in sorted(queue, reverse=True):
            start_s = min(use_s, free_s) - copies[name].duration_s * _MARGIN
            hints[name] = round((use_s - start_s) * 1e6, 1)
            free_s = start_s
    return hints


def _find_uses(instructions: Sequence[Scheduled], events: Iterable[Timed]) -> dict[str, float]:
    """When the end of each asynchronous copy is asked for, in seconds of compute."""
    own = {i.name for i in instructions}
    before_s: dict[str, float] = {}  # compute until a kernel of the entry computation starts
    after_s: dict[str, float] = {}
    clock_s, last = 0.0, ""
    for event in events:
        if event.stream != "compute":
            continue
        if event.name in own:
            before_s.setdefault(event.name, clock_s)
        clock_s += event.duration_s
        last = event.name if event.name in own else last
        after_s[last] = clock_s  # a loop's time is added to what stands before it
    found: dict[str, float] = {}
    clock_s = 0.0
    for instruction in instructions:
        if instruction.name in before_s:
            clock_s = after_s[instruction.name]
        elif instruction.opcode.endswith("-done"):
            found[instruction.operands[0]] = clock_s
    return found
