"""Twice: what if an applied step is differentiated itself?

Input: an applied step, and the step as it is written. Output: the results of the first, of which
any derivative is taken of the second.
JAX 0.10 has no cotangents for copies to host memory, what a step keeps for a derivative of its own
was not planned, and an applied step has no custom derivatives any more. Both are of one trace: when
JAX asks for the derivative, what surrounds the step may be gone.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero, zero_from_primal

from jaxswap import _compat
from jaxswap.apply import jaxprs
from jaxswap.apply.jaxprs import jx


def run_applied(closed: Any, written: Any, arrays: Sequence[Any]) -> list[Any]:
    """Runs an applied step.

    Args:
        closed: its `ClosedJaxpr`.
        written: that of the step as it is written, from the same trace.
        arrays: what to run it on.
    """
    # A rule for derivatives does not know all that steps may have.
    if not _compat.can_have_own_derivative(closed):
        return jx.eval_jaxpr(closed.jaxpr, closed.consts, *arrays)
    (closed, written), captured = _pass_captured([closed, jaxprs.remove_dead_code(written)])
    arrays = [*arrays, *captured]
    is_read, is_made = _find_used([closed.jaxpr, written.jaxpr])

    # What is not read or only passed on stays outside: `jit` has to see that for itself.
    def evaluate(program: Any, xs: Sequence[Any]) -> list[Any]:
        rest = iter(xs)
        inputs = [next(rest) if ok else None for ok in is_read]
        out = jx.eval_jaxpr(program.jaxpr, program.consts, *inputs)
        return [x for ok, x in zip(is_made, out, strict=True) if ok]

    bind_axes = _compat.remember_axis_names()

    @jax.custom_jvp
    def run(*xs: Any) -> Any:
        return evaluate(closed, xs)

    @functools.partial(run.defjvp, symbolic_zeros=True)
    def differentiate(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        with bind_axes():
            return _push_forward(lambda *xs: evaluate(written, xs), primals, tangents)

    results = iter(run(*(x for ok, x in zip(is_read, arrays, strict=True) if ok)))
    known = dict(zip(closed.jaxpr.invars, arrays, strict=True))
    known |= dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    passed = lambda v: v.val if isinstance(v, jx.Literal) else known[v]
    outvars = closed.jaxpr.outvars
    return [next(results) if ok else passed(v) for ok, v in zip(is_made, outvars, strict=True)]


def _pass_captured(programs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Has programs take the tracers they close over as further arguments, and lists these.

    Derivatives are taken with respect to arguments alone, and JAX holds on to the programs.
    """
    tracers = {id(c): c for p in programs for c in p.consts if isinstance(c, Tracer)}
    captured = list(tracers.values())
    return [_pass_consts(p, captured) for p in programs] if captured else list(programs), captured


def _pass_consts(closed: Any, captured: Sequence[Any]) -> Any:
    jaxpr = closed.jaxpr
    inputs = {id(c): jx.Var(jax.typeof(c)) for c in captured}
    pairs = list(zip(jaxpr.constvars, closed.consts, strict=True))
    env = {v: inputs[id(c)] for v, c in pairs if id(c) in inputs}
    own = [(v, c) for v, c in pairs if v not in env]
    passed = jaxprs.with_equations(
        jaxpr,
        [jaxprs.substitute(eqn, env) for eqn in jaxpr.eqns],
        constvars=[v for v, _ in own],
        invars=[*jaxpr.invars, *inputs.values()],
        outvars=[jaxprs.read(env, v) for v in jaxpr.outvars],
    )
    return jx.ClosedJaxpr(passed, [c for _, c in own])


def _find_used(programs: Sequence[Any]) -> tuple[list[bool], list[bool]]:
    """Which inputs are read, and which results are made, by one of two jaxprs or the other."""
    read, made = set(), set()
    for jaxpr in programs:
        results = {v for eqn in jaxpr.eqns for v in eqn.outvars}
        made |= {i for i, v in enumerate(jaxpr.outvars) if _is_in(v, results)}
    for jaxpr in programs:
        used = {v for eqn in jaxpr.eqns for v in jaxprs.variables(eqn.invars)}
        used |= set(jaxprs.variables(jaxpr.outvars[i] for i in made))
        read |= {i for i, v in enumerate(jaxpr.invars) if v in used}
    first = programs[0]
    is_read = [i in read for i in range(len(first.invars))]
    return is_read, [i in made for i in range(len(first.outvars))]


def _is_in(atom: Any, variables: set[Any]) -> bool:
    return not isinstance(atom, jx.Literal) and atom in variables


def _push_forward(
    fn: Callable, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """`jax.jvp` that keeps zeros symbolic, in and out, as JAX does: zero times infinity is NaN."""
    moves = [not isinstance(t, SymbolicZero) for t in tangents]
    moved: set[int] = set()

    def run(*moving: Any) -> list[Any]:
        rest = iter(moving)
        xs = [next(rest) if m else x for m, x in zip(moves, primals, strict=True)]
        return [_notice(y, i, moved) for i, y in enumerate(fn(*xs))]

    pick = lambda xs: tuple(x for m, x in zip(moves, xs, strict=True) if m)
    out, out_tangents = jax.jvp(run, pick(primals), pick(tangents))
    pairs = enumerate(zip(out, out_tangents, strict=True))
    return out, [t if i in moved else zero_from_primal(y, True) for i, (y, t) in pairs]


def _notice(x: Any, index: int, moved: set[int]) -> Any:
    """The identity; adds `index` to `moved` if `x` has a tangent other than a symbolic zero."""

    @jax.custom_jvp
    def same(y: Any) -> Any:
        return y

    @same.defjvp
    def differentiate(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        moved.add(index)  # JAX only calls this rule where there is a tangent
        return *primals, *tangents

    return same(x)
