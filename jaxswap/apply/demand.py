"""Demand: how does the backward pass come by the values it needs?

Input: a program (equations in order) whose forward and backward equations are known, and a
policy that says what to do with each value. Output: the program in which every value that
the backward pass reads is kept, reloaded or recomputed, at the last moment: in front of the
first backward equation that needs it.

What a recomputation starts from is read through a *gate*, an `optimization_barrier` of its
own: without it XLA would find the same op in the forward pass, merge the two, and keep alive
what was to be forgotten. `order.py` later ties gates to the op they have to wait for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxswap import _compat
from jaxswap.apply import jaxprs
from jaxswap.apply.decision import Decision
from jaxswap.apply.heavy import is_heavy
from jaxswap.apply.jaxprs import Atom, Env, Eqn, Var, jx
from jaxswap.apply.place import TURN, VALUE, can_offload, can_recompute


@dataclass(slots=True)
class Ledger:
    """What was decided, and what became of it, while a step is rewritten.

    Attributes:
        decide: the decision for a value by name; None asks for the default.
        min_heavy_bytes: ops that touch less are not heavy.
        copies: variables in host memory, with the name and decision of their value.
        reloads: variables that were reloaded, likewise.
        offloaded: names of the values that are really offloaded.
        demoted: names that could not be treated as decided, and why.
    """

    decide: Callable[[str | None], Decision]
    min_heavy_bytes: int
    copies: dict[Var, tuple[str, Decision]] = field(default_factory=dict)
    reloads: dict[Var, tuple[str, Decision]] = field(default_factory=dict)
    offloaded: list[str] = field(default_factory=list)
    demoted: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Program:
    """Equations in order, each with its part in the differentiation.

    Attributes:
        arguments: variables defined from the start that cost nothing to hold on to.
        carried: variables defined from the start that are new in every iteration of a loop.
        eqns: the equations.
        is_forward: whether an equation belongs to the function that is differentiated.
        is_backward: whether it belongs to the backward pass, and is served on demand.
        cotangents: variables that are cotangents, besides those that depend on them.
        outs: what the forward pass returns.
        backward_outs: what the backward pass returns.
        prefix: names of this program's values start so.
        is_body: whether it is an iteration of a loop; the next iterations of the forward
            pass then come between its forward and its backward part.
    """

    arguments: Sequence[Var]
    carried: Sequence[Var]
    eqns: list[Eqn]
    is_forward: list[bool]
    is_backward: list[bool]
    cotangents: set[Var]
    outs: list[Atom]
    backward_outs: list[Atom]
    prefix: str
    is_body: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A program whose backward pass is served: equations, and which are on its side."""

    eqns: list[Eqn]
    is_backward: list[bool]
    outs: list[Atom]
    backward_outs: list[Atom]


def find_dependents(eqns: Sequence[Eqn], seeds: set[Var]) -> set[Var]:
    """The variables that depend on one of `seeds`, themselves included."""
    found = set(seeds)
    for eqn in eqns:
        if any(v in found for v in jaxprs.variables(eqn.invars)):
            found.update(eqn.outvars)
    return found


def strip_names(program: Program) -> dict[Var, str]:
    """Takes the names out of a program (in place) and returns which value has which."""
    env: Env = {}
    names: dict[Var, str] = {}
    kept = []
    for eqn, forward, backward in zip(
        program.eqns, program.is_forward, program.is_backward, strict=True
    ):
        eqn = jaxprs.substitute(eqn, env)
        label = eqn.params["name"] if eqn.primitive is jx.name_p else ""
        own = label.startswith(VALUE + program.prefix)
        if eqn.primitive is not jx.name_p or not (own or forward):
            kept.append((eqn, forward, backward))
            continue
        (source,) = eqn.invars
        env[eqn.outvars[0]] = source
        if own and not isinstance(source, jx.Literal):
            names[source] = label.removeprefix(VALUE)
    program.eqns = [eqn for eqn, _, _ in kept]
    program.is_forward = [forward for _, forward, _ in kept]
    program.is_backward = [backward for _, _, backward in kept]
    program.outs = [jaxprs.read(env, v) for v in program.outs]
    program.backward_outs = [jaxprs.read(env, v) for v in program.backward_outs]
    program.cotangents = {jaxprs.read(env, v) for v in program.cotangents}
    return names


def serve(program: Program, ledger: Ledger) -> Served:
    """Rewrites a program so that its backward pass gets every value as decided."""
    from jaxswap.apply import loops

    names = strip_names(program)
    regions = _open_remat_regions(program, names)
    loops.rewrite_pairs(program, ledger)
    return _Server(program, ledger, names, *regions).run()


