"""Phases: which pass is each equation of a step part of?

Input: a jaxpr of a step whose differentiated functions are marked (`apply/place.py`). Output:
one phase per equation.
"""

from typing import Any

from jaxswap.apply import jaxprs
from jaxswap.apply import program as marks
from jaxswap.apply.jaxprs import Var
from jaxswap.apply.place import SCOPE
from jaxswap.program.ir import Phase


def classify_phases(jaxpr: Any, caller: Phase | None) -> list[Phase]:
    """Which pass each equation is part of.

    What depends on a turn's cotangent is backward while it is of the differentiated function,
    or leads to such an equation; behind that, it is the update.
    """
    eqns = jaxpr.eqns
    turns = marks.find_turns(jaxpr)
    if not turns:
        return [caller or "update"] * len(eqns)
    seeds = {v for e in eqns if marks.is_turn(e) for v in e.outvars}
    dependents = marks.find_dependents(eqns, seeds)
    phases: list[Phase] = ["update"] * len(eqns)
    needed: set[Var] = set()
    for i in range(len(eqns) - 1, -1, -1):
        eqn = eqns[i]
        is_ours = any(
            getattr(element, "name", "").startswith(SCOPE)
            for element in eqn.source_info.name_stack.stack
        )
        is_dependent = any(v in dependents for v in jaxprs.variables(eqn.invars))
        if not is_dependent:
            phases[i] = "forward" if is_ours else "update"
        elif is_ours or any(v in needed for v in eqn.outvars):
            phases[i] = "backward"
            needed.update(jaxprs.variables(eqn.invars))
    return phases
