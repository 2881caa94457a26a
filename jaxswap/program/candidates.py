"""Candidates: which values can a plan decide about, and what does it take to make one again?

Input: a `Program` without candidates, the `Graph` it came from, and what `apply` can do with
each named value. Output: the `Program` with its candidates and refusals.

A candidate is a value in memory that the forward pass makes and the backward pass reads, under
a name that `apply` understands. A value without a name of its own (a factor of a derivative, a
copy in another layout) goes by the nearest named value that it is an elementwise image of:
keeping, offloading or recomputing that one does the same for it. Where that name is taken, the
value is *implicit*: a planned step makes it again from the other one, as part of what reads it.

Making a candidate again starts from other candidates, the step's arguments, and values that
are always kept: those refused for their size, and results of loops and of side effects.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from jaxswap.model.kernel import KernelCost
from jaxswap.program.fusion import Kernel
from jaxswap.program.graph import Graph
from jaxswap.program.ir import Candidate, Program
from jaxswap.program.kernels import Links, cost_of_kernel
from jaxswap.program.repeats import number_repeats

MIN_BYTES = 2**20
"""Values below this, all trips together, are kept: what they save is lost in one launch."""


class Permission(Protocol):
    """What `apply` can do with a named value."""

    @property
    def actions(self) -> tuple[str, ...]: ...


def add_candidates(
    program: Program, graph: Graph, links: Links, named: Mapping[str, Permission]
) -> Program:
    """The same program, with what can be decided about it."""
    return _Search(program, graph, links, named).run()


@dataclass(slots=True, kw_only=True)
class _Found:
    value: int
    array: int
    name: str
    covers: set[int]  # arrays that are there when this candidate is
    last_forward: int
    first_backward: int
    last_backward: int


@dataclass(slots=True)
class _Chain:
    """The kernels that make an array again."""

    parts: list[tuple[int, Kernel, int]] = field(default_factory=list)  # op, part of it, result
    parents: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)


class _Search:
    def __init__(self, program: Program, graph: Graph, links: Links, named: Mapping):
        self.program, self.graph, self.links, self.named = program, graph, links, named
        self.refused: dict[str, str] = {}
        self.implicit: set[int] = set()
        self.found: list[_Found] = []
        self.owner: dict[int, int] = {}  # array → the candidate that has it
        self.heavy_before = [0]
        for op in program.ops:
            self.heavy_before.append(self.heavy_before[-1] + op.is_heavy)
        self.maker = {a: k for k, outs in enumerate(links.outs) for a in outs}

    def run(self) -> Program:
        claims = [self._claim(v) for v in range(len(self.program.values))]
        taken: set[str] = set()
        # Values that have a name of their own come first, then those that borrow one.
        for is_own in (True, False):
            for claim in claims:
                if claim is not None and claim[0] == is_own:
                    self._settle(*claim[1:], taken)
        self.found.sort(key=lambda f: (min(map(self._made_at, f.covers)), f.value))
        self.owner = {a: k for k, f in reversed(list(enumerate(self.found))) for a in f.covers}
        candidates = [self._candidate(k) for k in range(len(self.found))]
        numbers = number_repeats([self._key(c) for c in candidates])
        values = list(self.program.values)
        for f in self.found:
            value = values[f.value]
            # Of a carry, it is the last trip's that is there when the loop is over.
            trips = value.trips if value.is_stacked else self._trips_of_reader(f)
            values[f.value] = dataclasses.replace(value, name=f.name, trips=trips)
        for v in self.implicit:
            values[v] = dataclasses.replace(values[v], is_implicit=True)
        return dataclasses.replace(
            self.program,
            values=tuple(_without_twins(values, {f.value for f in self.found})),
            candidates=tuple(
                dataclasses.replace(c, repeat=n) for c, n in zip(candidates, numbers, strict=True)
            ),
            refused=self.refused,
        )

    def _made_at(self, array: int) -> int:
        """The node that makes an array; a carry is there when its loop starts."""
        producer = self.graph.arrays[array].producer
        if producer is not None:
            return producer
        after = self.graph.arrays[self.graph.carries[array]].producer
        loop = self.graph.nodes[after].loop if after is not None else None
        return self.graph.loops[loop].first if loop is not None else 0

    def _trips_of_reader(self, found: _Found) -> int:
        return min(
            self.program.values[found.value].trips, self.program.ops[found.first_backward].trips
        )

    # ---- which values ----

    def _claim(self, v: int) -> tuple[bool, int, str, set[int]] | None:
        """Whether a value passes from forward to backward, and the name it could go by."""
        value, ops = self.program.values[v], self.program.ops
        if not any(ops[r].phase == "backward" for r in value.readers):
            return None
        array = self.links.array_of[v]
        own, covers = self._own_names(array)
        if value.is_argument or value.producer is None:
            if own and value.size_bytes >= MIN_BYTES:
                self.refused[own[0]] = "an argument, whose memory is the caller's"
            return None
        if ops[value.producer].phase != "forward":
            return None
        carried = self._carry_of(array)
        if carried is not None:
            return True, v, self.graph.arrays[carried].names[0], covers | {carried}
        names = [n for n in own if n in self.named]
        if names:
            return True, v, names[0], covers
        name, image = self._image_of(array)
        return False, v, name, covers | image

    def _carry_of(self, array: int) -> int | None:
        """The carry of a loop whose copy or conversion is stacked here, if it is one.

        What a body starts from cannot be made again: it is kept or offloaded by its own name,
        and everything else in the body can be made from it.
        """
        if not self.graph.arrays[array].is_stacked:
            return None
        while array not in self.graph.carries:
            producer = self.graph.arrays[array].producer
            node = self.graph.nodes[producer] if producer is not None else None
            if node is None or node.kind != "map" or len(node.reads) != 1:
                return None
            ((source, _),) = node.reads
            if self.graph.arrays[source].elements != self.graph.arrays[array].elements:
                return None
            array = source
        names = self.graph.arrays[array].names
        return array if names and names[0] in self.named else None

    def _own_names(self, array: int) -> tuple[list[str], set[int]]:
        """The names of an array, or of what it is a stack or another layout of."""
        covers = {array}
        while True:
            record = self.graph.arrays[array]
            names = record.result_names or record.names
            if names or record.stands_for is None:
                return names, covers
            array = record.stands_for
            covers.add(array)

    def _image_of(self, array: int) -> tuple[str, set[int]]:
        """The nearest named value that an array is an elementwise image of, if there is one."""
        size = self.graph.arrays[array].elements
        frontier, seen = [array], {array}
        while frontier:
            following = []
            for a in frontier:
                producer = self.graph.arrays[a].producer
                node = self.graph.nodes[producer] if producer is not None else None
                if node is None or node.kind != "map":
                    continue
                for source, _ in node.reads:
                    record = self.graph.arrays[source]
                    if source in seen or record.elements != size or record.is_argument:
                        continue
                    seen.add(source)
                    following.append(source)
            for a in following:
                names = [n for n in self.graph.arrays[a].names if n in self.named]
                if names:
                    return names[0], {a}
            frontier = following
        return "", set()

    def _settle(self, v: int, name: str, covers: set[int], taken: set[str]) -> None:
        """Makes a value a candidate, or says why it is none."""
        value, ops = self.program.values[v], self.program.ops
        assert value.producer is not None
        backward = [r for r in value.readers if ops[r].phase == "backward"]
        forward = [r for r in value.readers if ops[r].phase != "backward" and r < backward[0]]
        last_forward = max([value.producer, *forward])
        shown = name if name and name not in taken else value.name
        reason = None
        if value.size_bytes * value.trips < MIN_BYTES:
            reason = "too small to matter"
        elif value.is_output:
            reason = "a result of the step"
        elif any(r > backward[-1] and ops[r].phase != "backward" for r in value.readers):
            reason = "read again after the backward pass"
        elif not value.is_stacked and not self._is_apart(last_forward, backward[0]):
            reason = "read again at once: no heavy op runs between its two uses"
        elif not name:
            reason = "no named value that it could be made from, element by element"
        elif name in taken:
            self.implicit.add(v)
            reason = f"made again from {name!r} by what reads it, once that is decided about"
        elif len(self.named[name].actions) < 2:
            reason = "neither its type nor its op allows anything but keeping it"
        if reason is not None:
            self.refused[shown] = reason
            return
        taken.add(name)
        self.found.append(
            _Found(
                value=v, array=self.links.array_of[v], name=name, covers=covers,
                last_forward=last_forward, first_backward=backward[0], last_backward=backward[-1],
            )
        )  # fmt: skip

    def _is_apart(self, last_forward: int, first_backward: int) -> bool:
        return self.heavy_before[first_backward] > self.heavy_before[last_forward + 1]

    # ---- how to make them again ----

    def _candidate(self, k: int) -> Candidate:
        found = self.found[k]
        actions = self.named[found.name].actions
        chain = self._chain(k) if "recompute" in actions else None
        return Candidate(
            value=found.value,
            last_forward=found.last_forward,
            first_backward=found.first_backward,
            last_backward=found.last_backward,
            parents=tuple(sorted(chain.parents)) if chain else (),
            recompute=self._costs(chain) if chain else None,
            recompute_bytes=self._between_bytes(chain) if chain else 0,
            can_offload="offload" in actions,
        )

    def _chain(self, k: int) -> _Chain | None:
        """What makes a candidate again; None if it starts from something that is gone."""
        found = self.found[k]
        chain = _Chain()
        made = [a for a in found.covers if a in self.maker]
        target = next((a for a in made if not self.graph.arrays[a].is_stacked), found.array)
        if not self._make(target, k, chain):
            return None
        if any(p >= k for p in chain.parents):
            return None
        chain.parts.sort(key=lambda part: part[0])
        return chain

    def _make(self, array: int, k: int, chain: _Chain) -> bool:
        """Adds what makes `array`; False if it cannot be made."""
        stack = [array]
        while stack:
            target = stack.pop()
            if target in chain.seen:
                continue
            chain.seen.add(target)
            op = self.maker[target]
            part = self._part(self.links.kernels[op], target)
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
        node = self.graph.nodes[record.producer] if record.producer is not None else None
        if record.is_argument or record.is_output or node is None:
            return True
        is_small = record.size_bytes * record.trips < MIN_BYTES
        return node.phase != "forward" or (is_small and self._is_read_backward(array))

    def _is_read_backward(self, array: int) -> bool:
        value = self.links.value_of.get(array)
        if value is None:
            return False
        readers = self.program.values[value].readers
        return any(self.program.ops[r].phase == "backward" for r in readers)

    def _part(self, kernel: Kernel, target: int) -> Kernel:
        """The part of a kernel that one of its results needs."""
        nodes: dict[int, float] = {}
        ins: dict[int, float] = {}
        stack, seen = [target], {target}
        while stack:
            array = stack.pop()
            if array in kernel.ins and array != target:
                ins[array] = kernel.ins[array]
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

    def _key(self, candidate: Candidate) -> tuple:
        value = self.program.values[candidate.value]
        costs = candidate.recompute
        return (
            value.shape, value.dtype, value.primitive, value.trips, candidate.can_offload,
            costs, candidate.recompute_bytes, len(candidate.parents),
        )  # fmt: skip


def _without_twins(values: list, chosen: set[int]) -> list:
    """Renames other values that have a candidate's name."""
    names = {values[v].name for v in chosen}
    return [
        dataclasses.replace(value, name=f"{value.name}%{k}")
        if value.name in names and k not in chosen
        else value
        for k, value in enumerate(values)
    ]
