"""Hints: how long does XLA's scheduler have to believe that kernels and copies take?

Input: the replay of a compiled schedule. Output: microseconds of every kernel and copy, by the
name of the instruction, for the compiler (`overlap.py`).
"""

from collections.abc import Iterable
from typing import Protocol

# XLA starts a copy as long ahead of its end as it believes the copy to take, each as if it were
# alone. Copies queue on their link, so they have to start earlier than that. Of 1.0, 1.3, 1.6
# and 2.5, this left the fewest stalls on ResNet-50; 1.0 left twice as many.
_QUEUE_FACTOR = 1.6


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


def make_hints(events: Iterable[Timed]) -> dict[str, float]:
    """Microseconds of each instruction; of several runs in a loop, of the first.

    Example:
        >>> make_hints([])
        {}
    """
    hints: dict[str, float] = {}
    for event in events:
        factor = 1.0 if event.stream == "compute" else _QUEUE_FACTOR
        hints.setdefault(event.name, round(event.duration_s * 1e6 * factor, 1))
    return hints
