"""Kernels: how do fused kernels become the ops and values of a `Program`?

Input: a `Graph` and its `Kernel`s in order. Output: a `Program` without candidates, and which
of its values is which array.
A carry of a loop is one value: the trip that makes it, and the next that reads it, share its
memory.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from jaxswap.model.kernel import KernelCost
from jaxswap.program.graph import Graph
from jaxswap.program.groups import Kernel
from jaxswap.program.ir import Loop, Op, Phase, Program, Value
from jaxswap.program.reuse import reuse_operands

Describe = Callable[[int], tuple[str, str]]


@dataclass(slots=True, kw_only=True)
class Links:
    """Which array is which value, and which kernel is which op.

    Attributes:
        value_of: array → value.
        array_of: value → array.
        kernels: the kernels, one per op.
        outs: for each op, the arrays it really makes.
    """

    value_of: dict[int, int] = field(default_factory=dict)
    array_of: list[int] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    outs: list[list[int]] = field(default_factory=list)


def build_program(graph: Graph, kernels: list[Kernel], describe: Describe) -> tuple[Program, Links]:
    """Writes fused kernels as a `Program`."""
    kernels = [k for k in kernels if k.is_alive]
    read = {a for k in kernels for a in k.ins}
    same = graph.carries
    links = Links(kernels=kernels)
    readers: dict[int, list[int]] = {}
    producer: dict[int, int] = {}
    for index, kernel in enumerate(kernels):
        for array in kernel.ins:
            readers.setdefault(same.get(array, array), []).append(index)
        outs = [a for a in kernel.outs if a in read or _must_exist(graph, a)]
        links.outs.append(outs or kernel.outs[:1])
        for array in links.outs[-1]:
            producer[array] = index
    for array in sorted(set(producer) | set(readers), key=lambda a: producer.get(a, -1)):
        links.value_of[array] = len(links.array_of)
        links.array_of.append(array)
    for before, after in same.items():
        if after in links.value_of:
            links.value_of[before] = links.value_of[after]
    details = [describe(_root(graph, k)) for k in kernels]
    values = [
        _value(graph, a, producer.get(a), readers.get(a, []), details) for a in links.array_of
    ]
    ops = [
        _op(graph, kernel, outs, links.value_of, detail)
        for kernel, outs, detail in zip(kernels, links.outs, details, strict=True)
    ]
    program = Program(
        ops=tuple(reuse_operands(graph, ops, values, kernels, links.array_of)),
        values=tuple(_unique_names(values)),
        candidates=(),
        loops=_loops(graph, kernels),
    )
    return program, links


def _must_exist(graph: Graph, array: int) -> bool:
    return graph.arrays[array].must_exist or graph.arrays[array].is_output


def _root(graph: Graph, kernel: Kernel) -> int:
    """The node a kernel is called after: that with the most work, or the one it ends with."""
    nodes = graph.nodes

    def work(index: int) -> tuple[float, float, float]:
        cost = nodes[index].cost
        return cost.matrix_flops, cost.transcendentals, nodes[index].kind == "reduce"

    best = max(kernel.nodes, key=work)
    if any(work(best)):
        return best
    return max(kernel.nodes)


def _op(
    graph: Graph, kernel: Kernel, outs: list[int], value_of: dict[int, int], detail: tuple[str, str]
) -> Op:
    nodes = [graph.nodes[n] for n in kernel.nodes]
    root = graph.nodes[_root(graph, kernel)]
    phases = {graph.nodes[p].phase for a in outs if (p := graph.arrays[a].producer) is not None}
    order: tuple[Phase, ...] = ("forward", "backward", "update")
    phase: Phase = root.phase
    for p in reversed(order):
        phase = p if p in phases else phase
    return Op(
        name=root.name,
        phase=phase,
        reads=tuple(dict.fromkeys(value_of[a] for a in kernel.ins)),
        writes=tuple(value_of[a] for a in outs),
        cost=cost_of_kernel(graph, kernel, outs),
        is_heavy=any(n.is_heavy for n in nodes),
        has_batch_dims=root.has_batch_dims,
        scratch_bytes=sum(n.scratch_bytes for n in nodes),
        trips=_trips(graph, kernel.loop),
        loop=kernel.loop,
        label=detail[0],
        source=detail[1],
    )


def cost_of_kernel(graph: Graph, kernel: Kernel, outs: list[int]) -> KernelCost:
    """The work of a kernel: that of its nodes, and the bytes at its edge."""
    matrix = max((graph.nodes[n].cost for n in kernel.nodes), key=lambda c: c.matrix_flops)
    size_bytes = sum(graph.arrays[a].size_bytes * min(1.0, s) for a, s in kernel.ins.items())
    size_bytes += sum(graph.nodes[n].cost.size_bytes for n in kernel.nodes)
    for array in outs:
        node = graph.nodes[graph.arrays[array].producer or 0]
        if node.kind == "update":  # only what is written, which is read before if it is added
            size_bytes += sum(graph.arrays[a].size_bytes for a, s in node.reads[1:] if s)
        else:
            size_bytes += graph.arrays[array].size_bytes
    return KernelCost(
        kind=matrix.kind,
        dtype=matrix.dtype,
        is_exact=matrix.is_exact,
        matrix_flops=sum(graph.nodes[n].cost.matrix_flops for n in kernel.nodes),
        vector_flops=sum(graph.nodes[n].cost.vector_flops * t for n, t in kernel.nodes.items()),
        transcendentals=sum(
            graph.nodes[n].cost.transcendentals * t for n, t in kernel.nodes.items()
        ),
        size_bytes=float(size_bytes),
    )


def _trips(graph: Graph, loop: int | None) -> int:
    total = 1
    while loop is not None:
        total *= graph.loops[loop].trips
        loop = graph.loops[loop].parent
    return total


def _value(
    graph: Graph, index: int, producer: int | None, readers: list[int], details: list
) -> Value:
    array = graph.arrays[index]
    node = graph.nodes[array.producer] if array.producer is not None else None
    detail = details[producer] if producer is not None else ("", "")
    return Value(
        name=array.names[0] if array.names else f"%{index}",
        size_bytes=array.size_bytes,
        producer=producer,
        readers=tuple(sorted(set(readers))),
        trips=array.trips,
        is_stacked=array.is_stacked,
        is_argument=array.is_argument,
        is_output=array.is_output,
        primitive=node.name if node else "",
        dtype=array.dtype,
        shape=array.shape,
        label=detail[0],
        source=detail[1],
    )


def _unique_names(values: list[Value]) -> list[Value]:
    seen: set[str] = set()
    result = []
    for k, value in enumerate(values):
        if value.name in seen:
            value = dataclasses.replace(value, name=f"{value.name}%{k}")
        seen.add(value.name)
        result.append(value)
    return result


def _loops(graph: Graph, kernels: list[Kernel]) -> tuple[Loop, ...]:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, kernel in enumerate(kernels):
        loop = kernel.loop
        while loop is not None:
            first.setdefault(loop, index)
            last[loop] = index
            loop = graph.loops[loop].parent
    return tuple(
        Loop(
            first_op=first.get(k, 0), last_op=last.get(k, -1), trips=span.trips, parent=span.parent
        )
        for k, span in enumerate(graph.loops)
    )