def _open_remat_regions(program: Program, names: dict[Var, str]) -> tuple[set[int], set[Var]]:
    """Inlines the user's `jax.checkpoint` regions of the backward pass (in place).

    Their recomputation goes on demand like ours. What they saved stays saved, unless it is
    a value that was decided about.

    Returns:
        The positions of the equations that only recompute, and the saved variables.
    """
    dependents = find_dependents(program.eqns, program.cotangents)
    eqns, forward, backward = [], [], []
    lazy: set[int] = set()
    saved: set[Var] = set()
    env: Env = {}
    for eqn, is_forward, is_backward in zip(
        program.eqns, program.is_forward, program.is_backward, strict=True
    ):
        eqn = jaxprs.substitute(eqn, env)
        inputs = jaxprs.variables(eqn.invars)
        is_region = eqn.primitive is jx.remat_p and eqn.params["differentiated"]
        if not (is_region and is_backward and any(v in dependents for v in inputs)):
            eqns.append(eqn)
            forward.append(is_forward)
            backward.append(is_backward)
            continue
        saved.update(v for v in inputs if v not in names and v not in dependents)
        body = jaxprs.inline_calls(jx.ClosedJaxpr(eqn.params["jaxpr"], ()))
        _, invars, inner, outs = jaxprs.rename_jaxpr(body)
        inner_env = dict(zip(invars, eqn.invars, strict=True))
        inner = [jaxprs.substitute(e, inner_env) for e in inner]
        dependents |= find_dependents(inner, {v for v in inputs if v in dependents})
        for e in inner:
            is_lazy = not any(v in dependents for v in jaxprs.variables(e.invars))
            if is_lazy:
                lazy.add(len(eqns))
            eqns.append(e)
            forward.append(is_lazy)
            backward.append(not is_lazy)
        env.update(
            zip(eqn.outvars, [jaxprs.read(inner_env, v) for v in outs], strict=True)
        )
    program.eqns, program.is_forward, program.is_backward = eqns, forward, backward
    program.outs = [jaxprs.read(env, v) for v in program.outs]
    program.backward_outs = [jaxprs.read(env, v) for v in program.backward_outs]
    return lazy, saved


