"""HLO text: what did the compiler decide to run, in which order?

Input: the text of a scheduled XLA module. Output: a `Module` of computations whose
instructions stand in the order of the schedule.
Computations are parsed when they are first asked for: most of a module's text is the
inside of fusions, and only the distinct ones are ever looked into.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from jaxswap.verify.frames import parse_frames

# XLA:GPU's memory space for pinned host memory, as written in a layout: `{1,0:S(5)}`.
_HOST_SPACE = "S(5)"
_ITEM_BITS = {
    "pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16,
    "s32": 32, "u32": 32, "s64": 64, "u64": 64, "bf16": 16, "f16": 16, "f32": 32, "f64": 64,
    "c64": 64, "c128": 128, "f4e2m1fn": 4, "f8e3m4": 8, "f8e4m3": 8, "f8e4m3b11fnuz": 8,
    "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0fnu": 8,
}  # fmt: skip
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=\s]*)\](\{[^{}]*\})?")
_HEADER = re.compile(r"^(ENTRY )?%([^\s(]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^ {2,}(ROOT )?%(\S+) = (.*)$")
_OPCODE = re.compile(r" ?([a-z][\w\-]*)\(")
_REFERENCE = re.compile(r"%([^\s,(){}]+)")
_CALLED = re.compile(
    r"(?:calls|body|condition|to_apply|select|scatter|branch_computations|called_computations"
    r"|true_computation|false_computation)=(\{[^{}]*\}|%[^\s,]+)"
)
_METADATA = re.compile(r', metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_OP_NAME = re.compile(r'metadata=\{[^{}]*?op_name="((?:[^"\\]|\\.)*)"')
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_FRAME_ID = re.compile(r"stack_frame_id=(\d+)")
_ALIAS = re.compile(r"\{(\d*)\}: \((\d+), \{[\d, ]*\}")


@dataclass(frozen=True, slots=True)
class Array:
    """One array of an instruction's result."""

    dtype: str
    dims: tuple[int, ...]
    is_on_host: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of the array, packed."""
        return (math.prod(self.dims) * _ITEM_BITS.get(self.dtype, 0) + 7) // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction: its result's arrays (a tuple's in order), its operands and attributes."""

    name: str
    type_text: str
    opcode: str
    operands: tuple[str, ...]
    argument_text: str
    attributes: str
    is_root: bool

    @property
    def is_tuple(self) -> bool:
        """Whether the result is a tuple."""
        return self.type_text.startswith("(")

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of the result; a tuple's in order, nested ones flattened."""
        return parse_arrays(self.type_text)

    @property
    def called(self) -> tuple[str, ...]:
        """The names of the computations that this instruction calls."""
        groups = _CALLED.findall(self.attributes)
        return tuple(name for group in groups for name in _REFERENCE.findall(group))

    @property
    def op_name(self) -> str:
        """The JAX name stack of the op that this came from, or ''."""
        match = _OP_NAME.search(self.attributes)
        return match[1].replace("\\'", "'") if match else ""

    @property
    def trip_count(self) -> int | None:
        """How often a `while` runs its body, where the compiler knows it."""
        match = _TRIP_COUNT.search(self.attributes)
        return int(match[1]) if match else None

    def attribute(self, name: str) -> str | None:
        """The text of one attribute, such as `index` or `dim_labels`."""
        match = re.search(rf"\b{name}=(\{{[^{{}}]*\}}|[^,\s]+)", self.attributes)
        return match[1] if match else None


@dataclass(frozen=True, slots=True)
class Computation:
    """Instructions in the order they run."""

    name: str
    instructions: tuple[Instruction, ...]
    by_name: Mapping[str, Instruction]

    @property
    def root(self) -> Instruction:
        """The instruction whose result is the computation's result."""
        return next(i for i in reversed(self.instructions) if i.is_root)


