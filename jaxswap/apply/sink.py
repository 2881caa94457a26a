"""Sink: what is a loop handed that it could make by itself?

Input: a jaxpr. Output: the same, in which loops spread out small arrays by themselves.
JAX takes out of a loop what is the same in every trip: a mask, say, spread out over batch and
heads. XLA then writes it to memory, keeps it there and reads it in every trip; inside the loop it
is part of the kernel that reads it.
"""

from typing import Any

from jaxswap.apply import jaxprs
from jaxswap.apply.jaxprs import Eqn, Var, jx
from jaxswap.apply.pin import open_twin

# How many times larger than what it is made of a constant of a loop has to be.
_SPREAD = 16


def sink_spreads(closed: Any) -> Any:
    """A program whose loops, at every depth, make by themselves what is spread out for them."""
    jaxpr = closed.jaxpr
    makers = {e.outvars[0]: e for e in map(open_twin, jaxpr.eqns) if _spreads(e)}
    eqns = []
    for eqn in jaxpr.eqns:
        if eqn.primitive is jx.scan_p:
            eqn = _sink(jaxprs.map_bodies(eqn, sink_spreads), makers)
        eqns.append(eqn)
    return jx.ClosedJaxpr(jaxprs.with_equations(jaxpr, eqns), closed.consts)


def _spreads(eqn: Eqn) -> bool:
    if eqn.primitive is not jx.primitives.broadcast_in_dim_p or len(eqn.invars) > 1:
        return False
    source, result = (jaxprs.size_bytes(v.aval) for v in (eqn.invars[0], eqn.outvars[0]))
    return source * _SPREAD <= result


def _sink(scan: Eqn, makers: dict[Var, Eqn]) -> Eqn:
    """A loop that reads what its constants are made of, and makes them."""
    closed, num_consts = scan.params["jaxpr"], scan.params["num_consts"]
    made, sources, inner = [], [], []
    for outer, var in zip(scan.invars[:num_consts], closed.jaxpr.invars, strict=False):
        maker = None if isinstance(outer, jx.Literal) else makers.get(outer)
        if maker is None:
            sources.append(outer)
            inner.append(var)
            continue
        (source,) = maker.invars
        if not isinstance(source, jx.Literal):
            sources.append(source)
            inner.append(jx.Var(source.aval))
            source = inner[-1]
        made.append(maker.replace(invars=[source], outvars=[var]))
    if not made:
        return scan
    body = jaxprs.with_equations(
        closed.jaxpr,
        [*made, *closed.jaxpr.eqns],
        invars=[*inner, *closed.jaxpr.invars[num_consts:]],
    )
    params = {"jaxpr": jx.ClosedJaxpr(body, closed.consts), "num_consts": len(inner)}
    return scan.replace(invars=[*sources, *scan.invars[num_consts:]], params=scan.params | params)