class _Server:
    """Walks a program once, and emits in front of each backward equation what it needs."""

    def __init__(self, program, ledger, names, lazy, saved):
        self.program, self.ledger, self.names = program, ledger, names
        self.lazy, self.saved = lazy, saved
        self.producer: dict[Var, int] = {
            v: i
            for i, eqn in enumerate(program.eqns)
            if program.is_forward[i]
            for v in eqn.outvars
        }
        self.arguments = set(program.arguments)
        self.out: list[tuple[Eqn, bool]] = []
        self.gates: Env = {}
        self.ready: Env = {}  # what stands for a value in the backward pass
        self.host: Env = {}
        self._siblings: dict[int, bool] = {}
        self._actions: dict[Var, str] = {}
        self.num_heavy = 0  # heavy ops so far: the time
        self.made_at: dict[Var, int] = {}
        self.read_at: dict[Var, int] = {}  # when the forward pass read a value last

    def run(self) -> Served:
        program = self.program
        for i, eqn in enumerate(program.eqns):
            if program.is_backward[i]:
                self._emit(self.serve_inputs(eqn), True)
            elif i not in self.lazy:
                self._emit(eqn, False)
            elif eqn.effects:
                self._emit(self.serve_inputs(eqn), True)
        is_lazy = lambda v: not isinstance(v, jx.Literal) and self.producer.get(v) in self.lazy
        outs = [self.serve(v) if is_lazy(v) else v for v in program.outs]
        backward_outs = [self.serve(v) for v in program.backward_outs]
        eqns = self._with_offloads()
        return Served(
            eqns=[eqn for eqn, _ in eqns],
            is_backward=[side for _, side in eqns],
            outs=outs,
            backward_outs=backward_outs,
        )

    def serve_inputs(self, eqn: Eqn) -> Eqn:
        env = {v: self.serve(v) for v in jaxprs.variables(eqn.invars)}
        return jaxprs.substitute(eqn, env)

    def serve(self, atom: Atom) -> Atom:
        """What a backward equation reads for `atom`; emits what has to happen for it."""
        if isinstance(atom, jx.Literal):
            return atom
        if atom not in self.ready:
            action = self.action(atom)
            if action == "keep":
                self.ready[atom] = atom
            elif action == "offload":
                self._reload(atom)
            else:
                self._recompute(atom)
        return self.ready[atom]

    def _emit(self, eqn: Eqn, is_backward: bool) -> None:
        self.out.append((eqn, is_backward))
        self.num_heavy += is_heavy(eqn, self.ledger.min_heavy_bytes)
        if not is_backward:
            self.read_at.update((v, self.num_heavy) for v in jaxprs.variables(eqn.invars))
            self.made_at.update((v, self.num_heavy) for v in eqn.outvars)

    def action(self, var: Var) -> str:
        """What happens to a value, decided when the backward pass first asks for it."""
        if var not in self._actions:
            self._actions[var] = self._decide(var)
        return self._actions[var]

    def _decide(self, var: Var) -> str:
        """What was decided about a value, as far as its kind and its time allow it."""
        index, name = self.producer.get(var), self.names.get(var)
        if index is not None and index in self.lazy:
            return "recompute"
        if name is None and (index is None or var in self.saved):
            return "keep"
        decision = self.ledger.decide(name)
        if decision.action == "offload":
            return self._can_offload(var, name)
        if decision.action == "recompute":
            return self._can_recompute(var, index, name)
        return "keep"

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

    def _can_offload(self, var: Var, name: str | None) -> str:
        reason = None
        if _compat.is_on_host(var.aval):
            return "keep"
        if not can_offload(var.aval):
            reason = "its type cannot be in host memory"
        elif var in self.arguments and var not in self.producer:
            reason = "it is an argument, whose memory is the caller's"
        elif not self._is_gone(var, self.ledger.decide(name)):
            reason = "it is wanted again before it would have left"
        if reason is None:
            return "offload"
        if name is not None:
            self.ledger.demoted[name] = f"kept: {reason}"
        return "keep"

    def _can_recompute(self, var: Var, index: int | None, name: str | None) -> str:
        if index is None or not can_recompute(self.program.eqns[index]):
            return "keep"
        if name is None and self._has_saved_sibling(index):
            return "keep"
        return "recompute" if self._is_gone(var, self.ledger.decide(name)) else "keep"

    def _has_saved_sibling(self, index: int) -> bool:
        """Whether an op of several results runs no second time for the sake of one."""
        if index not in self._siblings:
            outvars = self.program.eqns[index].outvars
            named = [self.names[v] for v in outvars if v in self.names] if outvars[1:] else []
            decisions = (self.ledger.decide(name) for name in named)
            self._siblings[index] = any(d.action != "recompute" for d in decisions)
        return self._siblings[index]

    def _reload(self, var: Var) -> None:
        name = self.names.get(var, "")
        decision = self.ledger.decide(name or None)
        if var not in self.host:
            self.host[var] = _compat.new_copy_eqn(var, to_host=True)
            if name:
                self.ledger.offloaded.append(name)
        host = self.host[var].outvars[0]
        self.ledger.copies[host] = (name, decision)
        copy = _compat.new_copy_eqn(self._gate(host), to_host=False)
        self._emit(copy, True)
        self.ready[var] = copy.outvars[0]
        self.ledger.reloads[copy.outvars[0]] = (name, decision)

    def _recompute(self, var: Var) -> None:
        """Clones the forward equations that lead to `var` from what is there."""
        needed: set[int] = set()
        stack = [var]
        while stack:
            v = stack.pop()
            index = self.producer.get(v)
            if v in self.ready or index in needed or self.action(v) != "recompute":
                continue
            needed.add(index)
            stack.extend(jaxprs.variables(self.program.eqns[index].invars))
        for index in sorted(needed):
            eqn = self.program.eqns[index]
            env = {v: self._clone_input(v) for v in jaxprs.variables(eqn.invars)}
            copied = jaxprs.clone(eqn, env)
            self._emit(copied, True)
            for original, new in zip(eqn.outvars, copied.outvars, strict=True):
                if self.action(original) == "recompute":
                    self.ready[original] = new

    def _clone_input(self, var: Var) -> Var:
        if self.action(var) == "keep":
            return self._gate(var)
        return self.serve(var)

    def _gate(self, var: Var) -> Var:
        if var not in self.gates:
            gated = jx.Var(var.aval)
            eqn = jx.new_eqn([var], [gated], jx.optimization_barrier_p, {}, set())
            self._emit(eqn, True)
            self.gates[var] = gated
        return self.gates[var]

    def _with_offloads(self) -> list[tuple[Eqn, bool]]:
        """Puts each copy to the host right behind the equation that makes its value."""
        waiting = dict(self.host)
        carried = [v for v in self.program.carried if v in waiting]
        placed = [(waiting.pop(v), False) for v in carried]
        for eqn, side in self.out:
            placed.append((eqn, side))
            placed += [(waiting.pop(v), side) for v in eqn.outvars if v in waiting]
        assert not waiting, "an offloaded value is not made by the program"
        return placed


def is_turn(eqn: Eqn, index: int | None = None) -> bool:
    """Whether an equation marks where a backward pass starts."""
    if eqn.primitive is not jx.name_p or not eqn.params["name"].startswith(TURN):
        return False
    return index is None or eqn.params["name"] == f"{TURN}{index}"


def find_turns(jaxpr: Any) -> list[int]:
    """The indices of the backward passes that start in this jaxpr, not deeper."""
    names = [e.params["name"] for e in jaxpr.eqns if is_turn(e)]
    return sorted({int(name.removeprefix(TURN)) for name in names})
