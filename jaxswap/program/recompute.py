"""Recompute: which kernels make a candidate again, and from what?

Input: a fused program, and which arrays belong to which candidate. Output: the kernels, the
candidates they start from, and the bytes between them.
A recomputation starts from other candidates, the step's arguments, and what is always kept:
values too small to decide about, and results of loops and of the backward pass.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxswap.model.kernel import KernelCost
from jaxswap.program.graph import Graph
from jaxswap.program.groups import Kernel
from jaxswap.program.ir import Program
from jaxswap.program.kernels import Links, cost_of_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """How one candidate is made again.

    Attributes:
        parents: the candidates it starts from.
        kernels: what runs, in order.
        ops: the op that each of them repeats.
        between_bytes: the most device bytes between those kernels, the result not counted.
    """

    parents: tuple[int, ...]
    kernels: tuple[KernelCost, ...]
    ops: tuple[int, ...]
    between_bytes: int


@dataclass(slots=True)
class _Chain:
    """The kernels that make an array again."""

    parts: list[tuple[int, Kernel, int]] = field(default_factory=list)  # op, part of it, result
    parents: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)


class Recomputer:
    """Finds recomputations in one program.

    `owner` says which candidate has an array, and `kept` which other arrays always stay.
    """

    def __init__(
        self,
        program: Program,
        graph: Graph,
        links: Links,
        owner: Mapping[int, int],
        kept: set[int],
    ):
        self.program, self.graph, self.links = program, graph, links
        self.owner, self.kept = owner, kept
        self.maker = {a: k for k, outs in enumerate(links.outs) for a in outs}

    def find(self, k: int, covers: set[int], array: int) -> "Recomputation | None":
        """What makes a candidate again; None if it starts from something that is gone."""
        chain = _Chain()
        made = [a for a in sorted(covers) if a in self.maker]
        target = next((a for a in made if not self.graph.arrays[a].is_stacked), array)
        if not self._make(target, k, chain):
            return None
        if any(p >= k for p in chain.parents):
            return None
        chain.parts.sort(key=lambda part: part[0])
        return Recomputation(
            parents=tuple(sorted(chain.parents)),
            kernels=self._costs(chain),
            ops=tuple(op for op, _, _ in chain.parts),
            between_bytes=self._between_bytes(chain),
        )

    def _make(self, array: int, k: int, chain: _Chain) -> bool:
        """Adds what makes `array`; False if it cannot be made."""
        stack = [array]
        while stack:
            target = stack.pop()
            if target in chain.seen:
                continue
            chain.seen.add(target)
            op = self.maker[target]
            part = self._part(self.links.kernels[op], target, k)
            chain.parts.append((op, part, target))
            for source in part.ins:
                owner = self.owner.get(source)
                if owner is not None and owner != k:
                    chain.parents.add(owner)
                elif source in self.graph.carries and owner is None:
                    return False
                elif source in self.maker and not self._is_kept(source):
                    if self._loop_of(source) != self._loop_of(target):
                        return False  # a loop is not run again for one of its results
                    stack.append(source)
        return True

    def _loop_of(self, array: int) -> int | None:
        return self.links.kernels[self.maker[array]].loop

    def _is_kept(self, array: int) -> bool:
        """Whether a value that is no candidate is there all the time anyway."""
        record = self.graph.arrays[array]
        if array in self.kept or record.is_argument or record.is_output:
            return True
        return record.producer is None or self.graph.nodes[record.producer].phase != "forward"

    def _part(self, kernel: Kernel, target: int, k: int) -> Kernel:
        """The part of a kernel that one of its results needs, to make candidate `k` again.

        A loop stacks what its kernels otherwise have only in passing: a part starts from that.
        """
        starts = lambda array: array in kernel.ins or self.owner.get(array, k) < k
        nodes: dict[int, float] = {}
        ins: dict[int, float] = {}
        stack, seen = [target], {target}
        while stack:
            array = stack.pop()
            if array != target and starts(array):
                ins[array] = kernel.ins.get(array, 1.0)
                continue
            producer = self.graph.arrays[array].producer
            if producer is None or producer not in kernel.nodes:
                continue
            nodes[producer] = kernel.nodes[producer]
            for source, _ in self.graph.nodes[producer].reads:
                if source not in seen:
                    seen.add(source)
                    stack.append(source)
        return dataclasses.replace(kernel, nodes=nodes, ins=ins, outs=[target])

    def _costs(self, chain: _Chain) -> tuple[KernelCost, ...]:
        return tuple(cost_of_kernel(self.graph, part, part.outs) for _, part, _ in chain.parts)

    def _between_bytes(self, chain: _Chain) -> int:
        """The most bytes alive between the kernels of a chain, its result not counted."""
        made = {target: k for k, (_, _, target) in enumerate(chain.parts)}
        last = dict(made)
        for k, (_, part, _) in enumerate(chain.parts):
            last.update((a, k) for a in part.ins if a in made)
        final = chain.parts[-1][2] if chain.parts else None
        return max(
            (
                sum(
                    self.graph.arrays[a].size_bytes
                    for a in made
                    if a != final and made[a] <= k <= last[a]
                )
                for k in range(len(chain.parts))
            ),
            default=0,
        )
