"""Segments: what happens between which two heavy ops?

Input: a served program's equations, and which of them are heavy. Output: the gates and reloads
that open each segment, when copies to the host start, and which heavy op reads which.
A *segment* is what lies between two heavy ops; segment `i` precedes heavy op `i`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from jaxswap.apply import jaxprs
from jaxswap.apply.jaxprs import Eqn, Var, jx
from jaxswap.apply.pin import is_barrier
from jaxswap.apply.program import Ledger

_IN_FLIGHT = 2  # copies that XLA's latency-hiding scheduler has under way at a time


def is_gate(eqn: Eqn) -> bool:
    """Whether an equation is a gate: a barrier of one value."""
    return is_barrier(eqn) and len(eqn.invars) == 1


def plan_segments(
    eqns: Sequence[Eqn], heavy: Sequence[bool], ledger: Ledger
) -> tuple[dict[int, list[Eqn]], dict[int, list[Eqn]]]:
    """Which gates and which reloads open each segment; a reload may move ahead.

    What is made within a segment cannot be gated where the segment opens: such a gate
    stays where it is, and so does the reload behind it.
    """
    gates: dict[int, list[Eqn]] = defaultdict(list)
    moved: dict[int, list[Eqn]] = defaultdict(list)
    made_in: dict[Var, int] = {}
    gate_of: dict[Var, tuple[int, Eqn]] = {}
    segment = 0
    for eqn, is_heavy_op in zip(eqns, heavy, strict=True):
        if is_gate(eqn) and eqn.outvars[0] not in ledger.late_gates:
            gate_of[eqn.outvars[0]] = (segment, eqn)
        elif eqn.outvars and eqn.outvars[0] in ledger.reloads:
            decision = ledger.reloads[eqn.outvars[0]]
            at, gate = gate_of.pop(eqn.invars[0], (segment, None))
            made = segment if gate is None else made_in.get(gate.invars[0], -1)
            earliest = made + decision.window_ops
            target = min(at, max(at - decision.reload_ahead_ops, earliest))
            if made < target:
                gates[target].append(gate)
                moved[target].append(eqn)
        made_in.update((v, segment) for v in eqn.outvars)
        segment += is_heavy_op
    for at, gate in gate_of.values():
        (source,) = gate.invars
        if isinstance(source, jx.Literal) or made_in.get(source, -1) < at:
            gates[at].append(gate)
    return gates, moved


def queue_offloads(
    eqns: Sequence[Eqn], heavy: Sequence[bool], ledger: Ledger
) -> dict[Var, tuple[int, int]]:
    """For each copy to the host, the segment it starts in and the one it is over by.

    XLA starts a copy as early as it may. For one more than it has under way at a time it waits
    for the first of these, long before that one's window ends: such a copy starts later, but
    before anything reads what it copies. (Where loops have copies it may have more: `overlap.py`.)
    """
    read_in = _find_first_reads(eqns, heavy)
    spans: dict[Var, tuple[int, int]] = {}
    segment = 0
    for eqn, is_heavy_op in zip(eqns, heavy, strict=True):
        for host in [v for v in eqn.outvars if v in ledger.copies]:
            end = segment + ledger.copies[host].window_ops - 1
            latest = min(end, read_in.get(host, segment))
            free = (t for t in range(segment, latest) if _count(spans, t) < _IN_FLIGHT)
            spans[host] = (next(free, segment), end)
        segment += is_heavy_op
    return spans


def _find_first_reads(eqns: Sequence[Eqn], heavy: Sequence[bool]) -> dict[Var, int]:
    """The segment in which each variable is read first."""
    found: dict[Var, int] = {}
    segment = 0
    for eqn, is_heavy_op in zip(eqns, heavy, strict=True):
        for v in jaxprs.variables(eqn.invars):
            found.setdefault(v, segment)
        segment += is_heavy_op
    return found


def _count(spans: Mapping[Var, tuple[int, int]], segment: int) -> int:
    """How many copies are under way at the end of a segment."""
    return sum(start <= segment < end for start, end in spans.values())


def find_readers(eqns: Sequence[Eqn], heavy: Sequence[bool]) -> dict[int, int]:
    """For each heavy op, the next one that reads something made of its result."""
    found: dict[int, int] = {}
    made_of: dict[Var, frozenset[int]] = {}
    segment = 0
    for eqn, is_heavy_op in zip(eqns, heavy, strict=True):
        reached = [made_of[v] for v in jaxprs.variables(eqn.invars) if v in made_of]
        ops = frozenset().union(*reached)
        if is_heavy_op:
            for op in ops:
                found.setdefault(op, segment)
            ops = frozenset([segment])
            segment += 1
        if ops:
            made_of.update((v, ops) for v in eqn.outvars)
    return found