@dataclass(frozen=True, kw_only=True)
class Module:
    """A scheduled module. `blocks` holds each computation's text by name."""

    entry_name: str
    header: str
    blocks: Mapping[str, str]
    tables: str
    _parsed: dict[str, Computation] = field(default_factory=dict, repr=False)

    def computation(self, name: str) -> Computation:
        """One computation, parsed on first use."""
        if name not in self._parsed:
            self._parsed[name] = parse_computation(name, self.blocks[name])
        return self._parsed[name]

    @property
    def entry(self) -> Computation:
        """The computation that the step is."""
        return self.computation(self.entry_name)

    @cached_property
    def aliased_outputs(self) -> Mapping[int, int]:
        """Which outputs are written into a donated argument: output index → parameter number."""
        start = self.header.find("input_output_alias={")
        if start < 0:
            return {}
        text = self.header[start : self.header.find(" }", start)]
        return {int(out or 0): int(parameter) for out, parameter in _ALIAS.findall(text)}

    @cached_property
    def _source_of_frame(self) -> Mapping[int, str]:
        return parse_frames(self.tables)

    def named(self, instruction: Instruction) -> Instruction:
        """The instruction that tells where this one came from.

        Of a fusion without a name, or with that of a barrier that only orders the step, it is
        the last one inside that has a name and a line of the user's code, or else a name.
        """
        if "fusion" not in instruction.opcode or self._is_told(instruction):
            return instruction
        inside = reversed(self.computation(instruction.called[0]).instructions)
        known = [each for each in (instruction, *inside) if each.op_name]
        return next(filter(self._is_told, known), known[0] if known else instruction)

    def _is_told(self, instruction: Instruction) -> bool:
        """Whether an instruction has a name, and its frame, if it has one, leads to the user."""
        frame = _FRAME_ID.search(instruction.attributes)
        is_own = frame is not None and self._source_of_frame.get(int(frame[1])) == ""
        return bool(instruction.op_name) and not is_own

    def source_of(self, instruction: Instruction) -> str:
        """`file.py:line` of the innermost user frame that made this instruction, or ''."""
        match = _FRAME_ID.search(self.named(instruction).attributes)
        return self._source_of_frame.get(int(match[1]), "") if match else ""


def parse_module(text: str) -> Module:
    """Splits a module's text into computations, without parsing them yet."""
    blocks: dict[str, str] = {}
    entry_name = ""
    tables: list[str] = []
    for chunk in _split_blocks(text):
        match = _HEADER.match(chunk.split("\n", 1)[0])
        if match is None:
            tables.append(chunk)
            continue
        blocks[match[2]] = chunk
        if match[1]:
            entry_name = match[2]
    if not entry_name:
        raise ValueError("this is not the text of an HLO module: it has no ENTRY computation")
    header = text[: text.find("\n")]
    return Module(entry_name=entry_name, header=header, blocks=blocks, tables="\n".join(tables))


def _split_blocks(text: str) -> Iterator[str]:
    """Computations end with a line `}`; tables end with an empty line."""
    for piece in text.split("\n\n"):
        if stripped := piece.strip("\n"):
            yield stripped


def parse_computation(name: str, text: str) -> Computation:
    """Parses every instruction of one computation's text."""
    found = tuple(i for line in text.split("\n") if (i := parse_instruction(line)))
    return Computation(name, found, {i.name: i for i in found})


def parse_instruction(line: str) -> Instruction | None:
    """Parses `  %name = type opcode(operands), attributes`; None for any other line."""
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    rest = match[3]
    type_end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ")
    opcode = _OPCODE.match(rest, type_end)
    if opcode is None:
        return None
    end = _closing(rest, opcode.end() - 1)
    arguments = rest[opcode.end() : end - 1]
    return Instruction(
        name=match[2],
        type_text=rest[:type_end],
        opcode=opcode[1],
        operands=() if opcode[1] == "constant" else tuple(_REFERENCE.findall(arguments)),
        argument_text=arguments,
        attributes=rest[end:],
        is_root=match[1] is not None,
    )


def _closing(text: str, start: int) -> int:
    """The position after the parenthesis that closes the one at `start`."""
    depth = 0
    for match in re.finditer(r"[()]", text[start:]):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return start + match.end()
    return len(text)


@lru_cache(maxsize=2**16)  # a module has few distinct types
def parse_arrays(type_text: str) -> tuple[Array, ...]:
    """The arrays of a type, in order; tokens and opaque types have no bytes and are kept."""
    return tuple(
        Array(
            dtype=dtype,
            dims=tuple(int(d.strip("<= ")) for d in dims.split(",") if d.strip()),
            is_on_host=_HOST_SPACE in layout,
        )
        for dtype, dims, layout in _ARRAY.findall(type_text)
    )


def strip_metadata(text: str) -> str:
    """The same text without names and source positions."""
    return _METADATA.sub("", text)
