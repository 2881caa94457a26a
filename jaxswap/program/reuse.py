"""Reuse: where does a kernel write a result over an operand that nothing reads after it?

Input: kernels, their ops, and the values between them. Output: the ops with `scratch_bytes`
and `reused_bytes` that say so.

XLA:GPU's rules. An update always writes into its first operand. Any other fused kernel may
write over an operand of its result's size that it is the last to read, if each element of the
result needs that element of the operand and no other, and if the operand is an array of its
own: not one of several results, and not that of a convolution, which has its workspace beside
it. Nor is a result one that is then updated. Behind the barriers of a planned step no operand is
an array of its own, but for logits: no barrier is between a loss and their gradient.
"""

import dataclasses
from collections.abc import Sequence

from jaxswap.program.graph import Graph
from jaxswap.program.groups import Kernel
from jaxswap.program.ir import Op, Value

# What one element of the result needs from elsewhere than its own place.
_ELSEWHERE = frozenset(
    ("transpose", "slice", "dynamic_slice", "pad", "concatenate", "rev", "gather",
     "broadcast_in_dim", "reduce_window", "reduce_window_max", "reduce_window_min",
     "reduce_window_sum", "jaxswap_find_places", "jaxswap_spread_gradient")
)  # fmt: skip

_OF_LABELS = "jaxswap_select_scattered"  # part of the gradient of a loss with labels


def reuse_operands(
    graph: Graph, ops: list[Op], values: list[Value], kernels: list[Kernel], array_of: list[int]
) -> list[Op]:
    """Lets kernels write their results over operands, where XLA does."""
    found = []
    updated = {node.reads[0][0] for node in graph.nodes if node.kind == "update" and node.reads}
    for index, (op, kernel) in enumerate(zip(ops, kernels, strict=True)):
        if not kernel.is_opaque:
            is_update = any(graph.nodes[n].kind == "update" for n in kernel.nodes)
            dying = [v for v in op.reads if _is_dying(values[v], index)]
            if is_update:
                saved = _count_saved(op.writes, values, dying)
                op = dataclasses.replace(op, scratch_bytes=op.scratch_bytes - saved)
            else:
                alone = [v for v in dying if _is_alone(ops[values[v].producer or 0])]
                alone = [v for v in alone if _is_in_place(graph, kernel, array_of[v])]
                own = [v for v in op.writes if array_of[v] not in updated]
                saved = _count_saved(own, values, alone)
                if any(graph.nodes[n].name == _OF_LABELS for n in kernel.nodes):
                    op = dataclasses.replace(op, scratch_bytes=op.scratch_bytes - saved)
                else:
                    op = dataclasses.replace(op, reused_bytes=saved)
        found.append(op)
    return found


def _is_dying(value: Value, index: int) -> bool:
    is_base = value.is_output or value.is_argument or value.is_stacked
    return value.readers[-1] == index and value.producer is not None and not is_base


def _is_alone(maker: Op) -> bool:
    return len(maker.writes) == 1 and maker.cost.kind != "conv"


def _is_in_place(graph: Graph, kernel: Kernel, array: int) -> bool:
    """Whether an operand is read element by element, and reduced at most once, at the end."""
    if array not in kernel.ins:  # a loop's carry
        return False
    reached, num_reductions = {array}, 0
    for index in sorted(kernel.nodes):
        node = graph.nodes[index]
        if not reached.intersection(a for a, _ in node.reads):
            continue
        if node.name in _ELSEWHERE:
            return False
        if node.kind == "reduce":
            num_reductions += 1
            if not set(node.writes) <= set(kernel.outs):
                return False
        else:
            reached.update(node.writes)
    return num_reductions <= 1


def _count_saved(writes: Sequence[int], values: list[Value], dying: list[int]) -> int:
    sizes = [values[v].size_bytes for v in dying]
    saved = 0
    for v in writes:
        value = values[v]
        if not value.is_output and not value.is_stacked and value.size_bytes in sizes:
            sizes.remove(value.size_bytes)
            saved += value.size_bytes
    return saved
