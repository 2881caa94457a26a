"""Prefetch: how does a reload start in the iteration before the one that needs it?

Input: the backward `scan` of a loop, which reads slices of stacks in host memory, and the
reload distances. Output: the same scan with those reloads carried over, whose distance reaches
back beyond the start of an iteration.

XLA cannot have a copy under way from one iteration to the next: it starts and ends within one
run of the loop's body. So the iteration before reloads the slice, next to its own work, and
hands it on in a carry; the first slice is reloaded ahead of the loop. That is one slice more
on the device, from the start of its reload to the end of the iteration.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp

from jaxswap import _compat
from jaxswap.apply import jaxprs
from jaxswap.apply.heavy import is_heavy
from jaxswap.apply.jaxprs import Eqn, Var, jx
from jaxswap.apply.pin import is_barrier, new_pin
from jaxswap.apply.program import Ledger
from jaxswap.apply.stacks import hide_numbers, index_stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetched:
    """A backward scan with reloads carried over.

    Attributes:
        early: equations for right behind the forward scan: where the first slices are.
        slices: the first slices there, in host memory.
        before: equations for in front of the backward scan.
        scan: the scan.
    """

    early: list[Eqn]
    slices: list[Var]
    before: list[Eqn]
    scan: Eqn


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reload:
    """A reload of a body that has to start in the iteration before.

    Attributes:
        eqn: the copy to the device.
        host: the slice in host memory that it copies.
        start: the heavy op of the body in front of which it starts.
        missing_ops: how many heavy ops ahead of the loop the first one starts.
    """

    eqn: Eqn
    host: Var
    start: int
    missing_ops: int


def prefetch(scan: Eqn, stack_of: Mapping[Var, Var], ledger: Ledger) -> Prefetched:
    """Lets the reloads of a backward scan start an iteration earlier, where they are to.

    Args:
        scan: the backward scan.
        stack_of: of each slice in host memory that its body reads, the stack, as the body
            knows it: both are variables of the body.
        ledger: has the reloads, and learns of the new ones.
    """
    body, length = scan.params["jaxpr"].jaxpr, scan.params["length"]
    reloads = _find_reloads(body.eqns, stack_of, ledger) if length > 1 else []
    if not reloads:
        return Prefetched(early=[], slices=[], before=[], scan=scan)
    is_reversed = scan.params["reverse"]
    before, indices = hide_numbers(lambda: _follow(length, is_reversed))
    first_index, first = hide_numbers(lambda: jnp.int32(length - 1 if is_reversed else 0))
    outer = dict(zip(body.invars, scan.invars, strict=True))
    early, slices, starts = first_index, [], []
    for reload in reloads:
        host = jx.Var(reload.host.aval)
        early += index_stack(outer[stack_of[reload.host]], first, host)
        copies, start = _copy_back(host, reload, ledger, ahead_ops=reload.missing_ops)
        slices.append(host)
        before += copies
        starts.append(start)
    return Prefetched(
        early=early,
        slices=slices,
        before=before,
        scan=_carry_over(scan, reloads, stack_of, indices, starts, ledger),
    )


def _follow(length: int, is_reversed: bool):
    """The number of the iteration behind each; there is none behind the last."""
    numbers = jnp.arange(length, dtype=jnp.int32)
    return jnp.maximum(numbers - 1, 0) if is_reversed else jnp.minimum(numbers + 1, length - 1)


def _find_reloads(
    eqns: Sequence[Eqn], stack_of: Mapping[Var, Var], ledger: Ledger
) -> list[_Reload]:
    """The first reload of each slice, where it should have started before the iteration."""
    heavy = [is_heavy(e, ledger.min_heavy_bytes) for e in eqns]
    gated = {e.outvars[0]: e.invars[0] for e in eqns if is_barrier(e)}
    found: dict[Var, _Reload] = {}
    num_heavy = 0
    for eqn, is_heavy_op in zip(eqns, heavy, strict=True):
        num_heavy += is_heavy_op
        decision = ledger.reloads.get(eqn.outvars[0]) if eqn.outvars else None
        host = gated.get(eqn.invars[0]) if decision is not None else None
        if decision is None or host not in stack_of or host in found:
            continue
        missing_ops = decision.reload_ahead_ops - num_heavy
        if missing_ops > 0:
            start = max(sum(heavy) - missing_ops, 0)
            found[host] = _Reload(eqn=eqn, host=host, start=start, missing_ops=missing_ops)
    return list(found.values())


def _copy_back(
    host: Var, reload: _Reload, ledger: Ledger, *, ahead_ops: int
) -> tuple[list[Eqn], Var]:
    """A gate and a reload of `host`, which starts `ahead_ops` heavy ops ahead of its place."""
    gated = jx.Var(host.aval)
    gate = new_pin([host], [gated])
    copy = _compat.new_copy_eqn(gated, to_host=False)
    (result,) = copy.outvars
    decision = ledger.reloads[reload.eqn.outvars[0]]
    ledger.reloads[result] = dataclasses.replace(decision, reload_ahead_ops=ahead_ops)
    return [gate, copy], result


def _carry_over(
    scan: Eqn,
    reloads: Sequence[_Reload],
    stack_of: Mapping[Var, Var],
    indices: Var,
    starts: Sequence[Var],
    ledger: Ledger,
) -> Eqn:
    """The scan with a carry for every reload: the slice of this iteration, and of the next."""
    closed, params = scan.params["jaxpr"], scan.params
    body, num_carry = closed.jaxpr, params["num_carry"]
    index = jx.Var(indices.aval.update(shape=()))
    carried = [jx.Var(r.eqn.outvars[0].aval) for r in reloads]
    env = {r.eqn.outvars[0]: v for r, v in zip(reloads, carried, strict=True)}
    eqns: list[Eqn] = []
    copies: list[tuple[int, list[Eqn]]] = []
    handed_on: list[Var] = []
    for reload in reloads:
        host = jx.Var(reload.host.aval)
        eqns += index_stack(stack_of[reload.host], index, host)
        copied, result = _copy_back(host, reload, ledger, ahead_ops=0)
        copies.append((reload.start, copied))
        handed_on.append(result)
    # What read the slices before is left behind, for `remove_dead_code`.
    replaced = {id(r.eqn) for r in reloads}
    num_heavy = 0
    for eqn in body.eqns:
        if is_heavy(eqn, ledger.min_heavy_bytes):
            eqns += [e for start, copied in copies if start == num_heavy for e in copied]
            num_heavy += 1
        if id(eqn) not in replaced:
            eqns.append(jaxprs.substitute(eqn, env))
    eqns += [e for start, copied in copies if start >= num_heavy for e in copied]
    outs = [jaxprs.read(env, v) for v in body.outvars]
    first_xs = params["num_consts"] + num_carry
    new_body = jaxprs.with_equations(
        body,
        eqns,
        invars=[*body.invars[:first_xs], *carried, *body.invars[first_xs:], index],
        outvars=[*outs[:num_carry], *handed_on, *outs[num_carry:]],
    )
    unread = [jx.DropVar(v.aval) for v in carried]
    return scan.replace(
        invars=[*scan.invars[:first_xs], *starts, *scan.invars[first_xs:], indices],
        outvars=[*scan.outvars[:num_carry], *unread, *scan.outvars[num_carry:]],
        params=params
        | {"jaxpr": jx.ClosedJaxpr(new_body, closed.consts), "num_carry": num_carry + len(carried)},
    )
