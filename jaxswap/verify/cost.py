"""Cost: how much work is one instruction of the compiled module?

Input: a `Module` and one of its instructions. Output: a `KernelCost`.
XLA's own cost analysis is asked about each distinct kernel: it knows a fusion's bytes at its
edge and that a slice is only a slice. Library calls, which it cannot see into, are asked
about as the `dot` or `convolution` they stand for.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from jaxswap import _compat
from jaxswap.model.kernel import KernelCost, KernelKind
from jaxswap.verify.hlo import Computation, Instruction, Module, parse_arrays, strip_metadata

_CUBLAS = re.compile(r'custom_call_target="__cublas\$')
_CUDNN_CONV = re.compile(r'custom_call_target="__cudnn\$conv(\w+)"')
_DEDUPLICATED = re.compile(r'deduplicated_name="([^"]*)"')
_SUFFIX = re.compile(r"\.\d+")
_BACKEND_CONFIG = re.compile(r", backend_config=\{.*\}(?=,|$)", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrix:
    kind: KernelKind
    dtype: str
    is_exact: bool
    flops: float


class KernelCosts:
    """Costs of one module's kernels, each distinct kernel asked about once."""

    def __init__(self, module: Module):
        self._module = module
        self._by_key: dict[str, KernelCost] = {}

    def of(self, instruction: Instruction, computation: Computation) -> KernelCost:
        """The cost of one instruction of `computation`."""
        key = self._key(instruction, computation)
        if key not in self._by_key:
            self._by_key[key] = self._ask(instruction, computation)
        return self._by_key[key]

    def _key(self, instruction: Instruction, computation: Computation) -> str:
        """Equal for kernels of equal cost.

        XLA notes on a kernel which earlier one it is a copy of. Where it does not, the text
        without the numbers that make names unique tells: operations and shapes are the same.
        """
        match = _DEDUPLICATED.search(instruction.attributes)
        if match and instruction.called:
            return match[1]
        pieces = [
            instruction.type_text,
            instruction.opcode,
            *_operand_types(instruction, computation),
        ]
        blocks = [self._module.blocks[name] for name in instruction.called]
        attributes = strip_metadata(instruction.attributes)
        return _SUFFIX.sub("", "\n".join([*pieces, attributes, *map(strip_metadata, blocks)]))

    def _ask(self, instruction: Instruction, computation: Computation) -> KernelCost:
        types = _operand_types(instruction, computation)
        if match := _CUDNN_CONV.search(instruction.attributes):
            return _convolution_cost(instruction, types, match[1])
        if _CUBLAS.search(instruction.attributes):
            return _library_dot_cost(instruction, types)
        if instruction.opcode == "custom-call":
            return KernelCost(size_bytes=_edge_bytes(instruction, types))
        facts = _compat.analyse_cost(self._text_of(instruction, types))
        matrix = self._matrix_work(instruction, computation)
        return KernelCost(
            kind=matrix.kind,
            dtype=matrix.dtype,
            is_exact=matrix.is_exact,
            matrix_flops=matrix.flops,
            vector_flops=max(0.0, facts.get("flops", 0.0) - matrix.flops),
            transcendentals=facts.get("transcendentals", 0.0),
            size_bytes=facts.get("bytes accessed", 0.0),
        )

    def _text_of(self, instruction: Instruction, types: list[str]) -> str:
        """A module that runs this instruction alone."""
        called = self._called(instruction)
        blocks = [strip_metadata(self._module.blocks[name]) for name in called]
        if instruction.opcode == "fusion":
            types = list(types)
            blocks[-1] = _look_through_views(
                self._module.computation(called[-1]), blocks[-1], types
            )
        attributes = _BACKEND_CONFIG.sub("", strip_metadata(instruction.attributes))
        attributes = re.sub(r", control-predecessors=\{[^{}]*\}", "", attributes)
        attributes = re.sub(r", sharding=\{[^{}]*\}", "", attributes)
        opcode = instruction.opcode.removesuffix("-start")
        type_text = instruction.type_text
        if opcode != instruction.opcode:  # the result is in the middle of an async tuple
            type_text = self._module.computation(instruction.called[0]).root.type_text
        return _entry_text(blocks, types, f"{type_text} {opcode}", attributes)

    def _called(self, instruction: Instruction) -> list[str]:
        """All computations below an instruction, callees before callers."""
        ordered: dict[str, None] = {}

        def visit(name: str) -> None:
            for inner in self._module.computation(name).instructions:
                for callee in inner.called:
                    visit(callee)
            ordered.setdefault(name)

        for name in instruction.called:
            visit(name)
        return list(ordered)

    def _matrix_work(self, instruction: Instruction, computation: Computation) -> "_Matrix":
        """The dots and convolutions of a kernel; of several, the last one's kind and dtype."""
        total, dtype, is_exact = 0.0, "f32", False
        kind: KernelKind = "other"
        places: Iterable[tuple[Computation, Instruction]] = [(computation, instruction)]
        if instruction.called:
            inside = (self._module.computation(name) for name in self._called(instruction))
            places = ((c, i) for c in inside for i in c.instructions)
        for where, inner in places:
            if inner.opcode not in ("dot", "convolution", "scaled-dot"):
                continue
            types = _operand_types(inner, where)
            text = _entry_text(
                [], types, f"{inner.type_text} {inner.opcode}",
                _BACKEND_CONFIG.sub("", strip_metadata(inner.attributes)),
            )  # fmt: skip
            total += _compat.analyse_cost(text).get("flops", 0.0)
            kind = "conv" if inner.opcode == "convolution" else "dot"
            dtype = types[0].split("[")[0]
            is_exact = "highest" in (inner.attribute("operand_precision") or "")
        return _Matrix(kind=kind, dtype=dtype, is_exact=is_exact, flops=total)


