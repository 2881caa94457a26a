"""Text: how does a program read in a terminal, and in a diff?

Input: a `Program`. Output: text, one line per op in the order they run, then the candidates,
then what was refused. Nothing in it depends on the machine or on where the source lies.
"""

from jaxswap._units import format_bytes
from jaxswap.program.ir import Candidate, Op, Program, Value


def format_program(program: Program) -> str:
    """Writes a program out.

    Example:
        >>> print(format_program(Program(ops=(), values=(), candidates=(), base_bytes=8)), end="")
        program of 0 ops, 0 values and 0 candidates; 8 B of arguments and outputs
    """
    lines = [
        f"program of {len(program.ops)} ops, {len(program.values)} values and "
        f"{len(program.candidates)} candidates; {format_bytes(program.base_bytes)} of arguments "
        "and outputs"
    ]
    lines += [_format_op(program, op) for op in program.ops]
    lines += [_format_candidate(program, candidate) for candidate in program.candidates]
    lines += [f"refused {name}: {reason}" for name, reason in program.refused.items()]
    return "\n".join(lines) + "\n"


def _format_op(program: Program, op: Op) -> str:
    reads = ", ".join(program.values[v].name for v in op.reads)
    writes = ", ".join(_format_value(program.values[v]) for v in op.writes)
    depth = 0
    loop = op.loop
    while loop is not None:
        depth, loop = depth + 1, program.loops[loop].parent
    trips = f" ×{op.trips}" if op.trips > 1 else ""
    mark = "!" if op.is_heavy else " "
    where = f"  # {op.label}" if op.label else ""
    return f"{'    ' * depth}{op.phase:8} {mark}{op.name}{trips}({reads}) → {writes}{where}"


def _format_value(value: Value) -> str:
    dims = ",".join(map(str, value.shape))
    stacked = f"×{value.trips}" if value.is_stacked else ""
    return f"{value.name}: {value.dtype}[{dims}]{stacked}"


def _format_candidate(program: Program, candidate: Candidate) -> str:
    value = program.values[candidate.value]
    parents = [program.values[program.candidates[p].value].name for p in candidate.parents]
    can = ["offload"] if candidate.can_offload else []
    if candidate.recompute is not None:
        kernels = f"{len(candidate.recompute)} kernels"
        can.append(f"recompute with {kernels} from {', '.join(parents) or 'arguments'}")
    size = format_bytes(value.size_bytes * value.trips)
    return f"candidate {_format_value(value)}, {size}, like {candidate.repeat}: {'; '.join(can)}"
