"""Fusion: which equations become one kernel, and what is then in memory between kernels?

Input: a `Graph`. Output: its `Kernel`s, in order.

XLA:GPU's way, in outline. Priority fusion: a kernel is taken into *all* the kernels that read
it, and then never exists in memory, if that is faster than writing and reading it; the pair
that gains most goes first. A kernel that some reader cannot take in stays. Reductions take in
what they reduce, and are taken in themselves where they are one step of a row-wise kernel
(softmax). Then kernels over the same elements that read the same arrays are run as one
("multi-output").
Times here only rank: they are for no device in particular.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from jaxswap.program.graph import Graph, Node

# A large data-centre GPU, in round numbers: what fusing gains hardly depends on it.
_BANDWIDTH_BYTES_PER_S = 2.5e12
_FLOPS_PER_S = 30e12
_LAUNCH_S = 1e-6
_TRANSCENDENTAL_FLOPS = 10.0
# What XLA computes once and writes, rather than in each of several readers; seen by compiling
# each with two readers. `exp`, `logistic`, `erf`, `rsqrt` and divisions it does twice.
DEAR = frozenset(
    ("tanh", "log", "log1p", "sin", "cos", "tan", "pow", "atan2", "erf_inv", "lgamma", "digamma",
     "threefry2x32", "random_bits")
)  # fmt: skip
_MAX_INPUTS = 48
_MAX_NODES = 400
# What more kernels than this read, such as a mask or a learning rate, is made once.
_MAX_READERS = 24


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
    """

    nodes: dict[int, float]
    ins: dict[int, float]
    outs: list[int]
    position: float
    span: int
    loop: int | None
    is_opaque: bool
    reduces: bool
    not_before: int = 0
    is_dear: bool = False
    is_stack: bool = False
    effort: float = 0.0
    read_bytes: float = 0.0
    write_bytes: float = 0.0
    is_alive: bool = True
    version: int = 0
    fixed: set[int] = field(default_factory=set)  # inputs that cannot be taken in

    @property
    def seconds(self) -> float:
        moved_s = (self.read_bytes + self.write_bytes) / _BANDWIDTH_BYTES_PER_S
        return _LAUNCH_S + max(moved_s, self.effort / _FLOPS_PER_S)


def fuse(graph: Graph) -> list[Kernel]:
    """Groups a graph's nodes into kernels.

    Example:
        >>> fuse(Graph())
        []
    """
    fuser = _Fuser(graph)
    fuser.remove_dead()
    fuser.fuse_epilogues()
    fuser.fuse_by_priority()
    fuser.fuse_outputs()
    fuser.put_off()
    alive = [k for k in fuser.kernels if k.is_alive]
    return sorted(alive, key=lambda k: k.position)


def effort_of(node: Node) -> float:
    """Vector operations of one node."""
    return node.cost.vector_flops + _TRANSCENDENTAL_FLOPS * node.cost.transcendentals


