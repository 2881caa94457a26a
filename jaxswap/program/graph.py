"""Op graph: what does a step compute, before anything is fused?

Input: nothing. Output: the plain data that `trace.py` fills and `fusion.py` groups: no JAX.
A node is one equation, an array is one result. Views (a reshape, a name) are no nodes: they
are the array they look at. A loop's body stands once; its nodes say which loop they are in.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxswap.model.kernel import KernelCost
from jaxswap.program.ir import Phase

WINDOWS = frozenset(
    (
        "reduce_window_max",
        "reduce_window_min",
        "reduce_window_sum",
        "reduce_window",
        "jaxswap_find_places",
        "jaxswap_spread_gradient",
    )
)
"""Ops that go over an array by windows."""

NodeKind = Literal["map", "reduce", "update", "opaque"]
"""How a node fuses.

`map`: every element by itself, from any elements of its inputs; fuses both ways.
`reduce`: takes maps in; its result is in memory, but for the cases in `fusion.py`.
`update`: writes into its first input; takes maps in as what it writes.
`opaque`: a kernel of its own, whatever it reads and makes is in memory.
"""


@dataclass(slots=True, kw_only=True)
class Array:
    """A result of a node, or an argument.

    Attributes:
        shape: its dimensions.
        dtype: by name.
        size_bytes: of one trip.
        producer: the node that makes it; None for arguments.
        readers: the nodes that read it.
        names: what decisions may call it, best first.
        result_names: likewise, seen from outside the loop that makes it.
        stands_for: the array whose copy this is, stacked over a loop's trips or laid out
            for a dot.
        trips: how many of it one step makes.
        is_stacked: whether all trips are in memory at once.
        is_argument: whether it is an argument of the step.
        is_output: whether it is a result of the step.
        must_exist: whether it is in memory whatever fuses.
    """

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    producer: int | None = None
    readers: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    result_names: list[str] = field(default_factory=list)
    stands_for: int | None = None
    trips: int = 1
    is_stacked: bool = False
    is_argument: bool = False
    is_output: bool = False
    must_exist: bool = False

    @property
    def elements(self) -> int:
        """How many elements one trip's array has."""
        return math.prod(self.shape)


@dataclass(slots=True, kw_only=True)
class Node:
    """One equation.

    Attributes:
        name: the primitive.
        kind: how it fuses.
        phase: which pass it is part of.
        reads: arrays, each with how many of its elements are read, as a share: below 1 for
            a slice, above 1 for a broadcast.
        writes: arrays that it makes.
        cost: its own work, without the bytes.
        loop: the innermost loop it is in.
        is_heavy: whether the applied schedule pins it.
        is_row_reduction: whether it reduces trailing dimensions only.
        has_batch_dims: whether it is a dot with batch dimensions.
        is_zero: whether all that it makes is zeros.
        scratch_bytes: device bytes it needs only while it runs.
        not_before: the node that it may not be moved in front of: where the region starts
            that recomputes it.
        origin: where it came from, for `trace.py` alone.
    """

    name: str
    kind: NodeKind
    phase: Phase
    reads: tuple[tuple[int, float], ...]
    writes: tuple[int, ...]
    cost: KernelCost
    loop: int | None = None
    is_heavy: bool = False
    is_row_reduction: bool = False
    has_batch_dims: bool = False
    is_zero: bool = False
    scratch_bytes: int = 0
    not_before: int = 0
    origin: Any = None


@dataclass(slots=True, kw_only=True)
class LoopSpan:
    """A loop: its trips, the loop around it, and its nodes from `first` up to `end`."""

    trips: int
    parent: int | None
    first: int = 0
    end: int = 0


@dataclass(slots=True, kw_only=True)
class Graph:
    """Nodes in program order, and the arrays between them.

    Attributes:
        nodes: the equations.
        arrays: their results, and the arguments.
        loops: the loops.
        carries: arrays that stand for the same memory in a loop: what one trip hands to the
            next, keyed by what the body reads.
    """

    nodes: list[Node] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    loops: list[LoopSpan] = field(default_factory=list)
    carries: dict[int, int] = field(default_factory=dict)
