"""Order: how is XLA kept from moving what was put in its place?

Input: a served program (`demand.py`): gates, copies to the host and reloads in it. Output:
the same program with its heavy ops (matrix products, convolutions, loops, kernels) chained
in program order by `optimization_barrier`.

The ties are all at heavy ops and reductions, because what these read and write is in memory
anyway; a barrier between two elementwise ops would keep them from being fused:
*order*: a heavy op waits for the one before it, unless it reads its result anyway, and for
the reductions before it (a loss, a bias gradient), which XLA puts off otherwise, and with
them the end of what they reduce;
*release*: it also waits for the copies to the host whose window ends with it;
*gate*: what a recomputation or a reload starts from waits for the heavy op before it.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from jaxswap import _compat
from jaxswap.apply import jaxprs
from jaxswap.apply.heavy import is_heavy
from jaxswap.apply.jaxprs import Atom, Env, Eqn, Var, jx
from jaxswap.apply.program import Ledger

_SPREADERS = ("broadcast_in_dim", "iota")
_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "scatter-add",
               "scatter_add", "argmax", "argmin")  # fmt: skip


def pin_order(closed: Any, ledger: Ledger, *, is_body: bool = False) -> Any:
    """Chains the heavy ops of a program, and of the loop bodies that were rewritten."""
    jaxpr = closed.jaxpr
    recurse = lambda body: pin_order(body, ledger, is_body=True)
    eqns = [
        jaxprs.map_bodies(e, recurse) if any(map(_is_served, jaxprs.bodies(e))) else e
        for e in jaxpr.eqns
    ]
    pinner = _Pinner(jaxpr, eqns, ledger, is_body)
    eqns, outvars = pinner.run()
    return jx.ClosedJaxpr(jaxprs.with_equations(jaxpr, eqns, outvars=outvars), closed.consts)


def _is_served(jaxpr: Any) -> bool:
    return jaxprs.any_equation(jaxpr, lambda e: _is_gate(e) or _is_offload(e))


def _is_gate(eqn: Eqn) -> bool:
    return eqn.primitive is jx.optimization_barrier_p and len(eqn.invars) == 1


def _is_offload(eqn: Eqn) -> bool:
    is_copy = eqn.primitive is jx.device_put_p and len(eqn.outvars) == 1
    return is_copy and _compat.is_on_host(eqn.outvars[0].aval)


class _Pinner:
    """Emits a program again, with barriers around its heavy ops.

    A *segment* is what lies between two heavy ops; segment `i` precedes heavy op `i`.
    """

    def __init__(self, jaxpr: Any, eqns: Sequence[Eqn], ledger: Ledger, is_body: bool):
        self.ledger = ledger
        self.is_body = is_body
        self.heavy = [is_heavy(e, ledger.min_heavy_bytes) for e in eqns]
        self.eqns = eqns
        self.outvars = jaxpr.outvars
        self.arguments = {*jaxpr.constvars, *jaxpr.invars}
        spread = {v for e in eqns if e.primitive.name in _SPREADERS for v in e.outvars}
        self.poor_carriers = self.arguments | spread  # not in memory, or not ours
        self.uses = Counter(v for e in eqns for v in jaxprs.variables(e.invars))
        self.uses.update(jaxprs.variables(jaxpr.outvars))
        self.env: Env = {}
        self.out: list[Eqn] = []
        self.depth: dict[Var, int] = {}  # the last heavy op a variable depends on
        self.recent: list[Var] = []  # what depends on the last heavy op
        self.reduced: set[Var] = set()  # results of reductions, and what is made of only them
        self.unread: list[Var] = []  # those of them made since the last heavy op
        self.pending: list[tuple[int, Var]] = []  # copies under way, and the op they precede

    def run(self) -> tuple[list[Eqn], list[Atom]]:
        gates, moved = self._plan_segments()
        self._open_segment(0, None, gates, moved)
        segment = 0
        skip = {id(e) for group in (*gates.values(), *moved.values()) for e in group}
        for eqn, is_heavy_op in zip(self.eqns, self.heavy, strict=True):
            if id(eqn) in skip:
                continue
            if is_heavy_op:
                self._tie_order(eqn, segment)
            if eqn.outvars and eqn.outvars[0] in self.ledger.late_gates:
                self._tie_late(eqn)
                continue
            self._emit(eqn, segment if is_heavy_op else None)
            if _is_offload(eqn):
                self._await_copy(eqn.outvars[0], segment)
            if is_heavy_op:
                segment += 1
                self._open_segment(segment, eqn, gates, moved)
        return self.out, [jaxprs.read(self.env, v) for v in self.outvars]

    def _plan_segments(self) -> tuple[dict[int, list[Eqn]], dict[int, list[Eqn]]]:
        """Which gates and which reloads open each segment; a reload may move ahead.

        What is made within a segment cannot be gated where the segment opens: such a gate
        stays where it is, and so does the reload behind it.
        """
        gates: dict[int, list[Eqn]] = defaultdict(list)
        moved: dict[int, list[Eqn]] = defaultdict(list)
        made_in: dict[Var, int] = {}
        gate_of: dict[Var, tuple[int, Eqn]] = {}
        segment = 0
        for eqn, is_heavy_op in zip(self.eqns, self.heavy, strict=True):
            if _is_gate(eqn) and eqn.outvars[0] not in self.ledger.late_gates:
                gate_of[eqn.outvars[0]] = (segment, eqn)
            elif eqn.outvars and eqn.outvars[0] in self.ledger.reloads:
                decision = self.ledger.reloads[eqn.outvars[0]]
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

    def _open_segment(self, segment, heavy_eqn, gates, moved) -> None:
        group = gates.get(segment, [])
        sources = [jaxprs.read(self.env, g.invars[0]) for g in group]
        self.uses.subtract(v for g in group for v in jaxprs.variables(g.invars))
        anchor = self._choose_anchor(heavy_eqn)
        if anchor is not None and group:
            *fresh, self.env[anchor] = self._barrier(*sources, jaxprs.read(self.env, anchor))
        else:
            fresh = [self._barrier(s)[0] for s in sources]
        for gate, new in zip(group, fresh, strict=True):
            # Whoever reads it later reads it from here too: of a donated argument with two
            # readers, one on each side of a barrier, XLA makes a copy.
            self.env.update(dict.fromkeys(jaxprs.variables(gate.invars), new))
            self.env[gate.outvars[0]] = new
            self.depth[gate.outvars[0]] = segment - 1
        for eqn in moved.get(segment, []):
            self._emit(eqn, None)

    def _tie_late(self, gate: Eqn) -> None:
        """Makes what a heavy op's input is recomputed from wait for the op's gradient."""
        (source,), (gated,) = gate.invars, gate.outvars
        carrier = self.ledger.late_gates[gated]
        self.uses.subtract([source])
        tied = [source, carrier]
        new, self.env[carrier] = self._barrier(*(jaxprs.read(self.env, v) for v in tied))
        self.env[gated] = new
        self.env[source] = new

    def _choose_anchor(self, eqn: Eqn | None) -> Var | None:
        """The largest result of a heavy op that is still to be read on the device."""
        if eqn is None:
            return None
        alive = [
            v
            for v in eqn.outvars
            if self.uses[v] and jaxprs.size_bytes(v.aval) and not _compat.is_on_host(v.aval)
        ]
        return max(alive, key=lambda v: jaxprs.size_bytes(v.aval), default=None)

    def _tie_order(self, eqn: Eqn, segment: int) -> None:
        """Makes a heavy op wait for the one before it and for the copies that are due."""
        wait = [v for at, v in self.pending if at <= segment and self.uses[v]]
        self.pending = [(at, v) for at, v in self.pending if at > segment]
        inputs = [v for v in jaxprs.variables(eqn.invars) if not _compat.is_on_host(v.aval)]
        if not any(self.depth.get(v, -1) == segment - 1 for v in inputs):
            wait += self._last_result()
        wait += [v for v in self.unread if self.uses[v] and v not in wait]
        self.unread = []
        key = lambda v: (v not in self.poor_carriers, jaxprs.size_bytes(v.aval))
        carrier = max(inputs, key=key, default=None)
        wait = [v for v in wait if v is not carrier]
        if wait and carrier is not None:
            tied = [*wait, carrier]
            new = self._barrier(*(jaxprs.read(self.env, v) for v in tied))
            self.env.update(zip(tied, new, strict=True))

    def _last_result(self) -> list[Var]:
        """One variable, still to be read, that depends on the last heavy op."""
        alive = [v for v in self.recent if self.uses[v] and jaxprs.size_bytes(v.aval)]
        return alive[:1]

    def _barrier(self, *operands: Atom) -> list[Var]:
        """Ties operands together: those, inside `shard_map`, that differ along the same axes."""
        groups: dict[frozenset, list[int]] = defaultdict(list)
        for i, v in enumerate(operands):
            groups[_compat.varying_axes(v.aval)].append(i)
        outvars = [jx.Var(v.aval) for v in operands]
        for group in groups.values():
            ins, outs = [operands[i] for i in group], [outvars[i] for i in group]
            self.out.append(jx.new_eqn(ins, outs, jx.optimization_barrier_p, {}, set()))
        return outvars

    # The program, equation by equation.

    def _await_copy(self, host: Var, segment: int) -> None:
        if self.is_body:
            return
        decision = self.ledger.copies.get(host)
        if decision is not None:
            self.pending.append((segment + decision.window_ops - 1, host))

    def _emit(self, eqn: Eqn, heavy_index: int | None) -> None:
        inputs = jaxprs.variables(eqn.invars)
        self.uses.subtract(inputs)
        depth = max((self.depth.get(v, -1) for v in inputs), default=-1)
        self.out.append(jaxprs.substitute(eqn, self.env))
        if heavy_index is not None:
            depth, self.recent = heavy_index, []
        last = heavy_index if heavy_index is not None else self._last_heavy
        for v in eqn.outvars:
            self.depth[v] = depth
            if depth == last and depth >= 0 and not _compat.is_on_host(v.aval):
                self.recent.append(v)
        self._last_heavy = last
        self._note_reduction(eqn, inputs)

    def _note_reduction(self, eqn: Eqn, inputs: Sequence[Var]) -> None:
        computed = [v for v in inputs if v not in self.arguments]
        is_reduction = eqn.primitive.name in _REDUCTIONS
        if is_reduction or (computed and all(v in self.reduced for v in computed)):
            self.reduced.update(eqn.outvars)
            fits = lambda v: 0 < jaxprs.size_bytes(v.aval) <= self._largest_input(inputs)
            self.unread += [v for v in eqn.outvars if fits(v)]

    @staticmethod
    def _largest_input(inputs: Sequence[Var]) -> int:
        return max((jaxprs.size_bytes(v.aval) for v in inputs), default=0)

    _last_heavy = -1
