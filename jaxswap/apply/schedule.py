"""Schedule: how does a differentiated step become one that follows its decisions?

Input: a step traced with its values named (`place.py`), and a ledger with the decisions.
Output: the step's new `ClosedJaxpr`, with the same inputs and outputs.

Three passes over the jaxpr: serve every backward pass on demand (`demand.py`, into loops with
`loops.py`), remove what nothing reads any more, pin the order (`order.py`).
"""

from typing import Any

from jaxswap import _compat
from jaxswap.apply import demand, jaxprs, order
from jaxswap.apply.jaxprs import Eqn, jx
from jaxswap.apply.place import SCOPE


def schedule_step(closed: Any, ledger: demand.Ledger) -> Any:
    """Rewrites a traced step as the ledger decides, and checks the result's types."""
    served = jaxprs.remove_dead_code(_serve_all(closed, ledger))
    pinned = order.pin_order(served, ledger)
    final = remove_traces(pinned)
    jx.check_jaxpr(final.jaxpr)
    return final


def _serve_all(closed: Any, ledger: demand.Ledger) -> Any:
    """Serves every backward pass that starts in this jaxpr or in a body inside it."""
    closed = jaxprs.inline_calls(closed)
    has_turn = lambda body: jaxprs.any_equation(body, demand.is_turn)
    eqns = [
        jaxprs.map_bodies(e, lambda body: _serve_all(body, ledger))
        if any(map(has_turn, jaxprs.bodies(e)))
        else e
        for e in closed.jaxpr.eqns
    ]
    jaxpr = jaxprs.with_equations(closed.jaxpr, eqns)
    for index in demand.find_turns(jaxpr):
        jaxpr = _serve_one(jaxpr, index, ledger)
    return jx.ClosedJaxpr(jaxpr, closed.consts)


def _serve_one(jaxpr: Any, index: int, ledger: demand.Ledger) -> Any:
    seeds = {v for e in jaxpr.eqns if demand.is_turn(e, index) for v in e.outvars}
    dependents = demand.find_dependents(jaxpr.eqns, seeds)
    is_backward = [
        any(v in dependents for v in jaxprs.variables(e.invars)) for e in jaxpr.eqns
    ]
    is_forward = [
        not back and not demand.is_turn(e) and _is_in_region(e, index)
        for e, back in zip(jaxpr.eqns, is_backward, strict=True)
    ]
    program = demand.Program(
        arguments=[*jaxpr.constvars, *jaxpr.invars],
        carried=[],
        eqns=list(jaxpr.eqns),
        is_forward=is_forward,
        is_backward=is_backward,
        cotangents=seeds,
        outs=list(jaxpr.outvars),
        backward_outs=[],
        prefix=f"{index}/",
    )
    served = demand.serve(program, ledger)
    new = jaxprs.with_equations(jaxpr, served.eqns, outvars=served.outs)
    return new.replace(debug_info=jaxpr.debug_info)


def _is_in_region(eqn: Eqn, index: int) -> bool:
    scope = f"{SCOPE}{index}"
    stack = eqn.source_info.name_stack.stack
    return any(getattr(element, "name", None) == scope for element in stack)


def remove_traces(closed: Any) -> Any:
    """Takes jaxswap's own marks and scopes out of a program, at every depth."""
    env: jaxprs.Env = {}
    eqns = []
    for eqn in closed.jaxpr.eqns:
        eqn = jaxprs.substitute(eqn, env)
        if eqn.primitive is jx.name_p and eqn.params["name"].startswith("jaxswap:"):
            env[eqn.outvars[0]] = eqn.invars[0]
            continue
        eqn = jaxprs.map_bodies(eqn, remove_traces)
        info = _compat.strip_scopes(eqn.source_info, SCOPE)
        eqns.append(eqn if info is eqn.source_info else eqn.replace(source_info=info))
    outvars = [jaxprs.read(env, v) for v in closed.jaxpr.outvars]
    jaxpr = jaxprs.with_equations(closed.jaxpr, eqns, outvars=outvars)
    return jx.ClosedJaxpr(jaxpr.replace(debug_info=closed.jaxpr.debug_info), closed.consts)
