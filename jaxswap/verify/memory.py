"""Memory: how many device bytes are alive at each instruction, and whose are they?

Input: a scheduled `Module`. Output: a `MemoryCurve`.
The same rules as XLA's buffer assignment, without its packing: a buffer lives from the
instruction that makes it to the last that reads it, both included; views, loop carries and
in-place updates share their operand's buffer; arguments and outputs live throughout.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxswap.verify.hlo import Array, Computation, Instruction, Module

# What an element of the result needs from elsewhere than its own place.
_ELSEWHERE = ("broadcast", "concatenate", "copy", "dynamic-slice", "gather", "pad", "reduce-window",
              "reverse", "slice", "transpose")  # fmt: skip
# One owner set per leaf of a result: the buffers that hold it.
Leaves = list[frozenset[int]]
_VIEWS = ("bitcast", "optimization-barrier", "add-dependency", "domain")
_PARTS = ("get-tuple-element", "tuple", "parameter")
_IN_PLACE = ("dynamic-update-slice", "scatter", "all-reduce", "while")


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Bytes that instructions share: who makes them, and from when to when they are needed."""

    name: str
    op_name: str
    size_bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Device bytes at each instruction of the entry computation.

    Attributes:
        bytes_at: arguments, outputs and live temporaries at each instruction.
        base_bytes: arguments + outputs − aliased, which are there throughout.
        buffers: every temporary.
        names: the instructions, in order.
    """

    bytes_at: np.ndarray
    base_bytes: int
    buffers: tuple[Buffer, ...]
    names: tuple[str, ...]

    @property
    def peak_bytes(self) -> int:
        """The highest point of the curve."""
        return int(self.bytes_at.max(initial=self.base_bytes))

    @property
    def peak_index(self) -> int:
        """The first instruction at the highest point."""
        return int(self.bytes_at.argmax()) if len(self.bytes_at) else 0

    def alive_at(self, index: int) -> list[Buffer]:
        """The temporaries alive at an instruction, largest first."""
        alive = (b for b in self.buffers if b.first <= index <= b.last)
        return sorted(alive, key=lambda b: -b.size_bytes)


def memory_curve(module: Module) -> MemoryCurve:
    """Walks the schedule once and sums the buffers alive at each instruction."""
    walk = _Walk(module)
    entry = module.entry
    arguments = [i for i in entry.instructions if i.opcode == "parameter"]
    leaves = walk.run(entry, None)
    outputs = entry.root.arrays
    device_outputs = [(index, array) for index, array in enumerate(outputs) if not array.is_on_host]
    base_bytes = sum(a.size_bytes for i in arguments for a in i.arrays if not a.is_on_host)
    base_bytes += sum(
        array.size_bytes for index, array in device_outputs if index not in module.aliased_outputs
    )
    for owners in leaves:  # outputs live in the output's buffer from the start
        for owner in owners:
            walk.size_bytes[owner] = 0
    return walk.finish(entry, base_bytes)


class _Walk:
    """Assigns buffers in one computation and, inside out, in the loops it runs."""

    def __init__(self, module: Module):
        self.module = module
        self.size_bytes: list[int] = []
        self.first: list[int] = []
        self.last: list[int] = []
        self.maker: list[Instruction] = []
        self.can_take: list[tuple[int, int]] = []  # (dying operand, new result) of one size
        self.extra: dict[int, int] = {}  # bytes inside a loop's body, at the loop

    def run(self, computation: Computation, parameters: Leaves | None) -> Leaves:
        """Walks `computation`; `parameters` are a loop body's carry, None at the entry."""
        env: dict[str, Leaves] = {}
        for index, instruction in enumerate(computation.instructions):
            env[instruction.name] = self._leaves(instruction, computation, index, env, parameters)
            if instruction.opcode in ("tuple", "get-tuple-element", *_VIEWS):
                continue
            for name in instruction.operands:
                for owner in frozenset().union(*env[name]):
                    self.last[owner] = max(self.last[owner], index)
        end = len(computation.instructions)
        leaves = env[computation.root.name]
        for owners in leaves:
            for owner in owners:
                self.last[owner] = end
        self._keep_sources_until_done(computation, env)
        return leaves

    def _leaves(
        self,
        instruction: Instruction,
        computation: Computation,
        index: int,
        env: Mapping[str, Leaves],
        parameters: Leaves | None,
    ) -> Leaves:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "parameter":
            return parameters if parameters is not None else [frozenset()] * len(instruction.arrays)
        if opcode == "constant":
            return [frozenset()]
        if opcode == "tuple":
            return [frozenset().union(*env[name]) for name in operands]
        if opcode == "get-tuple-element":
            return [env[operands[0]][int(instruction.attribute("index") or 0)]]
        if opcode in _VIEWS or opcode.endswith("-done"):
            return env[operands[0]]
        if opcode == "while":
            self.extra[index] = self._inside(instruction, env[operands[0]])
            return env[operands[0]]
        if opcode == "call" and instruction.called:
            self.extra[index] = self._inside(instruction, env[operands[0]] if operands else [])
        shared = self._shared_operand(instruction)
        if shared is not None:
            return env[operands[shared]]
        return self._new_buffers(instruction, computation, index, env)

    def _new_buffers(
        self,
        instruction: Instruction,
        computation: Computation,
        index: int,
        env: Mapping[str, Leaves],
    ) -> Leaves:
        arrays = _result_arrays(instruction, self.module)
        leaves: Leaves = []
        for array in arrays:
            self.size_bytes.append(0 if array.is_on_host else array.size_bytes)
            self.first.append(index)
            self.last.append(index)
            self.maker.append(instruction)
            leaves.append(frozenset([len(self.size_bytes) - 1]))
        if instruction.opcode == "fusion" and "kind=kCustom" not in instruction.attributes:
            inside = self.module.computation(instruction.called[0])
            for position, name in enumerate(instruction.operands):
                # A view of a buffer, or one of several results, is never written over.
                made = computation.by_name[name]
                is_alone = made.opcode not in (*_PARTS, *_VIEWS) and not made.is_tuple
                if is_alone and _is_read_in_place(inside, position):
                    for owner in frozenset().union(*env[name]):
                        self.can_take += [(owner, new) for leaf in leaves for new in leaf]
        return leaves

    def _shared_operand(self, instruction: Instruction) -> int | None:
        """The operand whose buffer an in-place instruction writes into."""
        if instruction.opcode in _IN_PLACE:
            return 0
        if instruction.opcode not in ("fusion", "fusion-start") or (
            instruction.is_tuple and (instruction.opcode == "fusion")
        ):
            return None
        inside = self.module.computation(instruction.called[0])
        root = inside.root
        while root.opcode in _VIEWS:
            root = inside.by_name[root.operands[0]]
        if root.opcode != "dynamic-update-slice":
            return None
        base = inside.by_name[root.operands[0]]
        while base.opcode in (*_VIEWS, "copy"):
            base = inside.by_name[base.operands[0]]
        return int(base.argument_text) if base.opcode == "parameter" else None

    def _inside(self, instruction: Instruction, carry: Leaves) -> int:
        """The most bytes that a loop's body or a call needs beyond its carry."""
        inner = _Walk(self.module)
        name = instruction.called[-1] if instruction.opcode == "call" else _body(instruction)
        body = self.module.computation(name)
        leaves = inner.run(body, [frozenset()] * max(len(carry), 1))
        for owners in leaves:  # the next carry is written into the carry's own buffer
            for owner in owners:
                inner.size_bytes[owner] = 0
        return inner.finish(body, 0).peak_bytes

    def _keep_sources_until_done(self, computation: Computation, env: Mapping[str, Leaves]) -> None:
        """An asynchronous instruction reads its operands until it is done."""
        for index, instruction in enumerate(computation.instructions):
            if instruction.opcode.endswith("-done"):
                start = computation.by_name[instruction.operands[0]]
                for name in start.operands:
                    for owner in frozenset().union(*env[name]):
                        self.last[owner] = max(self.last[owner], index)

    def finish(self, computation: Computation, base_bytes: int) -> MemoryCurve:
        """The curve of what was walked."""
        count = len(computation.instructions)
        self._take_over_dying_operands()
        delta = np.zeros(count + 2, np.int64)
        sizes = np.asarray(self.size_bytes, np.int64)
        np.add.at(delta, np.asarray(self.first, np.int64), sizes)
        np.add.at(delta, np.asarray(self.last, np.int64) + 1, -sizes)
        bytes_at = np.cumsum(delta)[:count] + base_bytes
        for index, extra in self.extra.items():
            bytes_at[index] += extra
        buffers = tuple(
            Buffer(
                name=maker.name,
                op_name=self.module.named(maker).op_name,
                size_bytes=size,
                first=first,
                last=last,
            )
            for maker, size, first, last in zip(
                self.maker, self.size_bytes, self.first, self.last, strict=True
            )
            if size
        )
        names = tuple(i.name for i in computation.instructions)
        return MemoryCurve(bytes_at=bytes_at, base_bytes=base_bytes, buffers=buffers, names=names)

    def _take_over_dying_operands(self) -> None:
        """A fused result may be written over an operand of its size that is read last there."""
        taken: set[int] = set()
        for operand, result in self.can_take:
            if (
                self.last[operand] == self.first[result] > self.first[operand]
                and self.size_bytes[operand] == self.size_bytes[result]
                and not {operand, ~result} & taken
            ):
                self.last[operand] -= 1
                taken |= {operand, ~result}


def _result_arrays(instruction: Instruction, module: Module) -> Sequence[Array]:
    """The arrays that an instruction makes: an asynchronous one carries its operands too."""
    if instruction.opcode == "copy-start":
        return instruction.arrays[:1]
    if instruction.opcode in ("fusion-start", "async-start"):
        return module.computation(instruction.called[0]).root.arrays
    return instruction.arrays


def _is_read_in_place(inside: Computation, position: int) -> bool:
    """Whether a fusion reads an operand element by element, and reduces it at most once."""
    reached: set[str] = set()
    num_reductions = 0
    for instruction in inside.instructions:
        if instruction.opcode == "parameter":
            if int(instruction.argument_text) == position:
                reached.add(instruction.name)
        elif reached.intersection(instruction.operands):
            if instruction.opcode in _ELSEWHERE:
                return False
            num_reductions += instruction.opcode == "reduce"
            reached.add(instruction.name)
    return num_reductions <= 1


def _body(instruction: Instruction) -> str:
    return (instruction.attribute("body") or "").removeprefix("%")
