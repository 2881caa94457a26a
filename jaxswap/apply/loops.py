"""Loops: how does a decision reach into a `scan`?

Input: a program with the forward and the backward `scan` of a differentiated loop. Output:
the program with both rewritten.

JAX turns a differentiated loop into two: one forward that stacks residuals, one backward that
reads them. One iteration of each, put in a row, is again a program with a forward and a
backward part, served like any other (`demand.py`), at any depth of loops. What then still
goes from the forward part to the backward part is what gets stacked, in host memory where it
was offloaded.
"""

from dataclasses import dataclass
from typing import Any

from jaxswap.apply import demand, jaxprs
from jaxswap.apply.jaxprs import Atom, Eqn, Var, jx
from jaxswap.apply.program import (
    Ledger,
    Part,
    Program,
    Served,
    find_dependents,
    open_program,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    """A scan's parts: constants, carry and per-iteration arrays, inside and outside."""

    eqn: Eqn
    constvars: list[Var]
    consts: list[Any]
    invars: list[Var]
    eqns: list[Eqn]
    outs: list[Atom]

    @property
    def first_carry(self) -> int:
        return self.eqn.params["num_consts"]

    @property
    def first_xs(self) -> int:
        return self.first_carry + self.eqn.params["num_carry"]

    @property
    def num_carry(self) -> int:
        return self.eqn.params["num_carry"]


def serve_program(program: Program, ledger: Ledger) -> Served:
    """Serves the backward pass of a program, and of the loops in it."""
    names = open_program(program)
    rewrite_pairs(program, ledger)
    return demand.serve(program, ledger, names)


def rewrite_pairs(program: Program, ledger: Ledger) -> None:
    """Rewrites every pair of a forward and a backward scan in a program (in place)."""
    dependents = find_dependents(program.eqns, program.cotangents)
    for f, b in _find_pairs(program):
        forward, backward = program.eqns[f], program.eqns[b]
        linked = _find_links(program, f, b)
        if linked:
            program.eqns[f], program.eqns[b] = _rewrite_pair(
                forward, backward, linked, dependents, ledger
            )


def _find_pairs(program: Program) -> list[tuple[int, int]]:
    """Positions of scans that hand residuals on: (forward, backward), each at most once."""
    maker: dict[Var, int] = {}
    for i, (eqn, part) in enumerate(program):
        if part is Part.FORWARD and eqn.primitive is jx.scan_p:
            maker.update((v, i) for v in eqn.outvars[eqn.params["num_carry"] :])
    pairs: dict[int, int] = {}
    for i, (eqn, part) in enumerate(program):
        if part is not Part.BACKWARD or eqn.primitive is not jx.scan_p:
            continue
        first_xs = eqn.params["num_consts"] + eqn.params["num_carry"]
        makers = {maker[v] for v in jaxprs.variables(eqn.invars[first_xs:]) if v in maker}
        for f in sorted(makers - pairs.keys()):
            if program.eqns[f].params["length"] == eqn.params["length"]:
                pairs[f] = i
                break
    return sorted(pairs.items())


def _find_links(program: Program, f: int, b: int) -> dict[int, int]:
    """Which inputs of the backward scan are residuals: its input → the forward's output.

    A residual that anything else reads as well is an ordinary result of the loop.
    """
    forward, backward = program.eqns[f], program.eqns[b]
    outputs = {v: j for j, v in enumerate(forward.outvars) if j >= forward.params["num_carry"]}
    elsewhere: set[Var] = set(jaxprs.variables([*program.outs, *program.backward_outs]))
    for i, eqn in enumerate(program.eqns):
        if i != b:
            elsewhere.update(jaxprs.variables(eqn.invars))
    first_xs = backward.params["num_consts"] + backward.params["num_carry"]
    elsewhere.update(jaxprs.variables(backward.invars[:first_xs]))
    links = {}
    for i, v in enumerate(backward.invars):
        if i >= first_xs and not isinstance(v, jx.Literal):
            if v in outputs and v not in elsewhere:
                links[i] = outputs[v]
    return links


def _open(eqn: Eqn) -> _Scan:
    body = jaxprs.inline_calls(eqn.params["jaxpr"], is_differentiated=True)
    constvars, invars, eqns, outs = jaxprs.rename_jaxpr(body)
    return _Scan(
        eqn=eqn, constvars=constvars, consts=body.consts, invars=invars, eqns=eqns, outs=outs
    )


def _rewrite_pair(
    forward_eqn: Eqn,
    backward_eqn: Eqn,
    links: dict[int, int],
    dependents: set[Var],
    ledger: Ledger,
) -> tuple[Eqn, Eqn]:
    forward, backward = _open(forward_eqn), _open(backward_eqn)
    env = {backward.invars[i]: forward.outs[j] for i, j in links.items()}
    cotangents = _find_cotangents(backward, dependents)
    plain = [j for j in range(len(forward.outs)) if j not in links.values()]
    backward_eqns = [jaxprs.substitute(e, env) for e in backward.eqns]
    # A carry is not the caller's memory: every iteration's has to be kept or offloaded.
    carried = forward.invars[forward.first_carry : forward.first_xs]
    start = [*forward.constvars, *forward.invars, *backward.constvars, *backward.invars]
    program = Program(
        arguments=[v for v in start if v not in set(carried)],
        carried=carried,
        eqns=forward.eqns + backward_eqns,
        parts=[Part.FORWARD] * len(forward.eqns) + [Part.BACKWARD] * len(backward_eqns),
        cotangents=cotangents,
        outs=[forward.outs[j] for j in plain],
        backward_outs=[jaxprs.read(env, v) for v in backward.outs],
        prefix="",
        is_body=True,
    )
    return _close(forward, backward, links, plain, serve_program(program, ledger))


def _find_cotangents(backward: _Scan, dependents: set[Var]) -> set[Var]:
    """The inputs of a backward body that are cotangents: given as such, or carried as such."""
    found = {
        inner
        for inner, outer in zip(backward.invars, backward.eqn.invars, strict=True)
        if not isinstance(outer, jx.Literal) and outer in dependents
    }
    carry = backward.invars[backward.first_carry : backward.first_xs]
    while True:
        reached = find_dependents(backward.eqns, found)
        more = {
            v
            for v, out in zip(carry, backward.outs, strict=False)
            if not isinstance(out, jx.Literal) and out in reached and v not in found
        }
        if not more:
            return found
        found |= more


def _close(
    forward: _Scan,
    backward: _Scan,
    links: dict[int, int],
    plain: list[int],
    served: Served,
) -> tuple[Eqn, Eqn]:
    """Takes a served iteration apart again, and stacks what crosses over."""
    sides = list(zip(served.eqns, served.is_backward, strict=True))
    forward_eqns = [eqn for eqn, side in sides if not side]
    backward_eqns = [eqn for eqn, side in sides if side]
    made = {v for eqn in backward_eqns for v in eqn.outvars} | set(backward.invars)
    made |= set(backward.constvars)
    reads = [v for eqn in backward_eqns for v in jaxprs.variables(eqn.invars)]
    reads += jaxprs.variables(served.backward_outs)
    crossing = [v for v in dict.fromkeys(reads) if v not in made]

    outer = dict(zip(forward.invars, forward.eqn.invars, strict=True))
    length = forward.eqn.params["length"]
    consts = set(forward.invars[: forward.first_carry])
    xs = set(forward.invars[forward.first_xs :])
    shared = [v for v in crossing if v in consts]
    closed_over = [v for v in crossing if v in set(forward.constvars)]
    sliced = [v for v in crossing if v in xs]
    stacked = [v for v in crossing if v not in consts | xs | set(forward.constvars)]
    stacks = [jx.Var(jx.unmapped_aval(length, 0, v.aval)) for v in stacked]

    outvars = [forward.eqn.outvars[j] for j in plain] + stacks
    new_forward = _build(
        forward, forward.invars, forward.eqn.invars, forward_eqns,
        [*served.outs, *stacked], outvars, forward.first_carry, {},
    )  # fmt: skip
    b, first_carry, first_xs = backward, backward.first_carry, backward.first_xs
    own_xs = [i for i in range(first_xs, len(b.invars)) if i not in links]
    # Fresh names: the two bodies are separate programs again.
    env = {v: jx.Var(v.aval) for v in (*shared, *sliced, *stacked, *closed_over)}
    invars = [
        *b.invars[:first_carry], *(env[v] for v in shared),
        *b.invars[first_carry:first_xs],
        *(b.invars[i] for i in own_xs), *(env[v] for v in (*sliced, *stacked)),
    ]  # fmt: skip
    operands = [
        *b.eqn.invars[:first_carry], *(outer[v] for v in shared),
        *b.eqn.invars[first_carry:first_xs],
        *(b.eqn.invars[i] for i in own_xs), *(outer[v] for v in sliced), *stacks,
    ]  # fmt: skip
    values = dict(zip(forward.constvars, forward.consts, strict=True))
    constants = {env[v]: values[v] for v in closed_over}
    backward_eqns = [jaxprs.substitute(e, env) for e in backward_eqns]
    outs = [jaxprs.read(env, v) for v in served.backward_outs]
    new_backward = _build(
        backward, invars, operands, backward_eqns, outs, b.eqn.outvars,
        first_carry + len(shared), constants,
    )  # fmt: skip
    return new_forward, new_backward


def _build(
    scan: _Scan,
    invars: list[Var],
    operands: list[Atom],
    eqns: list[Eqn],
    outs: list[Atom],
    outvars: list[Var],
    num_consts: int,
    constants: dict[Var, Any],
) -> Eqn:
    body = jaxprs.with_equations(
        scan.eqn.params["jaxpr"].jaxpr,
        eqns,
        constvars=[*scan.constvars, *constants],
        invars=list(invars),
        outvars=list(outs),
    )
    closed = jx.ClosedJaxpr(body, [*scan.consts, *constants.values()])
    params = scan.eqn.params | {"jaxpr": closed, "num_consts": num_consts}
    return scan.eqn.replace(invars=list(operands), outvars=list(outvars), params=params)
