"""Demand: how does the backward pass come by the values it needs?

Input: a program (equations in order) whose forward and backward equations are known, and a
ledger that says what to do with each value. Output: the program in which every value that
the backward pass reads is kept, reloaded or recomputed, at the last moment: in front of the
first backward equation that needs it.

What a recomputation starts from is read through a *gate*, an `optimization_barrier` of its
own: without it XLA would find the same op in the forward pass, merge the two, and keep alive
what was to be forgotten. `order.py` later ties gates to the op they have to wait for.
"""

import math
from collections.abc import Container, Sequence

from jaxswap import _compat
from jaxswap.apply import jaxprs
from jaxswap.apply.decision import Action, Decision
from jaxswap.apply.heavy import is_heavy
from jaxswap.apply.jaxprs import Atom, Env, Eqn, Var, jx
from jaxswap.apply.place import can_offload, can_recompute
from jaxswap.apply.program import Ledger, Part, Program, Served, find_dependents

# A value that comes back is let go again if it is not read for this many heavy ops and
# coming back once more is cheap: one copy, or few ops, none of them heavy.
_MAX_IDLE_OPS = 8
_MAX_CHEAP_EQNS = 16

# Ops that compare with, or select, a number. XLA spreads the number out, shares the spread
# array between all ops of that shape, and may then keep it in memory from end to end.
_SPREADERS = frozenset(
    ("max", "min", "gt", "ge", "lt", "le", "eq", "ne", "select_n", "broadcast_in_dim")
)


def serve(program: Program, ledger: Ledger, names: dict[Var, str]) -> Served:
    """Emits a program again, so that its backward pass gets every value as decided."""
    return _Server(program, ledger, names).run()


