"""Phases: which pass is each equation of a step part of?

Input: a jaxpr of a step whose differentiated functions are marked (`apply/place.py`). Output:
one phase per equation.
"""

from collections.abc import Sequence
from typing import Any

from jaxswap.apply import jaxprs, marks
from jaxswap.apply.jaxprs import Eqn, Var
from jaxswap.apply.program import find_dependents
from jaxswap.program.ir import Phase


def classify_phases(jaxpr: Any, caller: Phase | None) -> list[Phase]:
    """Which pass each equation is part of.

    What depends on a turn's cotangent is backward while it is of the function that is
    differentiated there, or leads to such an equation; behind that, it is the update, or the
    forward pass of another function, whose gradient is taken where this one's has led to.
    """
    eqns = jaxpr.eqns
    turns = marks.find_turns(jaxpr)
    if not turns:
        return [caller or "update"] * len(eqns)
    dependents = {k: find_dependents(eqns, _find_seeds(eqns, k)) for k in turns}
    needed: dict[int, set[Var]] = {k: set() for k in turns}
    phases: list[Phase] = ["update"] * len(eqns)
    for i in range(len(eqns) - 1, -1, -1):
        eqn, inputs = eqns[i], jaxprs.variables(eqns[i].invars)
        scopes = set(marks.find_functions(eqn))
        behind = [k for k in turns if any(v in dependents[k] for v in inputs)]
        # What is only of a function around this jaxpr is of all turns in it.
        own = [k for k in behind if k in scopes or (scopes and scopes.isdisjoint(turns))]
        leading = [k for k in behind if any(v in needed[k] for v in eqn.outvars)]
        if own or leading:
            phases[i] = "backward"
            for k in {*own, *leading}:
                needed[k].update(inputs)
        elif scopes:
            phases[i] = "forward"
    return phases


def _find_seeds(eqns: Sequence[Eqn], index: int) -> set[Var]:
    return {v for e in eqns if marks.is_turn(e, index) for v in e.outvars}
