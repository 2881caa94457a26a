"""Demand: how does the backward pass come by the values it needs?

Input: a program (equations in order) whose forward and backward equations are known, and a
ledger that says what to do with each value. Output: the program in which every value that
the backward pass reads is kept, reloaded or recomputed, at the last moment: in front of the
first backward equation that needs it.

What a recomputation starts from is read through a *gate*, a pin of its
own: without it XLA would find the same op in the forward pass, merge the two, and keep alive
what was to be forgotten. `order.py` later ties gates to the op they have to wait for. Bodies of
loops have none: forward and backward are two loops there, unless XLA unrolls them.
"""

import math
from collections.abc import Container, Sequence

from jaxswap import _compat
from jaxswap.apply import jaxprs
from jaxswap.apply.decision import Action
from jaxswap.apply.heavy import is_heavy
from jaxswap.apply.jaxprs import Atom, Env, Eqn, Var, jx
from jaxswap.apply.marks import COPY
from jaxswap.apply.pin import new_pin
from jaxswap.apply.program import Ledger, Part, Program, Served, find_dependents
from jaxswap.apply.settle import Settler

# A value that comes back is let go again if it is not read for this many heavy ops and
# coming back once more is cheap: one copy, or few ops, none of them heavy.
_MAX_IDLE_OPS = 8
_MAX_CHEAP_EQNS = 16

# Ops that compare with, or select, a number. XLA spreads the number out, shares the spread
# array between all ops of that shape, and may then keep it in memory from end to end.
_SPREADERS = frozenset(
    ("max", "min", "gt", "ge", "lt", "le", "eq", "ne", "select_n", "broadcast_in_dim")
)
# What changes nothing, XLA has to see: it finds a softmax by its form.
_NEUTRAL = {"max": -math.inf, "min": math.inf}


def serve(program: Program, ledger: Ledger, names: dict[Var, str]) -> Served:
    """Emits a program again, so that its backward pass gets every value as decided."""
    return _Server(program, ledger, names).run()


