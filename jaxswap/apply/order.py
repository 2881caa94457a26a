"""Order: how is XLA kept from moving what was put in its place?

Input: a served program (`demand.py`): gates, copies to the host and reloads in it. Output:
the same program with its heavy ops (matrix products, convolutions, loops, kernels) chained
in program order by pins (`pin.py`).

The ties are all at heavy ops and reductions, because what these read and write is in memory
anyway; a barrier between two elementwise ops would keep them from being fused:
*order*: what reads a heavy op's result also waits for the heavy op before that one (a weight
gradient), and for the reductions before it (a loss, a bias gradient), which XLA puts off
otherwise, and with them the end of what they read;
*release*: a heavy op waits for the copies to the host whose window ends with it;
*gate*: what a recomputation or a reload starts from waits for the heavy op before it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from jaxswap import _compat
from jaxswap.apply import jaxprs
from jaxswap.apply.carriers import find_in_memory, find_source, is_cut_to_size
from jaxswap.apply.heavy import is_heavy
from jaxswap.apply.jaxprs import Atom, Env, Eqn, Var, jx
from jaxswap.apply.pin import is_barrier, new_pin, new_twin
from jaxswap.apply.program import Ledger
from jaxswap.apply.segments import find_readers, is_gate, plan_segments, queue_offloads

_SPREADERS = ("broadcast_in_dim", "iota")
_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "scatter-add",
               "scatter_add", "argmax", "argmin")  # fmt: skip

_SMALL_BYTES = 2**20
# Queries, keys and values are made by as many ops, and read together.
_SOON_OPS = 4


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
    return jaxprs.any_equation(jaxpr, lambda e: is_gate(e) or _is_offload(e))


def _is_offload(eqn: Eqn) -> bool:
    is_copy = eqn.primitive is jx.device_put_p and len(eqn.outvars) == 1
    return is_copy and _compat.is_on_host(eqn.outvars[0].aval)


def _on_device(atoms: Sequence[Atom]) -> list[Var]:
    return [v for v in jaxprs.variables(atoms) if not _compat.is_on_host(v.aval)]


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
        cut = {v for e in eqns if is_cut_to_size(e) for v in e.outvars}
        self.poor_carriers = self.arguments | spread | cut  # not ours, or not as such in memory
        self.uses = Counter(v for e in eqns for v in jaxprs.variables(e.invars))
        self.uses.update(jaxprs.variables(jaxpr.outvars))
        self.env: Env = {}
        self.out: list[Eqn] = []
        self.depth: dict[Var, int] = {}  # the last heavy op a variable depends on
        self.maker = {v: e for e in eqns for v in e.outvars}
        self.in_memory = find_in_memory(eqns, self.heavy, jaxpr.outvars, self._is_stored)
        self.first_reader = find_readers(eqns, self.heavy)
        self.new: set[Var] = set()  # what was made since the last heavy op
        self.recent: list[Var] = []  # what depends on the last heavy op
        self.reduced: dict[Var, frozenset[Var]] = {}  # what is made of reductions only: of which
        self.unread: list[Var] = []  # those of them made since the last heavy op
        self.last_heavy: Eqn | None = None
        self.heavy_before: Eqn | None = None  # before that one
        self.put_off: list[Var] = []  # what the last heavy op's result could not be tied to
        self.spans = {} if is_body else queue_offloads(eqns, self.heavy, ledger)
        self.pending: list[tuple[int, Var]] = []  # copies under way, and the op they precede
        self.queued: dict[int, list[Eqn]] = defaultdict(list)  # those that start later

    def run(self) -> tuple[list[Eqn], list[Atom]]:
        gates, moved = plan_segments(self.eqns, self.heavy, self.ledger)
        self._open_segment(0, gates, moved)
        segment = 0
        skip = {id(e) for group in (*gates.values(), *moved.values()) for e in group}
        for eqn, is_heavy_op in zip(self.eqns, self.heavy, strict=True):
            if id(eqn) in skip:
                continue
            late = self._tie_inputs(eqn, segment) if is_heavy_op else []
            if eqn.outvars and eqn.outvars[0] in self.ledger.late_gates:
                self._tie_late(eqn)
                continue
            if eqn.outvars and eqn.outvars[0] in self.spans:
                self._queue_copy(eqn, segment)
                continue
            self._emit(eqn, segment if is_heavy_op else None)
            if is_heavy_op:
                self._tie_results(late, eqn)
                segment += 1
                self.heavy_before, self.last_heavy = self.last_heavy, eqn
                self._open_segment(segment, gates, moved)
                for copy in self.queued.pop(segment, []):
                    self._start_copy(copy, is_late=True)
        assert not self.queued, "a copy to the host was never started"
        return self.out, [jaxprs.read(self.env, v) for v in self.outvars]

    def _open_segment(self, segment, gates, moved) -> None:
        group = gates.get(segment, [])
        sources = [jaxprs.read(self.env, g.invars[0]) for g in group]
        self.uses.subtract(v for g in group for v in jaxprs.variables(g.invars))
        anchor = self._choose_mark()
        if anchor is not None and jaxprs.variables(sources):  # a number by itself needs no turn
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

    def _choose_mark(self) -> Var | None:
        """What says that the last heavy op is over; where XLA cuts its result, the op before."""
        own = self._choose_anchor(self.last_heavy)
        if self.last_heavy is None or not is_cut_to_size(self.last_heavy):
            return own
        before = self._choose_anchor(self.heavy_before)
        return own if before is None else before

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

    def _tie_inputs(self, eqn: Eqn, segment: int) -> list[Var]:
        """Makes a heavy op wait for the copies that are due; returns what its readers await."""
        wait = [v for at, v in self.pending if at <= segment and self.uses[v]]
        self.pending = [(at, v) for at, v in self.pending if at > segment]
        late = self._find_late(eqn, segment)
        # A small op may be part of the kernel that reads it: no barrier between these.
        sizes = [jaxprs.size_bytes(v.aval) for v in eqn.outvars]
        if max(sizes, default=0) < _SMALL_BYTES:
            wait, late = wait + [v for v in late if v not in wait], []
        self._tie(wait, _on_device(eqn.invars))
        return late

    def _find_late(self, eqn: Eqn, segment: int) -> list[Var]:
        """What should be over by the end of a heavy op, though the op does not need it.

        The heavy op before it, unless one of the next reads that; and reductions.
        """
        inputs = _on_device(eqn.invars)
        wait, self.put_off = [v for v in self.put_off if self.uses[v]], []
        is_behind = any(self.depth.get(v, -1) == segment - 1 for v in inputs)
        if not is_behind and not self._is_joined_soon(segment - 1):
            wait = wait + [v for v in self._last_result() if v not in wait]
        needed = self._find_needed(inputs) if self.unread else set()
        late = [v for v in self.unread if self.uses[v] and not self.reduced[v] <= needed]
        self.unread = []
        return wait + [v for v in late if v not in wait]

    def _is_joined_soon(self, heavy_index: int) -> bool:
        """Whether an op reads it before long anyway.

        A tie costs a kernel where what reads a matrix product would transpose it, or cut it to
        size, on the way.
        """
        reader = self.first_reader.get(heavy_index)
        return reader is not None and reader - heavy_index <= _SOON_OPS

    def _tie_results(self, wait: Sequence[Var], eqn: Eqn) -> None:
        """Makes what reads a heavy op's results wait for more than the op."""
        anchor = self._choose_anchor(eqn)
        wait = [v for v in wait if self.uses[v]]
        if is_cut_to_size(eqn):
            self.put_off = wait  # the next one's may do
        elif wait and anchor is not None:
            tied = [*wait, anchor]
            new = self._barrier(*(jaxprs.read(self.env, v) for v in tied))
            self.env.update(zip(tied, new, strict=True))

    def _tie(self, wait: Sequence[Var], inputs: Sequence[Var]) -> None:
        """Makes an op that reads `inputs` wait, by the largest of them."""
        sources = [find_source(v, self.maker, self._is_stored) for v in inputs]
        # What is older than the last heavy op is in memory: a barrier takes nothing apart.
        key = lambda s: (
            s[0] not in self.poor_carriers, s[0] not in self.new, jaxprs.size_bytes(s[0].aval)
        )  # fmt: skip
        carrier, views = max(sources, key=key, default=(None, []))
        wait = [v for v in wait if v is not carrier]
        if not wait or carrier is None:
            return
        tied = [*wait, carrier]
        new = self._barrier(*(jaxprs.read(self.env, v) for v in tied))
        self.env.update(zip(tied, new, strict=True))
        self._make_again(views)

    def _make_again(self, eqns: Iterable[Eqn]) -> None:
        """Emits equations once more, behind the tie of what they read."""
        for eqn in eqns:
            again = jaxprs.clone(eqn, dict(self.env))
            self.out.append(new_twin(jaxprs.read(self.env, eqn.outvars[0]), again))
            self.env.update(zip(eqn.outvars, again.outvars, strict=True))

    def _is_stored(self, eqn: Eqn) -> bool:
        is_copy = eqn.primitive is jx.device_put_p
        return is_copy or is_barrier(eqn) or is_heavy(eqn, self.ledger.min_heavy_bytes)

    def _find_needed(self, inputs: Sequence[Var]) -> set[Var]:
        """What `inputs` are made of since the last heavy op."""
        needed: set[Var] = set()
        stack = list(inputs)
        while stack:
            v = stack.pop()
            if v in needed or v not in self.new:
                continue
            needed.add(v)
            stack.extend(jaxprs.variables(self.maker[v].invars))
        return needed

    def _last_result(self) -> list[Var]:
        """One variable, still to be read, that depends on the last heavy op."""
        return self._alive()[:1]

    def _alive(self) -> list[Var]:
        return [v for v in self.recent if self.uses[v] and jaxprs.size_bytes(v.aval)]

    def _barrier(self, *operands: Atom) -> list[Var]:
        """Ties operands together: those, inside `shard_map`, that differ along the same axes."""
        groups: dict[frozenset, list[int]] = defaultdict(list)
        for i, v in enumerate(operands):
            groups[_compat.varying_axes(v.aval)].append(i)
        outvars = [jx.Var(v.aval) for v in operands]
        for group in groups.values():
            ins, outs = [operands[i] for i in group], [outvars[i] for i in group]
            self.out.append(new_pin(ins, outs))
        return outvars

    # The program, equation by equation.

    def _queue_copy(self, eqn: Eqn, segment: int) -> None:
        """Starts a copy to the host now, or once there is room for it."""
        start, _ = self.spans[eqn.outvars[0]]
        if start > segment:
            self.queued[start].append(eqn)
        else:  # what waits for nothing here XLA may make, and copy, long before
            self._start_copy(eqn, is_late=self.depth.get(eqn.invars[0], -1) < segment - 1)

    def _start_copy(self, eqn: Eqn, *, is_late: bool) -> None:
        (source,), (host,) = eqn.invars, eqn.outvars
        marks = [self._choose_mark(), *(v for v in self._alive() if v in self.in_memory)]
        mark = next((v for v in marks if v is not None and v is not source), None)
        before = jaxprs.read(self.env, source)
        if is_late and mark is not None:
            tied = self._barrier(before, jaxprs.read(self.env, mark))
            self.env[source], self.env[mark] = tied
        self._emit(eqn, None)
        self.env[source] = before  # other readers wait for nothing
        self.pending.append((self.spans[host][1], host))

    def _emit(self, eqn: Eqn, heavy_index: int | None) -> None:
        inputs = jaxprs.variables(eqn.invars)
        self.uses.subtract(inputs)
        depth = max((self.depth.get(v, -1) for v in inputs), default=-1)
        self.out.append(jaxprs.substitute(eqn, self.env))
        if heavy_index is not None:
            depth, self.recent = heavy_index, []
            self.new = set()
        self.new.update(eqn.outvars)
        last = heavy_index if heavy_index is not None else self._last_depth
        if any(v in self.ledger.reloads for v in eqn.outvars):
            # Nothing but its reader waits for a reload: it may be under way for long.
            self.depth.update(dict.fromkeys(eqn.outvars, depth))
            return
        for v in eqn.outvars:
            self.depth[v] = depth
            if depth == last and depth >= 0 and not _compat.is_on_host(v.aval):
                self.recent.append(v)
        self._last_depth = last
        self._note_reduction(eqn, inputs)

    def _note_reduction(self, eqn: Eqn, inputs: Sequence[Var]) -> None:
        computed = [v for v in inputs if v not in self.arguments]
        is_reduction = eqn.primitive.name in _REDUCTIONS
        if is_reduction or (computed and all(v in self.reduced for v in computed)):
            bases = [self.reduced[v] for v in computed if v in self.reduced]
            base = frozenset(eqn.outvars) if is_reduction else frozenset().union(*bases)
            self.reduced.update((v, base) for v in eqn.outvars)
            fits = lambda v: 0 < jaxprs.size_bytes(v.aval) <= self._largest_input(inputs)
            on_device = [v for v in eqn.outvars if not _compat.is_on_host(v.aval)]
            self.unread += [v for v in on_device if fits(v)]

    @staticmethod
    def _largest_input(inputs: Sequence[Var]) -> int:
        return max((jaxprs.size_bytes(v.aval) for v in inputs), default=0)

    _last_depth = -1
