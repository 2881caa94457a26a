"""Program: what does one training step do, op by op, and what passes between the ops?

A `Program` is what the simulator, the planners and the reports know of a step: plain data,
no JAX. An op is a kernel, after fusion: what XLA fuses into one kernel is one op, and a value
that lives only inside a kernel is not listed.

Conventions
- Ops stand in the order they run. `values[k].producer` and `.readers` are positions in `ops`.
- A loop's body stands once. Its ops and values carry `trips`, how often they happen in one
  step: `seconds` and `size_bytes` are of one trip.
- A *candidate* is a value that the forward pass makes and the backward pass reads, and that a
  plan may keep, offload or recompute. Candidates that are the same value of equal blocks
  share a `repeat` number.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from jaxswap.model.kernel import KernelCost

Phase = Literal["forward", "backward", "update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One kernel.

    Attributes:
        name: what it does, such as `"dot_general"`; of a fusion, its most costly primitive.
        phase: the forward pass, the backward pass, or what comes after (the optimizer).
        reads: values it reads, as positions in `Program.values`.
        writes: values it makes, likewise.
        cost: its work in one trip.
        is_heavy: whether the applied schedule pins it in its turn (dots, convolutions, loops).
        has_batch_dims: whether it is a dot with batch dimensions, which some of JAX's policies
            tell apart.
        scratch_bytes: device bytes it needs only while it runs; negative where it updates an
            operand in place, since an op's operands and results are all counted.
        reused_bytes: in the unplanned step, bytes of results that it writes over operands that
            nothing reads after it.
        trips: how often it runs in one step.
        loop: the innermost loop it is in, as a position in `Program.loops`; None outside.
        label: module path, for people.
        source: `file.py:line`, or "".
    """

    name: str
    phase: Phase
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    cost: KernelCost
    is_heavy: bool = False
    has_batch_dims: bool = False
    scratch_bytes: int = 0
    reused_bytes: int = 0
    trips: int = 1
    loop: int | None = None
    label: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """An array in device memory.

    Attributes:
        name: unique; the name that decisions use, where it is a candidate.
        size_bytes: of one trip's array.
        producer: the op that makes it; None for arguments, which are there from the start.
        readers: the ops that read it, in order.
        trips: how many of it one step makes. More than one: it is stacked over a loop's trips
            when a later loop reads it, and one at a time otherwise.
        is_stacked: whether all trips are in memory at once, from the start of the loop that
            makes it to the end of the loop that reads it.
        is_argument: whether it is an argument of the step.
        is_output: whether it is a result of the step.
        is_implicit: whether only the unplanned step has it in memory from the forward to the
            backward pass: a planned one makes it again from a candidate, within what reads it.
        primitive: what makes it.
        dtype: by name.
        shape: of one trip's array.
        label: module path, for people.
        source: `file.py:line`, or "".
        user_name: the name given with `checkpoint_name`, if any.
    """

    name: str
    size_bytes: int
    producer: int | None
    readers: tuple[int, ...]
    trips: int = 1
    is_stacked: bool = False
    is_argument: bool = False
    is_output: bool = False
    is_implicit: bool = False
    primitive: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    label: str = ""
    source: str = ""
    user_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop: the ops of its body, first and last included."""

    first_op: int
    last_op: int
    trips: int
    parent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A value that can be decided about.

    Attributes:
        value: its position in `Program.values`.
        last_forward: the last forward op that reads it (its producer if none does).
        first_backward: the first backward op that reads it.
        last_backward: the last backward op that reads it.
        parents: candidates that recomputing it starts from, as positions in
            `Program.candidates`, each before this one.
        recompute: the kernels that make it again from its parents and the step's arguments;
            None if it cannot be recomputed.
        recompute_ops: the ops that those kernels repeat, one each. Where several candidates
            that are made again for the same part of the backward pass repeat the same op, it
            runs a second time only once.
        recompute_bytes: device bytes needed between those kernels, besides parents and itself.
        can_offload: whether it may be in host memory.
        repeat: candidates with the same number are the same value of equal blocks.
    """

    value: int
    last_forward: int
    first_backward: int
    last_backward: int
    parents: tuple[int, ...] = ()
    recompute: tuple[KernelCost, ...] | None = ()
    recompute_ops: tuple[int, ...] = ()
    recompute_bytes: int = 0
    can_offload: bool = True
    repeat: int = 0


@dataclass(frozen=True, kw_only=True)
class Program:
    """A step, op by op.

    Attributes:
        ops: the kernels in the order they run.
        values: the arrays that pass between them.
        candidates: the values that a plan decides about, in the order they are made.
        loops: the loops.
        base_bytes: arguments + outputs − donated ones, which are there throughout.
        refused: values of some size that cannot be decided about: name → the reason.
        kept_names: names that every plan keeps, though none of them is a candidate: what is
            too small to decide about, or read again at once. Recomputations start from them.
        lean: where loops stack values, the kernels of the step that makes all of them again, and
            how often each runs: XLA fuses those loops far better. Empty otherwise.
        written: the unplanned step, where a planned one computes place by place what that
            scatters (`apply/unscatter.py`); None where both run the same ops.
        fingerprint: equal for equal programs; a plan names the program it was made for.
    """

    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    candidates: tuple[Candidate, ...]
    loops: tuple[Loop, ...] = ()
    base_bytes: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)
    kept_names: tuple[str, ...] = ()
    lean: tuple[tuple[KernelCost, int], ...] = ()
    written: "Program | None" = None
    fingerprint: str = ""

    @cached_property
    def candidate_names(self) -> tuple[str, ...]:
        """The names of the candidates, in order."""
        return tuple(self.values[c.value].name for c in self.candidates)
