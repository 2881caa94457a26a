"""Text: how does a program read in a terminal, and in a diff?

Input: a `Program`. Output: text, one line per op, then one per candidate, then the refusals.
"""

from jaxswap._units import format_bytes
from jaxswap.program.ir import Program


def format_program(program: Program) -> str:
    """Writes a program out."""
    lines = [f"{len(program.ops)} ops, base {format_bytes(program.base_bytes)}"]
    for index, op in enumerate(program.ops):
        reads = " ".join(program.values[v].name for v in op.reads)
        writes = " ".join(
            f"{program.values[v].name}:{program.values[v].dtype}{list(program.values[v].shape)}"
            for v in op.writes
        )
        where = f" loop {op.loop} ×{op.trips}" if op.loop is not None else ""
        lines.append(f"{index:5} {op.phase:8} {op.name}{where}: {reads} → {writes}  {op.label}")
    for candidate in program.candidates:
        value = program.values[candidate.value]
        lines.append(f"candidate {value.name} {value.size_bytes} ×{value.trips}")
    lines += [f"refused {name}: {reason}" for name, reason in program.refused.items()]
    return "\n".join(lines) + "\n"