class _Fuser:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.arrays = graph.arrays
        self.effort = [effort_of(n) for n in graph.nodes]
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
            is_dear=node.name in DEAR,
            is_stack=node.name == "stack",
            effort=self.effort[index],
        )
        if node.kind == "update" and node.reads:
            kernel.fixed = {node.reads[0][0]}
        kernel.read_bytes = sum(self._read_bytes(a, s) for a, s in node.reads)
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

    def _read_bytes(self, array: int, share: float) -> float:
        return self.arrays[array].size_bytes * min(1.0, share)

    # ---- dead code ----

    def remove_dead(self) -> None:
        """Takes out kernels whose results nothing reads."""
        for index in range(len(self.kernels) - 1, -1, -1):
            kernel = self.kernels[index]
            if any(self.readers.get(a) or a in self.kept for a in kernel.outs):
                continue
            if kernel.outs:
                self._drop(index)

    def _drop(self, index: int) -> None:
        kernel = self.kernels[index]
        kernel.is_alive = False
        for array in kernel.ins:
            self.readers[array].discard(index)

    # ---- into a dot ----

    def fuse_epilogues(self) -> None:
        """A dot scales, converts or negates its own result."""
        for index, kernel in enumerate(self.kernels):
            if not kernel.is_alive or self.graph.nodes[index].cost.kind != "dot":
                continue
            while len(kernel.outs) == 1 and kernel.outs[0] not in self.kept:
                (result,) = kernel.outs
                readers = self.readers.get(result, set())
                if len(readers) != 1:
                    break
                (other,) = readers
                if not self._is_scaling(self.kernels[other], result):
                    break
                self._absorb(kernel, index, other)

    def _is_scaling(self, kernel: Kernel, source: int) -> bool:
        if kernel.is_opaque or kernel.reduces or len(kernel.nodes) > 1 or len(kernel.outs) != 1:
            return False
        (node,) = (self.graph.nodes[n] for n in kernel.nodes)
        others = [a for a in kernel.ins if a != source]
        target, made = self.arrays[kernel.outs[0]], self.arrays[source]
        return (
            node.kind == "map"
            and node.name != "transpose"
            and not node.cost.transcendentals
            and all(self.arrays[a].elements == 1 for a in others)
            and target.elements == made.elements
            and target.size_bytes <= made.size_bytes
        )

    def _absorb(self, kernel: Kernel, index: int, other: int) -> None:
        """Gives an opaque kernel the one reader of its result."""
        reader = self.kernels[other]
        (result,) = kernel.outs
        kernel.nodes |= reader.nodes
        kernel.ins |= {a: s for a, s in reader.ins.items() if a != result}
        for a in reader.ins:
            self.readers[a].discard(other)
            if a != result:
                self.readers[a].add(index)
        kernel.outs = reader.outs
        kernel.position = max(kernel.position, reader.position)
        kernel.write_bytes = reader.write_bytes
        self.maker[kernel.outs[0]] = index
        reader.is_alive = False

    # ---- into all readers ----

    def fuse_by_priority(self) -> None:
        """Takes kernels into their readers, the pair that gains most first."""
        heap: list[tuple[float, int, int]] = []

        def push(index: int) -> None:
            gain = self._gain(index)
            if gain is not None and gain > 0:
                heapq.heappush(heap, (-gain, index, self.kernels[index].version))

        for index, kernel in enumerate(self.kernels):
            if kernel.is_alive:
                push(index)
        while heap:
            _, index, version = heapq.heappop(heap)
            kernel = self.kernels[index]
            if not kernel.is_alive or version != kernel.version:
                continue
            changed = self._take_in(index)
            stale = set(changed)
            for other in changed:
                stale.update(self.maker[a] for a in self.kernels[other].ins if a in self.maker)
            for other in stale:
                self.kernels[other].version += 1
                if self.kernels[other].is_alive:
                    push(other)

    def _gain(self, index: int) -> float | None:
        """Seconds that taking a kernel into all its readers saves; None if it cannot be."""
        kernel = self.kernels[index]
        if kernel.is_opaque or len(kernel.outs) != 1 or kernel.outs[0] in self.kept:
            return None
        if self.graph.nodes[next(iter(kernel.nodes))].kind == "update":
            return None
        (result,) = kernel.outs
        readers = self.readers.get(result)
        if not readers or (kernel.is_dear and len(readers) > 1):
            return None
        if not kernel.ins and not kernel.effort:
            # A constant costs nothing anywhere.
            can_all = all(self._can_take(self.kernels[r], kernel, result, 1) for r in readers)
            return kernel.seconds if can_all else None
        if len(readers) > _MAX_READERS:
            return None
        gain = kernel.seconds
        for other in readers:
            reader = self.kernels[other]
            if not self._can_take(reader, kernel, result, len(readers)):
                return None
            gain -= self._merged_seconds(reader, kernel, result) - reader.seconds
        return gain

    def _can_take(self, reader: Kernel, kernel: Kernel, result: int, count: int) -> bool:
        if reader.is_opaque or reader.loop != kernel.loop or result in reader.fixed:
            return False
        if len(reader.ins) + len(kernel.ins) > _MAX_INPUTS:
            return False
        if len(reader.nodes) + len(kernel.nodes) > _MAX_NODES:
            return False
        if not kernel.reduces:
            return True
        elements = self.arrays[result].elements
        if elements == kernel.span:  # a row-wise kernel that gives whole rows
            return reader.span == kernel.span and not reader.is_stack
        if count > 1:
            return False
        if not reader.reduces and reader.span == elements:
            return True  # what is done with the sums before they are written
        return self._is_row_step(reader, kernel)

    def _is_row_step(self, reader: Kernel, kernel: Kernel) -> bool:
        """Whether a reduction is one step of a kernel that has the whole row at hand."""
        nodes = self.graph.nodes
        if reader.span != kernel.span or len(kernel.outs) != 1:
            return False
        if not all(nodes[n].is_row_reduction for n in kernel.nodes if nodes[n].kind == "reduce"):
            return False
        wide = {a for a in kernel.ins if self.arrays[a].elements * kernel.ins[a] >= kernel.span}
        return bool(wide & reader.ins.keys())

    def _merged_seconds(self, reader: Kernel, kernel: Kernel, result: int) -> float:
        share = reader.ins[result]
        read = reader.read_bytes - self._read_bytes(result, share)
        for array, own in kernel.ins.items():
            before = reader.ins.get(array)
            now = self._read_bytes(array, own * share)
            if before is None:
                read += now
            else:
                read += max(0.0, now - self._read_bytes(array, before))
        effort = reader.effort
        for node, times in kernel.nodes.items():
            if node not in reader.nodes:
                effort += self.effort[node] * times * share
        moved_s = (read + reader.write_bytes) / _BANDWIDTH_BYTES_PER_S
        return _LAUNCH_S + max(moved_s, effort / _FLOPS_PER_S)

    def _take_in(self, index: int) -> set[int]:
        """Takes a kernel into all its readers; returns them."""
        kernel = self.kernels[index]
        (result,) = kernel.outs
        readers = set(self.readers[result])
        for other in readers:
            reader = self.kernels[other]
            share = reader.ins.pop(result)
            reader.read_bytes -= self._read_bytes(result, share)
            for array, own in kernel.ins.items():
                before = reader.ins.get(array)
                now = own * share if before is None else max(before, own * share)
                reader.read_bytes += self._read_bytes(array, now)
                if before is not None:
                    reader.read_bytes -= self._read_bytes(array, before)
                reader.ins[array] = now
                self.readers[array].add(other)
            for node, times in kernel.nodes.items():
                before_times = reader.nodes.get(node, 0.0)
                now_times = max(before_times, times * share)
                reader.effort += self.effort[node] * (now_times - before_times)
                reader.nodes[node] = now_times
            reader.reduces |= kernel.reduces
            reader.is_dear |= kernel.is_dear
            reader.not_before = max(reader.not_before, kernel.not_before)
        self._drop(index)
        self.readers[result] = set()
        return readers

    # ---- several results ----

    def fuse_outputs(self) -> None:
        """Runs kernels over the same elements as one, where they read the same arrays."""
        order = sorted(
            (i for i, k in enumerate(self.kernels) if k.is_alive and not k.is_opaque),
            key=lambda i: self.kernels[i].position,
        )
        for index in order:
            kernel = self.kernels[index]
            if not kernel.is_alive or kernel.is_opaque:
                continue
            near = [*kernel.outs, *(a for a in kernel.ins if self._is_whole(a, kernel))]
            seen: set[int] = set()
            for array in near:
                for other in sorted(self.readers.get(array, ()), key=self._position):
                    is_whole = self._is_whole(array, self.kernels[other])
                    if other not in seen and other != index and is_whole:
                        seen.add(other)
                        self._try_join(index, other)

    # ---- in time ----

    def put_off(self) -> None:
        """Runs kernels that hold nothing up, such as a loop's slices, right before their use."""
        for index, kernel in enumerate(self.kernels):
            if not kernel.is_alive or kernel.is_opaque:
                continue
            readers = [self.kernels[r] for a in kernel.outs for r in self.readers.get(a, ())]
            if not readers or any(r.loop != kernel.loop for r in readers):
                continue
            is_there = (self.arrays[a].is_argument or self.arrays[a].is_stacked for a in kernel.ins)
            if all(is_there) and not any(a in self.kept for a in kernel.outs):
                kernel.position = min(r.position for r in readers) - 1 / (index + 2)

    def _position(self, index: int) -> float:
        return self.kernels[index].position

    def _is_whole(self, array: int, kernel: Kernel) -> bool:
        """Whether a kernel reads all of a large array: of two slices, each is its own."""
        return kernel.ins.get(array, 0.0) >= 1.0 and self.arrays[array].elements >= kernel.span

    def _try_join(self, index: int, other: int) -> None:
        """Joins a later kernel to an earlier one if it can run at that place."""
        first, second = self.kernels[index], self.kernels[other]
        if not second.is_alive or second.is_opaque or second.position <= first.position:
            return
        if first.span != second.span or first.loop != second.loop:
            return
        if first.position < second.not_before:
            return
        if first.is_stack or second.is_stack:
            return  # a slice of a stack is written in place, by a kernel of its own
        if first.fixed or second.fixed or len(first.ins) + len(second.ins) > _MAX_INPUTS:
            return
        if first.reduces and any(a in second.ins for a in first.outs if self._is_small(a, first)):
            return
        for array in second.ins:
            maker = self.maker.get(array)
            if maker is not None and maker != index:
                if self.kernels[maker].position > first.position:
                    return
        for array, share in second.ins.items():
            self.readers[array].discard(other)
            if array not in first.outs:
                first.ins[array] = max(first.ins.get(array, 0.0), share)
                self.readers[array].add(index)
        first.nodes.update((n, max(t, first.nodes.get(n, 0.0))) for n, t in second.nodes.items())
        for array in second.outs:
            self.maker[array] = index
        first.outs += second.outs
        first.reduces |= second.reduces
        second.is_alive = False

    def _is_small(self, array: int, kernel: Kernel) -> bool:
        return self.arrays[array].elements < kernel.span
