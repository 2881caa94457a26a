"""Marks: by which names does one pass tell the next what an equation is?

Input: equations of a step whose differentiated functions are marked (`place.py`). Output: where
backward passes start, and which function an equation is of.
"""

from typing import Any

from jaxswap.apply import jaxprs
from jaxswap.apply.jaxprs import Eqn, jx

VALUE = "jaxswap:value:"
TURN = "jaxswap:turn:"
SCOPE = "jaxswap:region:"
COPY = "jaxswap:copy:"


def is_named(eqn: Eqn) -> bool:
    """Whether an equation names a value that can be decided about."""
    return eqn.primitive is jx.name_p and eqn.params["name"].startswith(VALUE)


def is_turn(eqn: Eqn, index: int | None = None) -> bool:
    """Whether an equation marks where a backward pass starts."""
    if eqn.primitive is not jx.name_p or not eqn.params["name"].startswith(TURN):
        return False
    return index is None or eqn.params["name"] == f"{TURN}{index}"


def find_turns(jaxpr: Any) -> list[int]:
    """The indices of the backward passes that start in this jaxpr, not deeper."""
    names = [e.params["name"] for e in jaxpr.eqns if is_turn(e)]
    return sorted({int(name.removeprefix(TURN)) for name in names})


def find_functions(eqn: Eqn) -> list[int]:
    """The differentiated functions that an equation is of, by the indices of their turns."""
    return [int(name) for name in _find_scopes(eqn, SCOPE)]


def find_copied(jaxpr: Any) -> set[str]:
    """The names of the values that a program copies to host memory, at any depth."""
    found = {name for eqn in jaxpr.eqns for name in _find_scopes(eqn, COPY)}
    return found.union(*(find_copied(b) for eqn in jaxpr.eqns for b in jaxprs.bodies(eqn)))


def _find_scopes(eqn: Eqn, prefix: str) -> list[str]:
    names = (getattr(element, "name", "") for element in eqn.source_info.name_stack.stack)
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
