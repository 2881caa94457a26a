"""Schedule: how does a differentiated step become one that follows its decisions?

Input: a step traced with its values named (`place.py`), and a ledger with the decisions.
Output: the step's new `ClosedJaxpr`, with the same inputs and outputs.

Passes over the jaxpr: serve every backward pass on demand (`demand.py`, into loops with
`loops.py`), remove what nothing reads any more, pin the order (`order.py`), let loops spread out
small arrays by themselves (`sink.py`).
"""

from typing import Any

from jaxswap import _compat
from jaxswap.apply import jaxprs, loops, order
from jaxswap.apply.jaxprs import jx
from jaxswap.apply.marks import COPY, SCOPE, find_copied, find_functions, find_turns, is_turn
from jaxswap.apply.program import Ledger, Part, Program, find_dependents
from jaxswap.apply.sink import sink_spreads


def schedule_step(closed: Any, ledger: Ledger) -> Any:
    """Rewrites a traced step as the ledger decides, and checks the result's types."""
    served = jaxprs.remove_dead_code(_serve_all(closed, ledger))
    pinned = order.pin_order(served, ledger)
    alive = jaxprs.remove_dead_code(sink_spreads(pinned))
    _forget_unread(alive, ledger)
    final = remove_traces(alive)
    jx.check_jaxpr(final.jaxpr)
    return final


def _forget_unread(closed: Any, ledger: Ledger) -> None:
    """Strikes out copies that were dropped: of a branch's inputs, for one, some are for nobody."""
    copied = find_copied(closed.jaxpr)
    ledger.offloaded = [name for name in ledger.offloaded if name in copied]


def _serve_all(closed: Any, ledger: Ledger) -> Any:
    """Serves every backward pass that starts in this jaxpr or in a body inside it."""
    closed = jaxprs.inline_calls(closed, is_differentiated=True)
    has_turn = lambda body: jaxprs.any_equation(body, is_turn)
    eqns = [
        jaxprs.map_bodies(e, lambda body: _serve_all(body, ledger))
        if any(map(has_turn, jaxprs.bodies(e)))
        else e
        for e in closed.jaxpr.eqns
    ]
    jaxpr = jaxprs.with_equations(closed.jaxpr, eqns)
    for index in find_turns(jaxpr):
        jaxpr = _serve_one(jaxpr, index, ledger)
    return jx.ClosedJaxpr(jaxpr, closed.consts)


def _serve_one(jaxpr: Any, index: int, ledger: Ledger) -> Any:
    seeds = {v for e in jaxpr.eqns if is_turn(e, index) for v in e.outvars}
    dependents = find_dependents(jaxpr.eqns, seeds)
    parts = []
    forward = Part.FORWARD
    for eqn in jaxpr.eqns:
        if is_turn(eqn, index):
            forward = Part.LAZY  # zeros and the like, which backward passes start from
        if any(v in dependents for v in jaxprs.variables(eqn.invars)):
            parts.append(Part.BACKWARD)
        elif index in find_functions(eqn) and not is_turn(eqn):
            parts.append(forward)
        else:
            parts.append(Part.OUTSIDE)
    program = Program(
        arguments=[*jaxpr.constvars, *jaxpr.invars],
        carried=[],
        eqns=list(jaxpr.eqns),
        parts=parts,
        cotangents=seeds,
        outs=list(jaxpr.outvars),
        backward_outs=[],
        prefix=f"{index}/",
    )
    served = loops.serve_program(program, ledger)
    new = jaxprs.with_equations(jaxpr, served.eqns, outvars=served.outs)
    return new.replace(debug_info=jaxpr.debug_info)


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
        info = _compat.strip_scopes(eqn.source_info, (SCOPE, COPY))
        eqns.append(eqn if info is eqn.source_info else eqn.replace(source_info=info))
    outvars = [jaxprs.read(env, v) for v in closed.jaxpr.outvars]
    jaxpr = jaxprs.with_equations(closed.jaxpr, eqns, outvars=outvars)
    return jx.ClosedJaxpr(jaxpr.replace(debug_info=closed.jaxpr.debug_info), closed.consts)