class _Server:
    """Walks a program once, and emits in front of each backward equation what it needs."""

    def __init__(self, program: Program, ledger: Ledger, names: dict[Var, str]):
        self.program, self.ledger, self.names = program, ledger, names
        self.settler = Settler(program, ledger, names)
        self.producer = self.settler.producer
        self.dependents = find_dependents(program.eqns, program.cotangents)
        self.out: list[tuple[Eqn, bool]] = []
        self.ready: Env = {}  # what stands for a value in the backward pass
        self.served_at: dict[Var, int] = {}
        self.gates: dict[tuple[Var, int], Var] = {}
        self.numbers: dict[tuple, Var] = {}
        self.host: dict[Var, Eqn] = {}
        self.carrier: Var | None = None  # the gradient that the op being served reads
        # Forward and backward are two loops, with nothing to merge, unless XLA unrolls them. There
        # a gate would only have XLA write to memory what it reads from a stack in passing.
        self.gates_clones = not program.is_body or program.is_unrolled

    @property
    def num_heavy(self) -> int:
        return self.settler.num_heavy

    def run(self) -> Served:
        program = self.program
        for eqn, part in zip(program.eqns, program.parts, strict=True):
            if part is Part.BACKWARD or (part is Part.LAZY and eqn.effects):
                self._emit(self._serve_inputs(eqn), True)
            elif part is not Part.LAZY:
                self._emit(eqn, False)
        outs = [self._serve(v) if self.settler.is_lazy(v) else v for v in program.outs]
        backward_outs = [self._serve(v) for v in program.backward_outs]
        placed = self._with_offloads()
        return Served(
            eqns=[eqn for eqn, _ in placed],
            is_backward=[side for _, side in placed],
            outs=outs,
            backward_outs=backward_outs,
        )

    def _emit(self, eqn: Eqn, is_backward: bool) -> None:
        if is_backward:
            eqn = self._gate_numbers(eqn)
        self.out.append((eqn, is_backward))
        self.settler.note(eqn, is_backward)

    # What a backward equation reads.

    def _serve_inputs(self, eqn: Eqn) -> Eqn:
        inputs = jaxprs.variables(eqn.invars)
        if is_heavy(eqn, self.ledger.min_heavy_bytes):
            gradients = [v for v in inputs if v in self.dependents]
            size = lambda v: jaxprs.size_bytes(v.aval)
            self.carrier = max(gradients, key=size, default=None)
        env = {v: v if self.settler.is_as_written(v) else self._serve(v) for v in inputs}
        self.carrier = None
        return jaxprs.substitute(eqn, env)

    def _serve(self, atom: Atom) -> Atom:
        """What stands for `atom` in the backward pass; emits what has to happen for it."""
        if isinstance(atom, jx.Literal):
            return atom
        action = self.settler.find_action(atom)
        if atom not in self.ready or self._is_idle(atom, action):
            if action == "keep":
                self.ready[atom] = atom
            elif action == "offload":
                self._reload(atom)
            else:
                self._recompute(atom)
        self.served_at[atom] = self.num_heavy
        return self.ready[atom]

    def _is_idle(self, var: Var, action: Action) -> bool:
        """Whether a value should come back once more, rather than have stayed for long."""
        if self.num_heavy - self.served_at.get(var, self.num_heavy) <= _MAX_IDLE_OPS:
            return False
        if action == "recompute":
            return self._forget_cheap(var)
        return action == "offload"

    def _forget_cheap(self, var: Var) -> bool:
        eqns = self.program.eqns
        needed = self._find_needed(var, ready=set(), limit=_MAX_CHEAP_EQNS)
        if needed is None or any(is_heavy(eqns[i], self.ledger.min_heavy_bytes) for i in needed):
            return False
        for index in needed:
            for v in eqns[index].outvars:
                self.ready.pop(v, None)
        return True

    def _reload(self, var: Var) -> None:
        name = self.names.get(var, "")
        decision = self.ledger.decide(name or None)
        if var not in self.host:
            self.host[var] = _compat.new_copy_eqn(var, to_host=True, scope=COPY + name)
            self.ledger.offloaded.append(name)
            self.ledger.demoted.pop(name, None)
        (host,) = self.host[var].outvars
        carrier = None if decision.reload_ahead_ops else self.carrier
        copy_back = _compat.new_copy_eqn(self._gate(host, carrier), to_host=False)
        self._emit(copy_back, True)
        self.ready[var] = copy_back.outvars[0]
        self.ledger.copies[host] = decision
        self.ledger.reloads[copy_back.outvars[0]] = decision

    def _recompute(self, var: Var) -> None:
        """Clones the forward equations that lead to `var` from what is there."""
        for index in sorted(self._find_needed(var, ready=self.ready) or ()):
            eqn = self.program.eqns[index]
            env = {v: self._serve_clone(v) for v in jaxprs.variables(eqn.invars)}
            copied = jaxprs.clone(eqn, env)
            self._emit(copied, True)
            for original, new in zip(eqn.outvars, copied.outvars, strict=True):
                if self.settler.find_action(original) == "recompute":
                    self.ready[original] = new
                    self.served_at[original] = self.num_heavy

    def _find_needed(
        self, var: Var, *, ready: Container[Var], limit: float = math.inf
    ) -> set[int] | None:
        """The equations to run again for `var`, or None if they are more than `limit`."""
        needed: set[int] = set()
        stack = [var]
        while stack:
            v = stack.pop()
            index = self.producer.get(v)
            if index is None or index in needed or v in ready:
                continue
            if self.settler.find_action(v) == "recompute":
                needed.add(index)
                stack.extend(jaxprs.variables(self.program.eqns[index].invars))
                if len(needed) > limit:
                    return None
        return needed

    def _serve_clone(self, var: Var) -> Var:
        action = self.settler.find_action(var)
        if action == "recompute" or var in self.dependents:
            return self._serve(var)
        if action == "offload":
            var = self._serve(var)
            return var if self.carrier is None else self._gate(var, self.carrier)
        return self._gate(var, self.carrier) if self.gates_clones else var

    # Gates.

    def _gate(self, source: Atom, carrier: Var | None = None) -> Var:
        """A gate for `source`, or the one it has.

        The inputs of a heavy op are made for it alone: they need not be there before the
        gradient that it reads, and their gates wait for that `carrier`.
        """
        key = (source, self.num_heavy)
        if isinstance(source, jx.Literal) or key not in self.gates:
            gated = jx.Var(source.aval)
            eqn = new_pin([source], [gated])
            self.out.append((eqn, True))
            if isinstance(source, jx.Literal):
                return gated
            self.gates[key] = gated
            if carrier is not None:
                self.ledger.late_gates[gated] = carrier
        return self.gates[key]

    def _gate_numbers(self, eqn: Eqn) -> Eqn:
        size = max((jaxprs.size_bytes(v.aval) for v in eqn.outvars), default=0)
        if eqn.primitive.name not in _SPREADERS or size < self.ledger.min_heavy_bytes:
            return eqn

        def read(atom: Atom) -> Atom:
            if not isinstance(atom, jx.Literal) or atom.aval.shape:
                return atom
            if eqn.primitive.name in _NEUTRAL and atom.val == _NEUTRAL[eqn.primitive.name]:
                return atom
            key = (self.num_heavy, str(atom.val), atom.aval)
            if key not in self.numbers:
                self.numbers[key] = self._gate(atom)
            return self.numbers[key]

        return eqn.replace(invars=[read(v) for v in eqn.invars])

    def _with_offloads(self) -> Sequence[tuple[Eqn, bool]]:
        """Puts each copy to the host right behind the equation that makes its value."""
        waiting = dict(self.host)
        carried = [v for v in self.program.carried if v in waiting]
        placed = [(waiting.pop(v), False) for v in carried]
        for eqn, side in self.out:
            placed.append((eqn, side))
            placed += [(waiting.pop(v), side) for v in eqn.outvars if v in waiting]
        assert not waiting, "an offloaded value is not made by the program"
        return placed