def _look_through_views(fused: Computation, block: str, types: list[str]) -> str:
    """The text of a kernel that is given its operands as it views them; `types` learns how.

    XLA's analysis knows that a slice of an operand is only a slice, but not that of a `bitcast`
    of one, as which a loop mostly sees what it stacks.
    """
    readers: dict[str, list[Instruction]] = defaultdict(list)
    for inner in fused.instructions:
        for name in inner.operands:
            readers[name].append(inner)
    lines = block.splitlines()
    lines[0] = lines[0].split(" (")[0] + " {"  # the signature would have the old types
    for parameter in fused.instructions:
        read_by = readers[parameter.name]
        is_view = len(read_by) == 1 and read_by[0].opcode == "bitcast" and read_by[0] != fused.root
        if parameter.opcode != "parameter" or not is_view:
            continue
        (view,) = read_by
        number = int(parameter.argument_text)
        types[number] = view.type_text
        lines = [line for line in lines if not _defines(line, parameter.name)]
        lines = [
            f"  %{view.name} = {view.type_text} parameter({number})"
            if _defines(line, view.name)
            else line
            for line in lines
        ]
    return "\n".join(lines)


def _defines(line: str, name: str) -> bool:
    return line.strip().removeprefix("ROOT ").startswith(f"%{name} = ")


def _operand_types(instruction: Instruction, computation: Computation) -> list[str]:
    return [computation.by_name[name].type_text for name in instruction.operands]


def _edge_bytes(instruction: Instruction, types: list[str]) -> float:
    inputs = sum(a.size_bytes for t in types for a in parse_arrays(t))
    return float(inputs + sum(a.size_bytes for a in instruction.arrays))


def _entry_text(blocks: list[str], types: list[str], head: str, attributes: str) -> str:
    """The text of a module with one instruction, fed by parameters of the given types."""
    plain = [re.sub(r"/\*.*?\*/", "", t) for t in types]
    parameters = [f"  %arg{k} = {t} parameter({k})" for k, t in enumerate(plain)]
    names = ", ".join(f"%arg{k}" for k in range(len(types)))
    body = "\n".join([*parameters, f"  ROOT %kernel = {head}({names}){attributes}"])
    return "\n\n".join(["HloModule kernel", *blocks, f"ENTRY %entry {{\n{body}\n}}"])


def _convolution_cost(instruction: Instruction, types: list[str], direction: str) -> KernelCost:
    """A cuDNN call costs what the forward convolution of its shapes costs.

    Forward takes (input, filter), backward-input (output gradient, filter) and gives the
    input's, backward-filter (input, output gradient) and gives the filter's: all three are
    the same multiplications. Forward calls may carry a bias and an activation.
    """
    result = _first_type(instruction.type_text)
    image, kernel, output = types[0], types[1], result
    if direction == "BackwardInput":
        image, output = result, types[0]
    elif direction == "BackwardFilter":
        kernel, output = result, types[1]
    attributes = [
        f"{name}={text}"
        for name in ("window", "dim_labels", "feature_group_count", "batch_group_count")
        if (text := instruction.attribute(name))
    ]
    text = _entry_text([], [image, kernel], f"{output} convolution", ", " + ", ".join(attributes))
    return KernelCost(
        kind="conv",
        dtype=types[0].split("[")[0],
        matrix_flops=_compat.analyse_cost(text).get("flops", 0.0),
        size_bytes=_edge_bytes(instruction, types),
    )


def _library_dot_cost(instruction: Instruction, types: list[str]) -> KernelCost:
    """A cuBLAS call costs two flops per multiplication of its dot."""
    left = parse_arrays(types[0])[0]
    config = re.search(r'"dot_dimension_numbers":(\{.*?\})', instruction.attributes)
    numbers = json.loads(config[1]) if config else {}
    contracted = [int(d) for d in numbers.get("lhs_contracting_dimensions", [])]
    output = instruction.arrays[0]
    flops = 2.0 * math.prod(output.dims) * math.prod(left.dims[d] for d in contracted)
    return KernelCost(
        kind="dot",
        dtype=left.dtype,
        matrix_flops=flops,
        size_bytes=_edge_bytes(instruction, types),
    )


def _first_type(type_text: str) -> str:
    """The first array type of a tuple type's text."""
    match = re.search(r"[a-z]\w*\[[\d,]*\](\{[^{}]*\})?", type_text)
    return match[0] if match else type_text
