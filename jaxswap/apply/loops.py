"""Loops: how does a decision reach into a `scan`?

Input: a program with the forward and the backward `scan` of a differentiated loop. Output:
the program with both rewritten.

JAX turns a differentiated loop into two: one forward that stacks residuals, one backward that
reads them. One iteration of each, put in a row, is again a program with a forward and a
backward part, served like any other (`demand.py`), at any depth of loops. What then still
goes from the forward part to the backward part is what gets stacked, in host memory where it
was offloaded (`stacks.py`). A reload may start an iteration early (`prefetch.py`).
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from jaxswap import _compat
from jaxswap.apply import demand, jaxprs
from jaxswap.apply.jaxprs import Atom, Eqn, Var, jx
from jaxswap.apply.prefetch import Prefetched, prefetch
from jaxswap.apply.program import (
    Ledger,
    Part,
    Program,
    Served,
    find_dependents,
    open_program,
)
from jaxswap.apply.stacks import hide_numbers, index_stack


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


def serve_program(program: Program, ledger: Ledger) -> Served:
    """Serves the backward pass of a program, and of the loops in it."""
    names = open_program(program)
    _rewrite_pairs(program, ledger, names)
    return demand.serve(program, ledger, names)


def _rewrite_pairs(program: Program, ledger: Ledger, names: dict[Var, str]) -> None:
    """Rewrites every pair of a forward and a backward scan in a program (in place).

    Args:
        program: its equations are replaced.
        ledger: what is decided.
        names: of the program's values; learns the names of whole stacks that stand for
            values which cannot be offloaded from within their loop.
    """
    dependents = find_dependents(program.eqns, program.cotangents)
    rewritten: dict[int, list[Eqn]] = {}
    for f, b, links in _find_pairs(program):
        forward, backward = _open(program.eqns[f]), _open(program.eqns[b])
        body = _join(forward, backward, links, dependents)
        body.can_offload = not program.is_body and not (
            forward.eqn.params["reverse"] and _compat.misreads_reversed_slices()
        )
        body_names = open_program(body)
        _rewrite_pairs(body, ledger, body_names)
        served = demand.serve(body, ledger, body_names)
        new_forward, new_backward, stacks = _close(forward, backward, links, served, ledger)
        rewritten[f] = [new_forward, *new_backward.early]
        rewritten[b] = [*new_backward.before, new_backward.scan]
        program.saved.update(new_backward.slices)
        if not body.can_offload:
            names |= {stacks[v]: body_names[v] for v in stacks if v in body_names}
    eqns = [(new, part) for i, (eqn, part) in enumerate(program) for new in rewritten.get(i, [eqn])]
    program.update(eqns, {})


def _find_pairs(program: Program) -> list[tuple[int, int, dict[int, int]]]:
    """Positions of scans that hand residuals on, and which: (forward, backward, links).

    A link goes from an input of the backward scan to an output of the forward scan. What
    anything else reads as well is an ordinary result of the loop, not a residual.
    """
    uses = Counter(v for e in program.eqns for v in jaxprs.variables(e.invars))
    uses.update(jaxprs.variables([*program.outs, *program.backward_outs]))
    maker: dict[Var, tuple[int, int]] = {}
    for i, (eqn, part) in enumerate(program):
        if part is Part.FORWARD and eqn.primitive is jx.scan_p:
            first_ys = eqn.params["num_carry"]
            maker.update((v, (i, j)) for j, v in enumerate(eqn.outvars) if j >= first_ys)
    pairs = []
    for b, (eqn, part) in enumerate(program):
        if part is not Part.BACKWARD or eqn.primitive is not jx.scan_p:
            continue
        first_xs = eqn.params["num_consts"] + eqn.params["num_carry"]
        found: dict[int, dict[int, int]] = defaultdict(dict)
        for i, v in enumerate(eqn.invars):
            if i >= first_xs and not isinstance(v, jx.Literal) and uses[v] == 1 and v in maker:
                f, j = maker[v]
                found[f][i] = j
        if found:
            f = max(found, key=lambda f: len(found[f]))
            # A loop that never runs stacks nothing.
            if program.eqns[f].params["length"] == eqn.params["length"] > 0:
                pairs.append((f, b, found[f]))
    first_of = {f: (f, b, links) for f, b, links in reversed(pairs)}
    return list(first_of.values())


def _open(eqn: Eqn) -> _Scan:
    body = jaxprs.inline_calls(eqn.params["jaxpr"], is_differentiated=True)
    constvars, invars, eqns, outs = jaxprs.rename_jaxpr(body)
    return _Scan(
        eqn=eqn, constvars=constvars, consts=body.consts, invars=invars, eqns=eqns, outs=outs
    )


def _join(forward: _Scan, backward: _Scan, links: dict[int, int], dependents: set[Var]) -> Program:
    """One iteration of a forward and a backward scan, put in a row."""
    env = {backward.invars[i]: forward.outs[j] for i, j in links.items()}
    cotangents = _find_cotangents(backward, dependents)
    backward_eqns = [jaxprs.substitute(e, env) for e in backward.eqns]
    # A carry is not the caller's memory: every iteration's has to be kept or offloaded.
    carried = forward.invars[forward.first_carry : forward.first_xs]
    start = [*forward.constvars, *forward.invars, *backward.constvars, *backward.invars]
    return Program(
        arguments=[v for v in start if v not in set(carried)],
        carried=carried,
        eqns=forward.eqns + backward_eqns,
        parts=[Part.FORWARD] * len(forward.eqns) + [Part.BACKWARD] * len(backward_eqns),
        cotangents=cotangents,
        outs=[forward.outs[j] for j in _find_plain(forward, links)],
        backward_outs=[jaxprs.read(env, v) for v in backward.outs],
        prefix="",
        is_body=True,
        is_unrolled=forward.eqn.params["length"] <= forward.eqn.params["unroll"],
    )


def _find_plain(forward: _Scan, links: dict[int, int]) -> list[int]:
    """Positions of the results of a forward scan that are no residuals."""
    return [j for j in range(len(forward.outs)) if j not in links.values()]


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
    forward: _Scan, backward: _Scan, links: dict[int, int], served: Served, ledger: Ledger
) -> tuple[Eqn, Prefetched, dict[Var, Var]]:
    """Takes a served iteration apart again, and stacks what crosses over."""
    sides = list(zip(served.eqns, served.is_backward, strict=True))
    forward_eqns = [eqn for eqn, side in sides if not side]
    backward_eqns = [eqn for eqn, side in sides if side]
    made = {v for eqn in backward_eqns for v in eqn.outvars}
    made |= {*backward.invars, *backward.constvars}
    reads = [v for eqn in backward_eqns for v in jaxprs.variables(eqn.invars)]
    reads += jaxprs.variables(served.backward_outs)
    crossing = [v for v in dict.fromkeys(reads) if v not in made]

    length = forward.eqn.params["length"]
    known = {*forward.invars[: forward.first_carry], *forward.invars[forward.first_xs :]}
    known |= set(forward.constvars)
    stacked = [v for v in crossing if v not in known]
    stacks = {v: jx.Var(jx.unmapped_aval(length, 0, v.aval)) for v in stacked}
    outvars = [forward.eqn.outvars[j] for j in _find_plain(forward, links)]
    new_forward = _build(
        forward, [], forward.invars, [], forward.eqn.invars, forward_eqns,
        [*served.outs, *stacked], [*outvars, *stacks.values()], {},
    )  # fmt: skip
    new_backward = _close_backward(
        forward, backward, links, backward_eqns, served.backward_outs, crossing, stacks, ledger
    )
    return new_forward, new_backward, stacks


def _close_backward(
    forward: _Scan,
    backward: _Scan,
    links: dict[int, int],
    eqns: list[Eqn],
    outs: list[Atom],
    crossing: list[Var],
    stacks: dict[Var, Var],
    ledger: Ledger,
) -> Prefetched:
    """The backward scan, reading what crosses over; and what has to come before it."""
    outer = dict(zip(forward.invars, forward.eqn.invars, strict=True)) | stacks
    closed_over = dict(zip(forward.constvars, forward.consts, strict=True))
    consts = set(forward.invars[: forward.first_carry])
    # Fresh names: the two bodies are separate programs again.
    env = {v: jx.Var(v.aval) for v in crossing}
    on_host = [v for v in stacks if _compat.is_on_host(v.aval)]
    shared = {env[v]: outer[v] for v in crossing if v in consts}
    sliced = {
        env[v]: outer[v]
        for v in crossing
        if v not in consts and v not in closed_over and v not in on_host
    }
    before: list[Eqn] = []
    whole = {v: jx.Var(stacks[v].aval) for v in on_host}
    eqns = [jaxprs.substitute(e, env) for e in eqns]
    if on_host:
        length = forward.eqn.params["length"]
        before, order = hide_numbers(lambda: jnp.arange(length, dtype=jnp.int32))
        index = jx.Var(order.aval.update(shape=()))
        sliced[index] = order
        shared |= {whole[v]: stacks[v] for v in on_host}
        eqns = [e for v in on_host for e in index_stack(whole[v], index, env[v])] + eqns
    own = [i for i in range(len(backward.invars)) if i not in links]
    scan = _build(
        backward, list(shared), [*(backward.invars[i] for i in own), *sliced],
        list(shared.values()), [*(backward.eqn.invars[i] for i in own), *sliced.values()],
        eqns, [jaxprs.read(env, v) for v in outs], backward.eqn.outvars,
        {env[v]: closed_over[v] for v in crossing if v in closed_over},
    )  # fmt: skip
    found = prefetch(scan, {env[v]: whole[v] for v in on_host}, ledger)
    return replace(found, before=before + found.before)


def _build(
    scan: _Scan,
    new_consts: list[Var],
    invars: list[Var],
    new_const_operands: list[Atom],
    operands: list[Atom],
    eqns: list[Eqn],
    outs: list[Atom],
    outvars: list[Var],
    constants: dict[Var, Any],
) -> Eqn:
    """A scan like `scan` with more constants in front, and another body."""
    body = jaxprs.with_equations(
        scan.eqn.params["jaxpr"].jaxpr,
        eqns,
        constvars=[*scan.constvars, *constants],
        invars=[*new_consts, *invars],
        outvars=list(outs),
    )
    closed = jx.ClosedJaxpr(body, [*scan.consts, *constants.values()])
    params = scan.eqn.params | {
        "jaxpr": closed,
        "num_consts": scan.first_carry + len(new_consts),
    }
    invars = [*new_const_operands, *operands]
    return scan.eqn.replace(invars=invars, outvars=list(outvars), params=params)
