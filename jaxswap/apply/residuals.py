"""Residuals: how are the large values called that only differentiation makes?

Input: a step that is differentiated and whose values are named (`place.py`), and these. Output: the
step with more names in it, and what they stand for.

What a function computes was named before JAX differentiated it. But a branch that is differentiated
returns what it saves as further results, a custom derivative has a forward pass of its own, and the
derivative of a gradient computes tangents beside the values. The results of heavy ops among these
get names too: what is between them is made again from them, as elsewhere.
"""

from collections.abc import Sequence
from typing import Any

from jaxswap.apply import jaxprs
from jaxswap.apply.decision import NamedValue
from jaxswap.apply.heavy import is_heavy
from jaxswap.apply.jaxprs import Env, Eqn, Var, jx
from jaxswap.apply.marks import VALUE, find_functions, find_turns, is_named, is_turn
from jaxswap.apply.program import find_dependents
from jaxswap.apply.values import describe_value, is_nameable

RESIDUAL = "r"  # what their names start with, behind the function's
_Place = tuple[tuple[str, ...], int]  # the loops around a value, and how often they run


def name_residuals(closed: Any, named: Sequence[NamedValue]) -> tuple[Any, list[NamedValue]]:
    """The same step with the residuals of heavy ops named, and these values."""
    namer = _Namer({value.name: (value.scope, value.length) for value in named})
    more = namer.name_step(closed)
    return (more, namer.values) if namer.values else (closed, [])


class _Namer:
    def __init__(self, places: dict[str, _Place]):
        self._places = places
        self.values: list[NamedValue] = []

    def name_step(self, closed: Any) -> Any:
        """Names the residuals of every backward pass that starts in a jaxpr or inside it."""
        if not jaxprs.any_equation(closed.jaxpr, is_turn):
            return closed
        closed = jaxprs.inline_calls(closed, is_differentiated=True)
        eqns = [
            jaxprs.map_bodies(eqn, self.name_step) if jaxprs.bodies(eqn) else eqn
            for eqn in closed.jaxpr.eqns
        ]
        closed = jx.ClosedJaxpr(jaxprs.with_equations(closed.jaxpr, eqns), closed.consts)
        owners: dict[int, int] = {}  # equations of forward passes, and the functions they are of
        for turn in find_turns(closed.jaxpr):
            seeds = {v for eqn in eqns if is_turn(eqn, turn) for v in eqn.outvars}
            behind = find_dependents(eqns, seeds)
            for i, eqn in enumerate(eqns):
                is_behind = any(v in behind for v in jaxprs.variables(eqn.invars))
                if turn in find_functions(eqn) and not is_behind:
                    owners[i] = turn
        return self._name_forward(closed, owners, ((), 1))

    def _name_forward(self, closed: Any, owners: dict[int, int], place: _Place) -> Any:
        env: Env = {}
        eqns: list[Eqn] = []
        named = [e for e in closed.jaxpr.eqns if is_named(e)]
        has_name = {v for e in named for v in jaxprs.variables(e.invars)}
        for i, original in enumerate(closed.jaxpr.eqns):
            eqn = jaxprs.substitute(original, env)
            if i in owners and eqn.primitive is jx.scan_p:
                eqn = self._name_body(eqn, owners[i])
            eqns.append(eqn)
            if i in owners and eqn.primitive is not jx.scan_p and is_heavy(eqn, 0):
                unnamed = [v for v in original.outvars if v not in has_name and is_nameable(v)]
                for var in unnamed:
                    env[var] = jx.Var(var.aval)
                    eqns.append(self._name(var, env[var], original, owners[i], place))
        outvars = [jaxprs.read(env, v) for v in closed.jaxpr.outvars]
        jaxpr = jaxprs.with_equations(closed.jaxpr, eqns, outvars=outvars)
        return jx.ClosedJaxpr(jaxpr.replace(debug_info=closed.jaxpr.debug_info), closed.consts)

    def _name_body(self, eqn: Eqn, owner: int) -> Eqn:
        """A loop of the forward pass, with what its body saves named."""
        body = jaxprs.inline_calls(eqn.params["jaxpr"], is_differentiated=True)
        names = [e.params["name"].removeprefix(VALUE) for e in body.jaxpr.eqns if is_named(e)]
        if not names:  # not one that was differentiated as a whole
            return eqn
        owners = dict.fromkeys(range(len(body.jaxpr.eqns)), owner)
        named = self._name_forward(body, owners, self._places[names[0]])
        return eqn.replace(params=eqn.params | {"jaxpr": named})

    def _name(self, var: Var, new: Var, eqn: Eqn, owner: int, place: _Place) -> Eqn:
        name = f"{owner}/{RESIDUAL}{len(self.values)}"
        self.values.append(describe_value(var, name, eqn, *place))
        return jx.new_eqn([var], [new], jx.name_p, {"name": VALUE + name}, set())
