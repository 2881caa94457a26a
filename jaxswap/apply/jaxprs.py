"""Jaxprs as data: how are equations renamed, inlined, cloned and cleaned up?

Input: jaxprs. Output: new jaxprs; nothing is changed in place.
Programs here are lists of equations in execution order. An environment maps a variable to
the atom (variable or literal) that stands for it from now on.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from jaxswap import _compat

jx = _compat.jaxpr_api()

Var = Any
Atom = Any
Eqn = Any
Env = dict[Var, Atom]


def read(env: Env, atom: Atom) -> Atom:
    """What stands for `atom`: itself, unless the environment says otherwise."""
    return atom if isinstance(atom, jx.Literal) else env.get(atom, atom)


def variables(atoms: Iterable[Atom]) -> list[Var]:
    """The atoms that are not literals."""
    return [a for a in atoms if not isinstance(a, jx.Literal)]


def size_bytes(aval: Any) -> int:
    """Bytes of an array of this type; 0 for what is not an array, or has no fixed size."""
    dtype, shape = getattr(aval, "dtype", None), getattr(aval, "shape", None)
    if shape is None or not all(isinstance(n, int) for n in shape):
        return 0
    return math.prod(shape) * getattr(dtype, "itemsize", 0)


def substitute(eqn: Eqn, env: Env) -> Eqn:
    """The same equation, reading what stands for its inputs."""
    if not any(v in env for v in variables(eqn.invars)):
        return eqn
    effects = _compat.rename_effects(eqn.effects, lambda v: read(env, v))
    return eqn.replace(invars=[read(env, v) for v in eqn.invars], effects=effects)


def fresh(var: Var) -> Var:
    """A new variable of the same type; an unused result stays unused."""
    return var if isinstance(var, jx.DropVar) else jx.Var(var.aval)


def clone(eqn: Eqn, env: Env) -> Eqn:
    """The same equation with new results, which the environment learns."""
    outvars = [fresh(v) for v in eqn.outvars]
    copied = substitute(eqn, env).replace(outvars=outvars)
    env.update(zip(eqn.outvars, outvars, strict=True))
    return copied


def with_equations(jaxpr: Any, eqns: Sequence[Eqn], **changes: Any) -> Any:
    """A jaxpr with other equations (and other variables), its effects worked out anew."""
    parts = {"constvars": jaxpr.constvars, "invars": jaxpr.invars, "outvars": jaxpr.outvars}
    parts |= changes
    effects = jx.jaxpr_effects(parts["constvars"], parts["invars"], parts["outvars"], eqns)
    debug_info = jaxpr.debug_info.with_unknown_names() if changes else jaxpr.debug_info
    return jaxpr.replace(eqns=list(eqns), effects=effects, debug_info=debug_info, **parts)


def inline_calls(closed: Any, *, is_differentiated: bool = False) -> Any:
    """Replaces calls (`jit` and its kin) by what they call, at every depth of calls.

    Calls that carry shardings or layouts mean something by themselves, and stay. Functions
    with custom derivatives stay until the program is differentiated. Bodies of loops and
    branches are not entered.
    """
    jaxpr = closed.jaxpr
    constvars, consts = list(jaxpr.constvars), list(closed.consts)
    eqns: list[Eqn] = []

    def run(inner: Any, env: Env, stack: Any, is_copy: bool) -> None:
        for eqn in inner.eqns:
            called = _compat.called_jaxpr(eqn, is_differentiated=is_differentiated)
            if called is None:
                eqn = clone(eqn, env) if is_copy else substitute(eqn, env)
                eqns.append(_under(eqn, stack))
                continue
            inner_env: Env = {}
            for var, const in zip(called.jaxpr.constvars, called.consts, strict=True):
                inner_env[var] = jx.Var(var.aval)
                constvars.append(inner_env[var])
                consts.append(const)
            inputs = [read(env, v) for v in eqn.invars]
            inner_env.update(zip(called.jaxpr.invars, inputs, strict=True))
            inner_stack = eqn.source_info.name_stack
            run(
                called.jaxpr, inner_env, inner_stack if stack is None else stack + inner_stack, True
            )
            results = [read(inner_env, v) for v in called.jaxpr.outvars]
            env.update(zip(eqn.outvars, results, strict=True))

    env: Env = {}
    run(jaxpr, env, None, False)
    outvars = [read(env, v) for v in jaxpr.outvars]
    new = with_equations(jaxpr, eqns, constvars=constvars, outvars=outvars)
    return jx.ClosedJaxpr(new.replace(debug_info=jaxpr.debug_info), consts)


def _under(eqn: Eqn, stack: Any) -> Eqn:
    if stack is None:
        return eqn
    info = eqn.source_info
    return eqn.replace(source_info=info.replace(name_stack=stack + info.name_stack))


def trace_instead(eqn: Eqn, fn: Callable) -> list[Eqn] | None:
    """The equations of a function of what `eqn` reads, which make what it makes.

    None where the result is not of the same type, or where types say which part of an array is
    on which device: inside `shard_map`, and on a mesh with explicit axes.
    """
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    closed = inline_calls(jax.make_jaxpr(fn)(*shapes))
    (result,) = eqn.outvars
    is_free = all(_compat.is_placed_freely(v.aval) for v in (*eqn.invars, result))
    type_of = lambda v: (v.aval.shape, v.aval.dtype, v.aval.weak_type)
    if (
        closed.consts
        or not is_free
        or list(map(type_of, closed.jaxpr.outvars)) != [type_of(result)]
    ):
        return None
    _, invars, eqns, (out,) = rename_jaxpr(closed)
    env: Env = dict(zip(invars, eqn.invars, strict=True)) | {out: result}
    return [
        substitute(e, env).replace(
            outvars=[env.get(v, v) for v in e.outvars], source_info=eqn.source_info
        )
        for e in eqns
    ]


def rename_jaxpr(closed: Any) -> tuple[list[Var], list[Var], list[Eqn], list[Atom]]:
    """A copy whose every variable is new: its constvars, invars, equations and outvars."""
    jaxpr, env = closed.jaxpr, {}
    for v in (*jaxpr.constvars, *jaxpr.invars):
        env[v] = jx.Var(v.aval)
    eqns = [clone(eqn, env) for eqn in jaxpr.eqns]
    return (
        [env[v] for v in jaxpr.constvars],
        [env[v] for v in jaxpr.invars],
        eqns,
        [read(env, v) for v in jaxpr.outvars],
    )


def remove_dead_code(closed: Any) -> Any:
    """Drops equations that nothing reads and that have no side effects; inputs stay."""
    jaxpr, num_consts = closed.jaxpr, len(closed.jaxpr.constvars)
    open_ = jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *jaxpr.invars],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    alive, _ = jx.dce_jaxpr(open_, [True] * len(jaxpr.outvars), True)
    alive = alive.replace(
        constvars=alive.invars[:num_consts],
        invars=alive.invars[num_consts:],
        debug_info=jaxpr.debug_info,
    )
    return jx.ClosedJaxpr(alive, closed.consts)


def write_out_constants(closed: Any) -> Any:
    """The open jaxpr of a program, with its constants written where they are read."""
    jaxpr = closed.jaxpr
    if not closed.consts:
        return jaxpr
    env: Env = {
        var: jx.Literal(value, var.aval)
        for var, value in zip(jaxpr.constvars, closed.consts, strict=True)
    }
    eqns = [substitute(eqn, env) for eqn in jaxpr.eqns]
    outvars = [read(env, v) for v in jaxpr.outvars]
    return with_equations(jaxpr, eqns, constvars=[], outvars=outvars)


def map_bodies(eqn: Eqn, change: Callable[[Any], Any]) -> Eqn:
    """Rewrites every jaxpr in an equation's parameters (`change` takes a `ClosedJaxpr`)."""

    def visit(param: Any) -> Any:
        if isinstance(param, jx.ClosedJaxpr):
            return change(param)
        if isinstance(param, jx.Jaxpr) and not param.constvars:
            opened = jx.ClosedJaxpr(param, ())
            changed = change(opened)
            return param if changed is opened else write_out_constants(changed)
        if isinstance(param, tuple | list) and _has_jaxpr(param):
            # A linear solve has its jaxprs in a named tuple, which takes its parts one by one.
            parts = [visit(p) for p in param]
            if all(new is old for new, old in zip(parts, param, strict=True)):
                return param
            return getattr(param, "_make", type(param))(parts)
        return param

    params = {key: visit(param) for key, param in eqn.params.items()}
    if all(params[key] is eqn.params[key] for key in params):
        return eqn
    return eqn.replace(params=params)


def _has_jaxpr(params: Iterable[Any]) -> bool:
    return any(isinstance(p, jx.ClosedJaxpr | jx.Jaxpr) for p in params)


def bodies(eqn: Eqn) -> list[Any]:
    """The jaxprs in an equation's parameters."""
    return list(jx.subjaxprs(eqn.params))


def any_equation(jaxpr: Any, test: Callable[[Eqn], bool]) -> bool:
    """Whether some equation, at any depth, passes the test."""
    return any(test(e) or any(any_equation(b, test) for b in bodies(e)) for e in jaxpr.eqns)
