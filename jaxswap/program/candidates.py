"""Candidates: which values can a plan decide about, and what does it take to make one again?

Input: a `Program` without candidates, the `Graph` it came from, and what `apply` can do with
each named value. Output: the `Program` with its candidates and refusals.

A candidate is a value in memory that the forward pass makes and the backward pass reads, under
a name that `apply` understands. A value without a name of its own (a factor of a derivative, a
copy in another layout) goes by the nearest named value that it is an elementwise image of:
keeping, offloading or recomputing that one does the same for it. Where that name is taken, the
value is *implicit*: a planned step makes it again from the other one, as part of what reads it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from jaxswap._units import format_bytes
from jaxswap.program.graph import Graph
from jaxswap.program.ir import Candidate, Program
from jaxswap.program.kernels import Links
from jaxswap.program.recompute import Recomputer
from jaxswap.program.repeats import number_repeats

MIN_BYTES = 2**20
MIN_SHARE = 2**-12
"""Values below this, or below this share of all that goes from forward to backward, are kept."""
_LARGER = 16  # times: what a value sums up


class Permission(Protocol):
    """What `apply` can do with a named value."""

    @property
    def actions(self) -> tuple[str, ...]:
        """Some of "keep", "offload" and "recompute"."""
        ...


def add_candidates(
    program: Program,
    graph: Graph,
    links: Links,
    named: Mapping[str, Permission],
    *,
    has_row_kernels: bool = True,
) -> Program:
    """The same program, with what can be decided about it.

    `has_row_kernels`: as in the `Yardstick` that the program was grouped with.
    """
    return _Search(program, graph, links, named, has_row_kernels).run()


@dataclass(slots=True, kw_only=True)
class _Found:
    value: int
    array: int
    name: str
    covers: set[int]  # arrays that are there when this candidate is
    last_forward: int
    first_backward: int
    last_backward: int


class _Search:
    def __init__(
        self, program: Program, graph: Graph, links: Links, named: Mapping, has_row_kernels: bool
    ):
        self.program, self.graph, self.links, self.named = program, graph, links, named
        self.has_row_kernels = has_row_kernels
        self.refused: dict[str, str] = {}
        self.kept_names: dict[str, None] = {}
        self.implicit: set[int] = set()
        self.found: list[_Found] = []
        self.min_bytes = MIN_BYTES
        self.heavy_before = [0]
        for op in program.ops:
            self.heavy_before.append(self.heavy_before[-1] + op.is_heavy)
        self.kept: set[int] = set()  # arrays too small to decide about

    def run(self) -> Program:
        claims = [self._claim(v) for v in range(len(self.program.values))]
        saved = (self.program.values[c[1]] for c in claims if c is not None)
        total_bytes = sum(value.size_bytes * value.trips for value in saved)
        self.min_bytes = max(MIN_BYTES, int(total_bytes * MIN_SHARE))
        taken: set[str] = set()
        # Values that have a name of their own come first, then those that borrow one.
        for is_own in (True, False):
            for claim in claims:
                if claim is not None and claim[0] == is_own:
                    self._settle(*claim[1:], taken)
        self.found.sort(key=lambda f: (min(map(self._made_at, f.covers)), f.value))
        owner = {a: k for k, f in reversed(list(enumerate(self.found))) for a in f.covers}
        self.recomputer = Recomputer(self.program, self.graph, self.links, owner, self.kept)
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
            kept_names=tuple(name for name in self.kept_names if name not in taken),
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
        is_small = value.size_bytes * value.trips < self.min_bytes
        if (is_small and self._sums_up(v)) or self._is_of_rows(v):
            self.refused[shown] = "made again with the larger values that it sums up"
            return
        if is_small:
            self.kept.add(self.links.array_of[v])
            reason = f"too small to matter: below {format_bytes(self.min_bytes)}"
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
            if name in self.named and v not in self.implicit:
                self.kept_names[name] = None
            return
        taken.add(name)
        self.found.append(
            _Found(
                value=v, array=self.links.array_of[v], name=name, covers=covers,
                last_forward=last_forward, first_backward=backward[0], last_backward=backward[-1],
            )
        )  # fmt: skip

    def _is_of_rows(self, v: int) -> bool:
        """Whether a value is a step within rows, made of a step before it: the sums of a softmax.

        XLA has a row at hand for all of its steps, where it has kernels for that; to keep one of
        them costs the forward pass a kernel of its own, and spares the backward pass none.
        """
        if not self.has_row_kernels:
            return False
        least = _LARGER * self.program.values[v].size_bytes
        is_wide = lambda array: self.graph.arrays[array].size_bytes >= least
        rows = [s for s in self._find_reduced([self.links.array_of[v]], is_wide) if is_wide(s)]
        is_in_memory = lambda array: array in self.links.value_of
        return any(is_wide(source) for source in self._find_reduced(rows, is_in_memory))

    def _find_reduced(self, arrays: list[int], is_end: Callable[[int], bool]) -> list[int]:
        """What row reductions on the way to arrays read, back to where the way ends."""
        stack, seen, found = list(arrays), set(), []
        while stack:
            producer = self.graph.arrays[stack.pop()].producer
            if producer is None or producer in seen:
                continue
            seen.add(producer)
            node = self.graph.nodes[producer]
            sources = [source for source, _ in node.reads]
            if node.kind == "reduce" and node.is_row_reduction:
                found += sources
            if node.kind == "map":
                stack += [source for source in sources if not is_end(source)]
        return found

    def _sums_up(self, v: int) -> bool:
        """Whether a loop stacks a value that comes along when larger ones are made again.

        To keep it, the sums of a softmax say, would cost the forward loop a kernel of its own.
        """
        arrays = self.graph.arrays
        if not self.program.values[v].is_stacked:
            return False
        _, covers = self._own_names(self.links.array_of[v])
        stack, seen, has_larger = [min(covers)], set(covers), False
        while stack:
            producer = arrays[stack.pop()].producer
            if producer is None:
                continue
            if self.graph.nodes[producer].kind not in ("map", "reduce"):
                return False
            for source, _ in self.graph.nodes[producer].reads:
                is_larger = arrays[source].size_bytes >= _LARGER * self.program.values[v].size_bytes
                has_larger |= is_larger
                if not is_larger and source not in seen:
                    seen.add(source)
                    stack.append(source)
        return has_larger

    def _is_apart(self, last_forward: int, first_backward: int) -> bool:
        return self.heavy_before[first_backward] > self.heavy_before[last_forward + 1]

    # ---- how to make them again ----

    def _candidate(self, k: int) -> Candidate:
        found = self.found[k]
        actions = self.named[found.name].actions
        again = None
        if "recompute" in actions:
            again = self.recomputer.find(k, found.covers, found.array)
        return Candidate(
            value=found.value,
            last_forward=found.last_forward,
            first_backward=found.first_backward,
            last_backward=found.last_backward,
            parents=again.parents if again else (),
            recompute=again.kernels if again else None,
            recompute_ops=again.ops if again else (),
            recompute_bytes=again.between_bytes if again else 0,
            can_offload="offload" in actions,
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
