"""Values: what can be done with a value, and how is it told from others?

Input: a variable and the equation that makes it. Output: a `NamedValue`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxswap.apply import jaxprs
from jaxswap.apply.decision import Action, NamedValue
from jaxswap.apply.jaxprs import Eqn, Var, jx


def is_nameable(var: Var) -> bool:
    """Whether anything can be decided about a value of this type."""
    if isinstance(var, jx.DropVar) or type(var.aval) is not jx.ShapedArray:
        return False
    dtype = var.aval.dtype
    return dtype != jax.dtypes.float0 and 0 not in var.aval.shape


def can_recompute(eqn: Eqn) -> bool:
    """Whether running an equation twice is safe, and not a loop run twice."""
    if eqn.effects or eqn.primitive in (jx.scan_p, jx.while_p):
        return False
    return all(can_recompute(inner) for body in jaxprs.bodies(eqn) for inner in body.eqns)


def can_offload(aval: Any) -> bool:
    """Whether a value of this type can be in host memory: not so random keys."""
    return not jnp.issubdtype(aval.dtype, jax.dtypes.extended)


def describe_value(
    var: Var, name: str, eqn: Eqn | None, scope: tuple[str, ...], length: int
) -> NamedValue:
    """What is to be known about a value that an equation makes, or that is an input."""
    aval = var.aval
    actions: list[Action] = ["keep"]
    if can_offload(aval):
        actions.append("offload")
    if eqn is not None and can_recompute(eqn):
        actions.append("recompute")
    frame = jx.user_frame(eqn.source_info.traceback) if eqn is not None else None
    return NamedValue(
        name=name,
        shape=tuple(aval.shape),
        dtype=str(aval.dtype),
        size_bytes=jaxprs.size_bytes(aval),
        primitive="input" if eqn is None else eqn.primitive.name,
        source=f"{frame.file_name}:{frame.start_line}" if frame else "",
        module_path=str(eqn.source_info.name_stack) if eqn is not None else "",
        user_name=None,
        scope=scope,
        length=length,
        actions=tuple(actions),
    )
