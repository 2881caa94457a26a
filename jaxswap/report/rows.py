"""Rows: what does a report know, as plain data?

Input: nothing. Output: the vocabulary between what builds a report (`build.py`, `curves.py`)
and what shows it (`text.py`, `html.py`, `figures.py`, `tables.py`, `trace_events.py`).
Every figure carries `how` it was found: *forecast* by the simulator, *replayed* from the
compiled schedule, *measured* on a device, or *compiled*: the compiler's own.
"""

from dataclasses import dataclass
from typing import Literal

How = Literal["forecast", "replayed", "measured", "compiled"]
Unit = Literal["bytes", "seconds"]
PointKind = Literal["plan", "policy", "written", "chosen"]
Phase = Literal["forward", "backward", "update", "recompute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One quantity of the step as written and planned; None where it is not known.

    Attributes:
        name: what it is, such as "device memory".
        unit: of both numbers.
        how: how both numbers were found.
        before: of the step as written.
        after: of the planned step.
    """

    name: str
    unit: Unit
    how: How
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Bytes on the device: what they are, and from which op to which, both included."""

    label: str
    source: str
    size_bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Device memory along one step, op by op, in columns.

    Attributes:
        how: *replayed* from the compiled schedule, or *forecast*.
        names: of the ops, in order.
        labels: where in the model each op is.
        sources: `file.py:line` of each op, or "".
        starts_s: when each op starts.
        bytes_at: device bytes while each op runs.
        step_s: when the step is over.
        base_bytes: arguments + outputs − donated ones, which are there throughout.
        holders: what else is on the device, and when.
    """

    how: How
    names: tuple[str, ...]
    labels: tuple[str, ...]
    sources: tuple[str, ...]
    starts_s: tuple[float, ...]
    bytes_at: tuple[int, ...]
    step_s: float
    base_bytes: int
    holders: tuple[Holder, ...]

    @property
    def peak_op(self) -> int:
        """The first op at the highest point."""
        return self.bytes_at.index(max(self.bytes_at)) if self.bytes_at else 0

    @property
    def peak_bytes(self) -> int:
        """The highest point."""
        return max(self.bytes_at, default=self.base_bytes)

    def alive_at(self, op: int) -> list[Holder]:
        """What is on the device while an op runs, the largest first."""
        alive = (holder for holder in self.holders if holder.first <= op <= holder.last)
        return sorted(alive, key=lambda holder: -holder.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A kernel or a copy on its stream.

    Attributes:
        stream: "compute", "to_host", "to_device" or "collective".
        name: of the op or instruction.
        label: where in the model it is.
        source: `file.py:line`, or "".
        phase: of a kernel: the forward pass, the backward pass, the update behind them, or
            the forward pass made again.
        start_s: when it starts.
        duration_s: how long it takes.
        size_bytes: what it moves.
    """

    stream: str
    name: str
    label: str
    source: str
    phase: Phase
    start_s: float
    duration_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """All kernels and copies of one step."""

    how: How
    step_s: float
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """What was decided about one value.

    Attributes:
        name: of the value, the plan's key.
        action: "keep", "offload" or "recompute".
        label: module path.
        source: `file.py:line`, or "".
        what: what makes it and its type, such as `dot_general bfloat16[8,1024]`.
        group: the label with the numbers of repeated blocks as `*`: equal for equal values.
        block: the part of `group` up to the repeated block.
        size_bytes: of all of it that is there at once if it is kept.
        seconds: of its copies both ways, or of the kernels that make it again, one after the
            other (forecast); None where that is not known.
        window_ops: how many heavy ops the copy to the host may take; 0 if there is none.
        reload_ahead_ops: how many heavy ops ahead of its use the reload starts.
        stays: whether it stays although decided otherwise: wanted before it would have left.
    """

    name: str
    action: str
    label: str
    source: str
    what: str
    group: str
    block: str
    size_bytes: int
    seconds: float | None
    window_ops: int
    reload_ahead_ops: int
    stays: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Equal decisions about equal values of repeated blocks.

    Attributes:
        action: what was decided.
        block: the repeated block they are in.
        label: of all of them, `*` for the block's number.
        what: what makes them and their type.
        source: `file.py:line`, or "".
        count: how many.
        size_bytes: of all of them.
        seconds: of all of them, as in `DecisionRow`.
    """

    action: str
    block: str
    label: str
    what: str
    source: str
    count: int
    size_bytes: int
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Values that could not be decided about, for one reason.

    Attributes:
        reason: why.
        count: how many values.
        size_bytes: of all of them whose size is known.
        examples: names of the largest, with where they are.
    """

    reason: str
    count: int
    size_bytes: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What no plan can go below (forecast).

    Attributes:
        size_bytes: the floor.
        name: of the op that sets it.
        label: where in the model that is.
        source: `file.py:line`, or "".
        base_bytes: of it, the step's arguments and outputs.
        holders: the values that have to be there while the op runs, the largest first.
    """

    size_bytes: int
    name: str
    label: str
    source: str
    base_bytes: int
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """Bytes against step time, for one way to run the step.

    Attributes:
        label: what it is, such as "plan for 8 GiB" or the name of a `jax.checkpoint` policy.
        size_bytes: device bytes.
        step_s: seconds of a step.
        how: how both were found.
        kind: "plan" for the points that make the front, "policy" for one of JAX's, "written"
            for the step as it is, "chosen" for the plan of this report.

    Example:
        >>> FrontPoint(label="dots_saveable", size_bytes=2**30, step_s=0.1, kind="policy").how
        'forecast'
    """

    label: str
    size_bytes: int
    step_s: float
    how: How = "forecast"
    kind: PointKind = "plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """Throughput at one batch size; None where the step does not fit.

    Attributes:
        batch_size: how many examples one step takes.
        size_bytes: device bytes of the step as written.
        unplanned_per_s: examples per second of the step as written.
        planned_per_s: examples per second of the planned step.
        ideal_per_s: examples per second if every copy were hidden.
        how: how the throughputs were found.
        is_chosen: whether this is the size to take.

    Example:
        >>> BatchRow(batch_size=8, size_bytes=2**30, planned_per_s=90.0).unplanned_per_s is None
        True
    """

    batch_size: int
    size_bytes: int = 0
    unplanned_per_s: float | None = None
    planned_per_s: float | None = None
    ideal_per_s: float | None = None
    how: How = "forecast"
    is_chosen: bool = False
