"""Scatters: which sums does XLA make in place?

Input: a `Graph`. Output: the same graph, changed in place.
What is scattered into zeros and then added to an array, as the gradient of a gather is that of
what others read too, XLA adds straight into that array: no zeros, and no sum, are ever made.
"""

import dataclasses

from jaxswap.program.graph import Graph, Node

_SCATTERS = ("scatter-add", "scatter_add")
_SUMS = ("add", "add_any")


def add_in_place(graph: Graph) -> None:
    """Turns `x + scatter_add(zeros, …)` into `scatter_add(x, …)`."""
    for index, node in enumerate(graph.nodes):
        if node.name not in _SUMS or len(node.reads) != 2:
            continue
        for array, _ in node.reads:
            scatter = _find_scatter(graph, array, index)
            if scatter is not None:
                ((base, _),) = (each for each in node.reads if each[0] != array)
                reads = ((base, 0.0), *scatter.reads[1:])
                graph.nodes[index] = dataclasses.replace(
                    scatter, phase=node.phase, reads=reads, writes=node.writes,
                    not_before=max(node.not_before, scatter.not_before),
                )  # fmt: skip
                graph.arrays[array].readers.clear()
                for read, _ in scatter.reads[1:]:
                    graph.arrays[read].readers.append(index)
                break


def _find_scatter(graph: Graph, array: int, reader: int) -> Node | None:
    """The scatter into zeros that makes an array for one reader alone."""
    made = graph.arrays[array]
    if made.producer is None or made.readers != [reader] or made.is_output or made.must_exist:
        return None
    scatter = graph.nodes[made.producer]
    if scatter.name not in _SCATTERS or scatter.loop != graph.nodes[reader].loop:
        return None
    base = graph.arrays[scatter.reads[0][0]].producer
    is_into_zeros = base is not None and graph.nodes[base].is_zero
    return scatter if is_into_zeros else None
