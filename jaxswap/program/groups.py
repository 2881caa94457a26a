"""Groups: what are the kernels of a graph while they are being fused?

Input: a `Graph`. Output: `Groups`, one kernel per node to begin with, and who makes and reads
each array between them. `fusion.py` and `outputs.py` then merge kernels, in place.
Times here only rank (`effort.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from jaxswap.program.effort import DEFAULT, Yardstick
from jaxswap.program.graph import WINDOWS, Graph, Node

MAX_INPUTS = 48
MAX_NODES = 400
# XLA does not let a kernel's code grow beyond this (`ProducerConsumerMergedTooLarge`): every op
# that branches is taken to double it. What such an op, or one that moves elements, reads is
# written out once for each reader.
_MAX_CODE, _MAX_BRANCHES = 10_000, 10
_BRANCHING = WINDOWS | {"concatenate", "pad"}
# Ops that move elements, though as many come out as go in.
_MOVING = WINDOWS | {"transpose", "rev"}


@dataclass(slots=True)
class Kernel:
    """Nodes that run as one.

    Attributes:
        nodes: the nodes, each with how often it is computed per element (above 1 under a
            broadcast).
        ins: arrays it reads, with the share of each that it reads.
        outs: arrays it makes.
        position: where it stands in program order.
        span: how many elements it iterates over.
        is_row_wise: whether it has whole rows at hand, reduces them and goes on with them.
        code: how many ops are written out for it.
        branches: how many of these branch.
        copies: how often what makes an array would be written out in it, if it is not once.
        moved: arrays that it does not read element by element.
    """

    nodes: dict[int, float]
    ins: dict[int, float]
    outs: list[int]
    position: float
    span: int
    loop: int | None
    is_opaque: bool
    reduces: bool
    is_row_wise: bool = False
    not_before: int = 0
    is_stack: bool = False
    effort: float = 0.0
    read_bytes: float = 0.0
    write_bytes: float = 0.0
    is_alive: bool = True
    version: int = 0
    fixed: set[int] = field(default_factory=set)  # inputs that cannot be taken in
    code: int = 1
    branches: int = 0
    copies: dict[int, int] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)


class Groups:
    """The kernels of a graph, and the arrays between them."""

    def __init__(self, graph: Graph, yardstick: Yardstick = DEFAULT):
        self.graph = graph
        self.arrays = graph.arrays
        self.yardstick = yardstick
        self.effort = [yardstick.effort(graph, n) for n in graph.nodes]
        self.maker: dict[int, int] = {}
        self.readers: dict[int, set[int]] = {}
        self.kernels = [self._single(i, n) for i, n in enumerate(graph.nodes)]
        self.kept = {i for i, a in enumerate(graph.arrays) if a.must_exist or a.is_output}

    def _single(self, index: int, node: Node) -> Kernel:
        arrays = self.arrays
        kernel = Kernel(
            nodes={index: 1.0},
            ins=dict(node.reads),
            outs=list(node.writes),
            position=index,
            span=max((arrays[a].elements for a in self._spanned(node)), default=0),
            loop=node.loop,
            is_opaque=node.kind == "opaque",
            reduces=node.kind == "reduce",
            not_before=node.not_before,
            is_stack=node.name == "stack",
            effort=self.effort[index],
        )
        counts = {arrays[a].elements for a in (*kernel.ins, *kernel.outs)}
        if node.kind != "map" or node.name in _MOVING or len(counts) > 1:
            kernel.moved = set(kernel.ins)
        kernel.branches = int(node.kind == "reduce" or node.name in _BRANCHING)
        if node.kind == "update" and node.reads:
            kernel.fixed = {node.reads[0][0]}
        kernel.read_bytes = sum(self.read_bytes(a, s) for a, s in node.reads)
        kernel.write_bytes = sum(arrays[a].size_bytes for a in node.writes)
        for array in node.writes:
            self.maker[array] = index
        for array, _ in node.reads:
            self.readers.setdefault(array, set()).add(index)
        return kernel

    def _spanned(self, node: Node) -> Iterable[int]:
        if node.kind == "reduce":
            return (a for a, _ in node.reads)
        if node.kind == "update":
            return (a for a, _ in node.reads[1:])
        return node.writes

    def grows_too_large(self, reader: Kernel, kernel: Kernel, result: int) -> bool:
        """Whether the code of a kernel would be too large with another one in it."""
        copies = reader.copies.get(result, 1)
        branches = reader.branches + copies * kernel.branches
        code = reader.code + copies * kernel.code
        return branches > _MAX_BRANCHES or code << branches > _MAX_CODE

    def write_out(self, reader: Kernel, kernel: Kernel, result: int) -> None:
        """Counts the code of a kernel with another one in it."""
        copies = reader.copies.pop(result, 1)
        reader.branches += copies * kernel.branches
        reader.code += copies * kernel.code
        is_moved = result in reader.moved
        reader.moved.discard(result)
        moved = set(kernel.ins) if is_moved else kernel.moved
        for array in kernel.ins:
            # Two ops that read an array element by element read it as one.
            if array not in reader.ins or array in moved | reader.moved:
                before = reader.copies.get(array, 1) if array in reader.ins else 0
                reader.copies[array] = before + copies * kernel.copies.get(array, 1)
        reader.moved |= moved

    def seconds(self, kernel: Kernel) -> float:
        """How long a kernel takes, to compare with."""
        return self.yardstick.seconds(kernel.read_bytes + kernel.write_bytes, kernel.effort)

    def is_computing(self, kernel: Kernel) -> bool:
        """Whether a kernel takes longer to compute than to read and write."""
        return self.yardstick.is_computing(kernel.read_bytes + kernel.write_bytes, kernel.effort)

    def read_bytes(self, array: int, share: float) -> float:
        """Bytes of an array that a kernel reads."""
        return self.arrays[array].size_bytes * min(1.0, share)

    def remove_dead(self) -> None:
        """Takes out kernels whose results nothing reads."""
        for index in range(len(self.kernels) - 1, -1, -1):
            kernel = self.kernels[index]
            if any(self.readers.get(a) or a in self.kept for a in kernel.outs):
                continue
            if kernel.outs:
                self.drop(index)

    def drop(self, index: int) -> None:
        """Takes a kernel out."""
        kernel = self.kernels[index]
        kernel.is_alive = False
        for array in kernel.ins:
            self.readers[array].discard(index)
