"""Enter: how are calls, checkpoint regions and loops walked?

Input: a `Walk` (`walk.py`) and an equation with a body. Output: the walk, which has been
through that body once.
A loop's body reads its own slice of each array it goes through, hands its carry on to the next
trip in the same memory, and writes what it gives per trip to a stack.
"""

from typing import TYPE_CHECKING, Any

from jaxswap.apply import jaxprs
from jaxswap.apply.jaxprs import Eqn, Var, jx
from jaxswap.model.kernel import KernelCost
from jaxswap.program.graph import LoopSpan
from jaxswap.program.ir import Phase

if TYPE_CHECKING:
    from jaxswap.program.walk import Walk

SLICE, STACK = "dynamic_slice", "stack"


def enter_call(walk: "Walk", closed: Any, eqn: Eqn, env: dict[Var, int], phase: Phase) -> None:
    """Walks a call as if it were written out."""
    jaxpr = closed.jaxpr if isinstance(closed, jx.ClosedJaxpr) else closed
    inner = {v: _new_constant(walk, v) for v in jaxpr.constvars}
    inputs = eqn.invars[len(eqn.invars) - len(jaxpr.invars) :]
    inner |= {v: walk.read(a, env, phase) for v, a in zip(jaxpr.invars, inputs, strict=True)}
    walk.run(jaxpr, inner, phase)
    for target, result in zip(eqn.outvars, jaxpr.outvars, strict=True):
        env[target] = walk.read(result, inner, phase)


def _new_constant(walk: "Walk", var: Var) -> int:
    """An array that the step closes over: there from the start, like an argument."""
    return walk.new_array(var.aval, is_argument=True)


def enter_region(walk: "Walk", eqn: Eqn, env: dict[Var, int], phase: Phase) -> None:
    """Walks a `jax.checkpoint` region; what it recomputes is not merged with the first."""
    outer = walk.guard
    if eqn.params.get("prevent_cse") and eqn.params.get("differentiated"):
        walk.guard = len(walk.graph.nodes)
        for v in jaxprs.variables(eqn.invars):
            walk.graph.arrays[env[v]].must_exist = True
    enter_call(walk, eqn.params["jaxpr"], eqn, env, phase)
    walk.guard = outer


def enter_scan(walk: "Walk", eqn: Eqn, env: dict[Var, int], phase: Phase) -> None:
    """Walks a loop's body once: it reads slices, and stacks what it gives per trip."""
    params, body = eqn.params, eqn.params["jaxpr"]
    first_carry, num_carry = params["num_consts"], params["num_carry"]
    first_xs = first_carry + num_carry
    outer, trips = walk.loop, params["length"]
    arrays = walk.graph.arrays
    inputs = [walk.read(a, env, phase) for a in eqn.invars]
    _fill_stacks(walk, eqn, phase)
    walk.graph.loops.append(LoopSpan(trips=trips, parent=outer, first=len(walk.graph.nodes)))
    walk.loop = loop = len(walk.graph.loops) - 1
    # XLA counts the trips with a kernel of its own.
    walk.add_node("counter", "opaque", phase, (), (), KernelCost(size_bytes=8.0))
    inner = {v: _new_constant(walk, v) for v in body.jaxpr.constvars}
    for k, var in enumerate(body.jaxpr.invars):
        if k < first_carry:
            inner[var] = inputs[k]
        elif k < first_xs:
            inner[var] = walk.new_array(var.aval, must_exist=True)
            arrays[inputs[k]].must_exist = True
        else:
            inner[var] = _take_slice(walk, inputs[k], var.aval, trips, phase)
    walk.run(body.jaxpr, inner, phase)
    results = [walk.read(a, inner, phase) for a in body.jaxpr.outvars]
    carried = body.jaxpr.invars[first_carry:first_xs]
    for var, result, target in zip(carried, results, eqn.outvars, strict=False):
        env[target] = _hand_on(walk, inner[var], result, phase)
    for result, target in zip(results[num_carry:], eqn.outvars[num_carry:], strict=True):
        env[target] = _stack(walk, result, phase)
    walk.graph.loops[loop].end = len(walk.graph.nodes)
    walk.loop = outer


def _fill_stacks(walk: "Walk", eqn: Eqn, phase: Phase) -> None:
    """XLA sets what a loop will stack to zero first."""
    stacked = eqn.outvars[eqn.params["num_carry"] :]
    size_bytes = sum(jaxprs.size_bytes(v.aval) for v in stacked)
    if size_bytes:
        walk.add_node("fill", "opaque", phase, (), (), KernelCost(size_bytes=size_bytes))


def _take_slice(walk: "Walk", array: int, aval: Any, trips: int, phase: Phase) -> int:
    """A trip's own slice of an array."""
    is_stack = walk.graph.arrays[array].is_stacked
    share = 1.0 if is_stack else 1.0 / trips
    walk.graph.arrays[array].must_exist = True
    return walk.add_node(SLICE, "map", phase, [(array, share)], [aval], KernelCost())[0]


def _hand_on(walk: "Walk", before: int, after: int, phase: Phase) -> int:
    """What the next trip reads; unchanged and shared values are copied."""
    array = walk.graph.arrays[after]
    is_own = array.producer is not None and walk.graph.nodes[array.producer].loop == walk.loop
    if after == before:
        return before
    if not is_own or after in walk.graph.carries.values():
        after = _copy(walk, after, "copy", phase)
    walk.graph.arrays[after].must_exist = True
    walk.graph.carries[before] = after
    return after


def _copy(walk: "Walk", array: int, name: str, phase: Phase) -> int:
    """A copy of an array, made in the loop that is being walked."""
    source = walk.graph.arrays[array]
    new = walk.add_node(name, "map", phase, [(array, 1.0)], [None], KernelCost())[0]
    target = walk.graph.arrays[new]
    target.shape, target.dtype, target.size_bytes = source.shape, source.dtype, source.size_bytes
    return new


def _stack(walk: "Walk", array: int, phase: Phase) -> int:
    """What a loop gives per trip, all trips in a row."""
    key = ("stacked", array, walk.loop)
    if key in walk.merged:
        return walk.merged[key][0]
    new = _copy(walk, array, STACK, phase)
    walk.merged[key] = [new]
    target = walk.graph.arrays[new]
    target.is_stacked = target.must_exist = True
    target.stands_for = array
    return new


def body_of(eqn: Eqn) -> Any:
    """The jaxpr that a call of any kind calls."""
    for key in ("call_jaxpr", "jaxpr", "fun_jaxpr"):
        if key in eqn.params:
            return eqn.params[key]
    return jaxprs.bodies(eqn)[0]
