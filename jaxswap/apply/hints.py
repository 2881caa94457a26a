"""Hints: how long does XLA's scheduler have to believe that kernels and copies take?

Input: the replay of a compiled schedule. Output: microseconds of every kernel and copy, by the
name of the instruction, for the compiler (`overlap.py`).
"""

from collections.abc import Iterable
from typing import Protocol

# XLA starts a copy as long ahead of its end as it believes the copy to take, each as if it were
# alone. Copies queue on their link, so some have to start earlier than that; where XLA believes
# all of them to take much longer, it ends some too early to start others. Of factors from 0.6 to
# 3, the first left the fewest stalls on ResNet-50, the second on ViT and VGG-16.
QUEUE_FACTORS = (1.1, 1.6)


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


def make_hints(events: Iterable[Timed], queue_factor: float = QUEUE_FACTORS[0]) -> dict[str, float]:
    """Microseconds of each instruction; of several runs in a loop, of the first.

    Args:
        events: the replayed schedule.
        queue_factor: how many times longer than it takes a copy is said to take.

    Example:
        >>> make_hints([])
        {}
    """
    hints: dict[str, float] = {}
    for event in events:
        factor = 1.0 if event.stream == "compute" else queue_factor
        hints.setdefault(event.name, round(event.duration_s * 1e6 * factor, 1))
    return hints
