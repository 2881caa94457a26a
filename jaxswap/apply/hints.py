"""Hints: how long does XLA's scheduler have to believe that kernels and copies take?

Input: the replay of a compiled schedule. Output: microseconds of every kernel and copy, by the
name of the instruction, for the compiler (`overlap.py`).

XLA starts a copy as long ahead of its end as it believes the copy to take, each as if it were
alone. Copies queue on their link, so some have to start earlier than that. But what is said of a
copy XLA also takes for work, done where the copy starts, and hides other copies beside it. So there
are two kinds of hints. *Of kernels alone*: XLA then has a guess of its own for every copy, longer
than most take, and none of them is work. *Of all*: where copies take longer than that guess.
In both, the copies that the replay had to wait for are said to take that much longer, and by what
starts beside them, of offloads only once they are late again; and the step is compiled again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

# What every copy is said to take longer than it does. Of factors from 0.6 to 3 this one left
# the fewest stalls on ResNet-50, ViT and GPT-2-small.
_QUEUE_FACTOR = 1.1
# Of the time it was waited for, what a copy is said to take more: it moves by whole kernels.
_WAIT_FACTOR = 1.3
# What XLA takes a copy to take that it is told nothing of (`kHighLatency`).
_GUESS_US = 5000.0


class Timed(Protocol):
    """A kernel, a copy or a wait for one, in a replayed schedule."""

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


class Started(Timed, Protocol):
    """A kernel or a copy, and when it starts."""

    @property
    def start_s(self) -> float:
        """Seconds from the start of the step."""
        ...


def hint_all(events: Iterable[Timed]) -> dict[str, float]:
    """Microseconds of each kernel and copy; of several runs in a loop, of the first.

    Example:
        >>> hint_all([])
        {}
    """
    hints: dict[str, float] = {}
    for event in events:
        hints.setdefault(event.name, round(_believed_us(event), 1))
    return hints


def hint_kernels(events: Iterable[Timed]) -> dict[str, float]:
    """Microseconds of each kernel, likewise.

    Example:
        >>> hint_kernels([])
        {}
    """
    return hint_all(event for event in events if event.stream == "compute")


def lengthen_hints(
    hints: Mapping[str, float], events: Sequence[Started], waits: Iterable[Timed]
) -> dict[str, float]:
    """Hints under which copies that were waited for start earlier, by the longest wait for each.

    Args:
        hints: what the schedule was compiled with.
        events: of its replay, in the order they were issued.
        waits: likewise.

    Example:
        >>> lengthen_hints({"copy-start.1": 5.0}, [], [])
        {'copy-start.1': 5.0}
    """
    longest_s: dict[str, float] = {}
    for wait in waits:
        longest_s[wait.name] = max(wait.duration_s, longest_s.get(wait.name, 0.0))
    longer = dict(hints)
    seen: set[str] = set()
    for index, event in enumerate(events):
        if event.name in seen or event.name not in longest_s:
            continue
        seen.add(event.name)
        own_us = _believed_us(event)
        micros = hints.get(event.name, max(own_us, _GUESS_US))
        # It was lengthened before, and that was not enough.
        is_again = event.name in hints and micros > own_us + 0.1
        if is_again or event.stream == "to_device":
            beside = _find_started(events, index)
            micros = max(micros, own_us + sum(hints.get(other.name, 0.0) for other in beside))
        longer[event.name] = round(micros + longest_s[event.name] * 1e6 * _WAIT_FACTOR, 1)
    return longer


def _believed_us(event: Timed) -> float:
    return event.duration_s * 1e6 * (1.0 if event.stream == "compute" else _QUEUE_FACTOR)


def _find_started(events: Sequence[Started], index: int) -> Iterator[Started]:
    """The copies that start while one that was waited for is under way."""
    end_s = events[index].start_s + events[index].duration_s
    for event in events[index + 1 :]:
        if event.stream != "compute":
            yield event
        elif event.start_s >= end_s:
            return
