"""Lean: what is a step spared whose loops stack nothing?

Input: a `Program`, the seconds of its ops and of making each candidate again, and those of the
step that makes all of them again (`Program.lean`). Output: seconds per candidate.
Taken for itself, to make a stacked value again takes what its kernels take. All of them together
take far less: no stack is set to zero first, and XLA fuses what would have to be written. The
first goes by bytes. The second is the rest of the difference, and goes by what the kernels read
and write that could be fused: all but matrix products.
"""

from collections.abc import Mapping, Sequence

from jaxswap.model.work import find_spared
from jaxswap.program.ir import Program

_FILL = "fill"  # what `program/enter.py` calls the op that sets stacks to zero


def share_lean(
    program: Program,
    op_s: Sequence[float],
    again: Sequence[Mapping[int, float] | None],
    lean_s: float,
) -> list[float]:
    """What the step is spared besides if a candidate is made again, for each.

    Args:
        program: the step.
        op_s: seconds of each op.
        again: seconds of the ops that make each candidate again; None where none can.
        lean_s: seconds of the step that makes all of them again.
    """
    shares = [0.0] * len(program.candidates)
    stacked = [
        k
        for k, candidate in enumerate(program.candidates)
        if again[k] is not None and program.values[candidate.value].is_stacked
    ]
    if not program.lean or not stacked:
        return shares
    sizes = {k: _stacked_bytes(program, k) for k in stacked}
    fills = [k for k, op in enumerate(program.ops) if op.name == _FILL]
    fill_s = sum(op_s[op] for op in fills)
    fill_bytes = sum(program.ops[op].cost.size_bytes * program.ops[op].trips for op in fills)
    outside_s = sum(s for op, s in zip(program.ops, op_s, strict=True) if op.loop is None)
    left_s = max(_expect_s(program, op_s, again) - max(lean_s, outside_s), 0.0)
    for k in stacked:
        shares[k] = min(fill_s, left_s) * sizes[k] / max(fill_bytes, sizes[k])
    left_s -= sum(shares)
    weights = {k: _fusible_bytes(program, k) for k in stacked}
    weights = weights if any(weights.values()) else sizes
    total = sum(weights.values())
    for k in stacked:
        shares[k] += left_s * weights[k] / total if total else 0.0
    return shares


def _expect_s(
    program: Program, op_s: Sequence[float], again: Sequence[Mapping[int, float] | None]
) -> float:
    """Seconds of the step that makes all candidates again, if nothing were fused for it."""
    twice: dict[int, float] = {}
    spared_s = 0.0
    for candidate, seconds in zip(program.candidates, again, strict=True):
        if seconds is not None:
            twice |= {op: max(s, twice.get(op, 0.0)) for op, s in seconds.items()}
            spared_s += sum(op_s[op] for op in find_spared(program, candidate))
    return sum(op_s) + sum(twice.values()) - spared_s


def _stacked_bytes(program: Program, k: int) -> int:
    value = program.values[program.candidates[k].value]
    return value.size_bytes * value.trips


def _fusible_bytes(program: Program, k: int) -> float:
    candidate = program.candidates[k]
    trips = program.values[candidate.value].trips
    kernels = [cost for cost in candidate.recompute or () if not cost.matrix_flops]
    return trips * sum(cost.size_bytes for cost in kernels)