class _Server:
    """Walks a program once, and emits in front of each backward equation what it needs."""

    def __init__(self, program: Program, ledger: Ledger, names: dict[Var, str]):
        self.program, self.ledger, self.names = program, ledger, names
        self.producer: dict[Var, int] = {
            v: i
            for i, (eqn, part) in enumerate(zip(program.eqns, program.parts, strict=True))
            if part in (Part.FORWARD, Part.LAZY)
            for v in eqn.outvars
        }
        self.dependents = find_dependents(program.eqns, program.cotangents)
        self.arguments = set(program.arguments)
        self.out: list[tuple[Eqn, bool]] = []
        self.ready: Env = {}  # what stands for a value in the backward pass
        self.served_at: dict[Var, int] = {}
        self.gates: dict[tuple[Var, int], Var] = {}
        self.numbers: dict[tuple, Var] = {}
        self.host: dict[Var, Eqn] = {}
        self.carrier: Var | None = None  # the gradient that the op being served reads
        self.num_heavy = 0  # heavy ops so far: the time
        self.made_at: dict[Var, int] = {}
        self.read_at: dict[Var, int] = {}  # when the forward pass read a value last
        self._actions: dict[Var, Action] = {}

    def run(self) -> Served:
        program = self.program
        for eqn, part in zip(program.eqns, program.parts, strict=True):
            if part is Part.BACKWARD or (part is Part.LAZY and eqn.effects):
                self._emit(self._serve_inputs(eqn), True)
            elif part is not Part.LAZY:
                self._emit(eqn, False)
        outs = [self._serve(v) if self._is_lazy(v) else v for v in program.outs]
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
        self.num_heavy += is_heavy(eqn, self.ledger.min_heavy_bytes)
        if not is_backward:
            self.read_at.update((v, self.num_heavy) for v in jaxprs.variables(eqn.invars))
            self.made_at.update((v, self.num_heavy) for v in eqn.outvars)

    # What a backward equation reads.

    def _serve_inputs(self, eqn: Eqn) -> Eqn:
        inputs = jaxprs.variables(eqn.invars)
        if is_heavy(eqn, self.ledger.min_heavy_bytes):
            gradients = [v for v in inputs if v in self.dependents]
            size = lambda v: jaxprs.size_bytes(v.aval)
            self.carrier = max(gradients, key=size, default=None)
        env = {v: self._serve(v) for v in inputs}
        self.carrier = None
        return jaxprs.substitute(eqn, env)

    def _serve(self, atom: Atom) -> Atom:
        """What stands for `atom` in the backward pass; emits what has to happen for it."""
        if isinstance(atom, jx.Literal):
            return atom
        action = self._action(atom)
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
            self.host[var] = _compat.new_copy_eqn(var, to_host=True)
            self.ledger.offloaded.append(name)
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
                if self._action(original) == "recompute":
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
            if self._action(v) == "recompute":
                needed.add(index)
                stack.extend(jaxprs.variables(self.program.eqns[index].invars))
                if len(needed) > limit:
                    return None
        return needed

    def _serve_clone(self, var: Var) -> Var:
        action = self._action(var)
        if action == "recompute" or var in self.dependents:
            return self._serve(var)
        if action == "offload":
            var = self._serve(var)
            return var if self.carrier is None else self._gate(var, self.carrier)
        return self._gate(var, self.carrier)

    # Gates.

    def _gate(self, source: Atom, carrier: Var | None = None) -> Var:
        """A gate for `source`, or the one it has.

        The inputs of a heavy op are made for it alone: they need not be there before the
        gradient that it reads, and their gates wait for that `carrier`.
        """
        key = (source, self.num_heavy)
        if isinstance(source, jx.Literal) or key not in self.gates:
            gated = jx.Var(source.aval)
            eqn = jx.new_eqn([source], [gated], jx.optimization_barrier_p, {}, set())
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
            key = (self.num_heavy, str(atom.val), atom.aval)
            if key not in self.numbers:
                self.numbers[key] = self._gate(atom)
            return self.numbers[key]

        return eqn.replace(invars=[read(v) for v in eqn.invars])

    # What happens to a value.

    def _is_lazy(self, atom: Atom) -> bool:
        index = None if isinstance(atom, jx.Literal) else self.producer.get(atom)
        return index is not None and self.program.parts[index] is Part.LAZY

    def _action(self, var: Var) -> Action:
        """What happens to a value, settled when the backward pass first asks for it."""
        if var not in self._actions:
            self._actions[var] = self._settle(var)
        return self._actions[var]

    def _settle(self, var: Var) -> Action:
        index, name = self.producer.get(var), self.names.get(var)
        if self._is_lazy(var):
            return "recompute"
        if name is None and (index is None or var in self.program.saved):
            return "keep"
        decision = self.ledger.decide(name)
        if decision.action == "offload":
            reason = self._why_not_offload(var, decision)
        elif decision.action == "recompute":
            reason = self._why_not_recompute(var, index, name, decision)
        else:
            return "keep"
        if reason is None:
            return decision.action
        if name is not None:
            self.ledger.demoted[name] = f"kept: {reason}"
        return "keep"

    def _why_not_offload(self, var: Var, decision: Decision) -> str | None:
        if not can_offload(var.aval) or _compat.is_on_host(var.aval):
            return "its type cannot be in host memory"
        if not self.program.can_offload:
            return "XLA of this jaxlib would write it to the wrong place (openxla/xla #46231)"
        if var in self.arguments and var not in self.producer:
            return "it is an argument, whose memory is the caller's"
        return None if self._is_gone(var, decision) else _NOT_GONE

    def _why_not_recompute(
        self, var: Var, index: int | None, name: str | None, decision: Decision
    ) -> str | None:
        if index is None or not can_recompute(self.program.eqns[index]):
            return "nothing it can be recomputed from"
        if name is None and self._has_saved_sibling(index):
            return "the op that makes it has another result, which is saved"
        return None if self._is_gone(var, decision) else _NOT_GONE

    def _has_saved_sibling(self, index: int) -> bool:
        outvars = self.program.eqns[index].outvars
        named = [self.names[v] for v in outvars if v in self.names] if outvars[1:] else []
        return any(self.ledger.decide(name).action != "recompute" for name in named)

    def _is_gone(self, var: Var, decision: Decision) -> bool:
        """Whether a heavy op would run between the end of a value and its return.

        At the turn from forward to backward some values are wanted again before they have
        left. To forget these costs time, and gains no memory.
        """
        if self.program.is_body or var not in self.made_at:
            return True
        made_at = self.made_at[var]
        left_at = self.read_at.get(var, made_at)
        back_at = self.num_heavy
        if decision.action == "offload":
            left_at = max(left_at, made_at + decision.window_ops - 1)
            back_at -= decision.reload_ahead_ops
        return left_at < back_at

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


_NOT_GONE = "it is wanted again before it would have left"
