"""Settle: what happens to a value, when it comes to it?

Input: a program, the decisions, and the equations as they are emitted. Output: keep, offload
or recompute, for each value that the backward pass asks for.
A decision is followed as far as the kind of the value and its time allow; what is kept
against a decision is written down in the ledger with the reason. Time is counted in heavy
ops.
"""

from jaxswap import _compat
from jaxswap.apply import jaxprs
from jaxswap.apply.decision import Action, Decision
from jaxswap.apply.heavy import is_heavy
from jaxswap.apply.jaxprs import Atom, Eqn, Var, jx
from jaxswap.apply.program import Ledger, Part, Program
from jaxswap.apply.values import can_offload, can_recompute

_NOT_GONE = "it is wanted again before it would have left"


class Settler:
    """Settles what happens to each value, once, when the backward pass first asks for it.

    Attributes:
        producer: the equation, by position, that makes a value of the forward pass.
        num_heavy: how many heavy ops there were so far.
    """

    def __init__(self, program: Program, ledger: Ledger, names: dict[Var, str]):
        self.producer: dict[Var, int] = {
            v: i
            for i, (eqn, part) in enumerate(program)
            if part in (Part.FORWARD, Part.LAZY)
            for v in eqn.outvars
        }
        self.num_heavy = 0
        self._program, self._ledger, self._names = program, ledger, names
        self._arguments = set(program.arguments)
        self._made_at: dict[Var, int] = {}
        self._read_at: dict[Var, int] = {}  # when the forward pass read a value last
        self._actions: dict[Var, Action] = {}
        self._as_written = self._find_as_written()

    def note(self, eqn: Eqn, is_backward: bool) -> None:
        """Takes note of an equation that was emitted."""
        self.num_heavy += is_heavy(eqn, self._ledger.min_heavy_bytes)
        if not is_backward:
            self._read_at.update((v, self.num_heavy) for v in jaxprs.variables(eqn.invars))
            self._made_at.update((v, self.num_heavy) for v in eqn.outvars)

    def is_lazy(self, atom: Atom) -> bool:
        """Whether a value is only made when the backward pass asks for it."""
        index = None if isinstance(atom, jx.Literal) else self.producer.get(atom)
        return index is not None and self._program.parts[index] is Part.LAZY

    def is_as_written(self, var: Var) -> bool:
        """Whether the backward pass may read a value of the forward pass as the user wrote it.

        That is what nothing was decided about, made of kept values by ops that fuse: if the ledger
        says so, since XLA may have more of it in memory than was forecast.
        """
        return var in self._as_written

    def _find_as_written(self) -> set[Var]:
        found: set[Var] = set()
        # Of two loops, what the first makes is the second's only in stacks.
        if self._program.is_body or not self._ledger.rest_as_written:
            return found
        kept: set[Var] = set()
        given: set[Var] = set()  # made of arguments alone: to hold on to it costs memory
        for eqn, part in self._program:
            if part is not Part.FORWARD:
                continue
            inputs = [v for v in jaxprs.variables(eqn.invars) if v in self.producer]
            is_fused = not is_heavy(eqn, self._ledger.min_heavy_bytes)
            is_of_kept = is_fused and all(v in kept or v in given for v in inputs)
            for v in eqn.outvars:
                name = self._names.get(v)
                if name is not None:
                    kept.update([v] if self._ledger.decide(name).action == "keep" else [])
                elif is_of_kept and any(v in kept for v in inputs):
                    kept.add(v)
                    found.add(v)
                elif is_of_kept:
                    given.add(v)
        return found

    def find_action(self, var: Var) -> Action:
        """What happens to a value."""
        if var not in self._actions:
            self._actions[var] = self._settle(var)
        return self._actions[var]

    def _settle(self, var: Var) -> Action:
        index, name = self.producer.get(var), self._names.get(var)
        if self.is_lazy(var):
            return "recompute"
        if name is None and (index is None or var in self._program.saved):
            return "keep"
        decision = self._ledger.decide(name)
        if decision.action == "offload":
            reason = self._why_not_offload(var, decision)
        elif decision.action == "recompute":
            reason = self._why_not_recompute(var, index, name, decision)
        else:
            return "keep"
        if reason is None:
            return decision.action
        if name is not None:
            self._ledger.demoted[name] = f"kept: {reason}"
        return "keep"

    def _why_not_offload(self, var: Var, decision: Decision) -> str | None:
        if not can_offload(var.aval) or _compat.is_on_host(var.aval):
            return "its type cannot be in host memory"
        if not self._ledger.can_offload:
            return "JAX cannot use host memory in a step with side effects in order"
        if not self._program.can_offload:
            return "XLA cannot have it in host memory from within this loop"
        if var in self._arguments and var not in self.producer:
            return "it is an argument, whose memory is the caller's"
        return None if self._is_gone(var, decision) else _NOT_GONE

    def _why_not_recompute(
        self, var: Var, index: int | None, name: str | None, decision: Decision
    ) -> str | None:
        if index is None or not can_recompute(self._program.eqns[index]):
            return "it cannot be recomputed, or only by running a loop again"
        if name is None and self._has_saved_sibling(index):
            return "the op that makes it has another result, which is saved"
        return None if self._is_gone(var, decision) else _NOT_GONE

    def _has_saved_sibling(self, index: int) -> bool:
        outvars = self._program.eqns[index].outvars
        named = [self._names[v] for v in outvars if v in self._names] if outvars[1:] else []
        return any(self._ledger.decide(name).action != "recompute" for name in named)

    def _is_gone(self, var: Var, decision: Decision) -> bool:
        """Whether a heavy op would run between the end of a value and its return.

        At the turn from forward to backward some values are wanted again before they have
        left. To forget these costs time, and gains no memory.
        """
        if self._program.is_body or var not in self._made_at:
            return True
        made_at = self._made_at[var]
        left_at = self._read_at.get(var, made_at)
        back_at = self.num_heavy
        if decision.action == "offload":
            left_at = max(left_at, made_at + decision.window_ops - 1)
            back_at -= decision.reload_ahead_ops
        return left_at < back_at
