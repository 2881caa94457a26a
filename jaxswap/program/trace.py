"""Trace: what is the program of a training step?

Input: a step and its arguments (arrays or `jax.ShapeDtypeStruct`s). Output: a `Program`.
Nothing is run. The step is traced with the values of its differentiated functions named as
`jaxswap.apply` names them (`apply/place.py`), walked into an op graph (`walk.py`), grouped
into kernels (`fusion.py`), and searched for what can be decided about (`candidates.py`).
"""

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxswap.apply import jaxprs, place
from jaxswap.apply.decision import Decision, NamedValue
from jaxswap.apply.jaxprs import jx
from jaxswap.apply.marks import SCOPE
from jaxswap.apply.step import MIN_HEAVY_BYTES, rewrite_traced
from jaxswap.model.device import Device
from jaxswap.model.kernel import KernelCost
from jaxswap.program import candidates, text
from jaxswap.program.effort import DEFAULT, Yardstick, yardstick_for
from jaxswap.program.fusion import fuse
from jaxswap.program.graph import Graph
from jaxswap.program.ir import Program
from jaxswap.program.kernels import build_program
from jaxswap.program.operands import padded_dtypes
from jaxswap.program.scatters import add_in_place
from jaxswap.program.walk import Walk

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_WRAPPER = re.compile(r"\b(?:jvp|transpose|vmap|jit|checkpoint|rematted_computation)\(([^()]*)\)")


def trace_program(
    fn: Callable,
    *args: Any,
    donate_argnums: int | Sequence[int] = (),
    device: Device | None = None,
    min_heavy_bytes: int = MIN_HEAVY_BYTES,
    **kwargs: Any,
) -> Program:
    """Traces a step into a `Program`.

    Args:
        fn: the step; nothing of it is run.
        *args: its arguments, arrays or `jax.ShapeDtypeStruct`s.
        donate_argnums: as in `jax.jit`: these arguments' memory is the results'.
        device: what it will run on, since XLA fuses differently for each; an H100 by default.
        min_heavy_bytes: ops that touch less are not scheduled around, as in `apply`.
        **kwargs: more arguments of the step.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> step = jax.grad(lambda w: jnp.sum(jnp.tanh(w @ w)))
        >>> [op.name for op in trace_program(step, jnp.eye(512)).ops][:2]
        ['dot_general', 'tanh']
    """
    traced = place.trace_step(fn, args, kwargs)
    numbers = (donate_argnums,) if isinstance(donate_argnums, int) else donate_argnums
    donated = jax.tree.leaves([args[number] for number in numbers])
    return make_program(traced, donated, device, min_heavy_bytes)


def make_program(
    traced: place.TracedStep,
    donated: Sequence[Any] = (),
    device: Device | None = None,
    min_heavy_bytes: int = MIN_HEAVY_BYTES,
) -> Program:
    """The `Program` of a step that is traced, some of whose arrays are donated."""
    program = _make_one(traced, traced.closed, donated, device, min_heavy_bytes)
    if traced.scattered is not traced.closed:
        written = _make_one(traced, traced.scattered, donated, device, min_heavy_bytes)
        program = dataclasses.replace(program, written=written)
    lean = _list_lean(traced, program, device, min_heavy_bytes)
    return _with_fingerprint(dataclasses.replace(program, lean=lean))


def _make_one(
    traced: place.TracedStep,
    closed: Any,
    donated: Sequence[Any],
    device: Device | None,
    min_heavy_bytes: int,
) -> Program:
    """The program of one form of a traced step, before it is known how lean its loops can be."""
    closed = jaxprs.remove_dead_code(jaxprs.inline_calls(closed))
    graph, program, links = _group(closed, device, min_heavy_bytes)
    base_bytes = _base_bytes(closed, donated)
    named = {v.name: v for v in traced.values}
    program = candidates.add_candidates(
        program, graph, links, named, has_row_kernels=_find_yardstick(device).has_row_kernels
    )
    return _with_user_names(dataclasses.replace(program, base_bytes=base_bytes), named)


def _group(closed: Any, device: Device | None, min_heavy_bytes: int) -> tuple[Graph, Program, Any]:
    """The ops of a jaxpr, grouped into kernels as XLA would for a device."""
    graph = _walk(closed, min_heavy_bytes, padded_dtypes(device))
    kernels = fuse(graph, _find_yardstick(device))
    return graph, *build_program(graph, kernels, lambda node: _describe(graph, node))


def _find_yardstick(device: Device | None) -> Yardstick:
    return DEFAULT if device is None else yardstick_for(device)


def _list_lean(
    traced: place.TracedStep, program: Program, device: Device | None, min_heavy_bytes: int
) -> tuple[tuple[KernelCost, int], ...]:
    """The kernels of the step that makes everything again, if a loop stacks any of it."""
    again = {c.value for c in program.candidates if c.recompute is not None}
    if not any(program.values[v].is_stacked for v in again):
        return ()
    names = [program.values[c.value].name for c in program.candidates if c.value not in again]
    kept = dict.fromkeys([*program.kept_names, *names], Decision(action="keep"))
    applied = rewrite_traced(traced, kept, min_heavy_bytes=min_heavy_bytes)
    _, lean, _ = _group(jaxprs.inline_calls(applied.closed), device, min_heavy_bytes)
    return tuple((op.cost, op.trips) for op in lean.ops)


def fingerprint_step(fn: Callable, *args: Any, **kwargs: Any) -> str:
    """The same text for the same step on the same shapes; costs no more than JAX's own tracing."""
    closed = place.trace_plain(fn, args, kwargs)
    # Functions print with their address, which is another one in every process.
    printed = _ADDRESS.sub("", str(closed))
    return hashlib.sha256(printed.encode()).hexdigest()[:32]


def _walk(closed: Any, min_heavy_bytes: int, padded: frozenset[str]) -> Graph:
    walk = Walk(min_heavy_bytes, padded)
    jaxpr = closed.jaxpr
    env = {v: walk.new_array(v.aval, is_argument=True) for v in (*jaxpr.constvars, *jaxpr.invars)}
    walk.run(jaxpr, env, None)
    for atom in jaxpr.outvars:
        if not isinstance(atom, jx.Literal):
            walk.graph.arrays[env[atom]].is_output = True
    for index, node in enumerate(walk.graph.nodes):
        for array, _ in node.reads:
            walk.graph.arrays[array].readers.append(index)
    add_in_place(walk.graph)
    return walk.graph


def _base_bytes(closed: Any, donated: Sequence[Any]) -> int:
    """Arguments + outputs − those outputs that take a donated array's place."""
    free = Counter((np.shape(x), str(jax.dtypes.result_type(x))) for x in donated)
    total = sum(jaxprs.size_bytes(v.aval) for v in (*closed.jaxpr.constvars, *closed.jaxpr.invars))
    for atom in closed.jaxpr.outvars:
        key = (tuple(atom.aval.shape), str(atom.aval.dtype))
        if free[key] > 0:
            free[key] -= 1
        else:
            total += jaxprs.size_bytes(atom.aval)
    return total


def _describe(graph: Graph, node: int) -> tuple[str, str]:
    """The module path and the source line of a node."""
    origin = graph.nodes[node].origin
    if origin is None:
        return "", ""
    frame = jx.user_frame(origin.traceback)
    source = f"{frame.file_name}:{frame.start_line}" if frame else ""
    return _clean_stack(str(origin.name_stack)), source


def _clean_stack(stack: str) -> str:
    """`transpose(jvp(GPT))/Block_0` → `GPT/Block_0`."""
    while True:
        shorter = _WRAPPER.sub(r"\1", stack)
        if shorter == stack:
            break
        stack = shorter
    parts = [p for p in stack.split("/") if p and not p.startswith(SCOPE)]
    return "/".join(parts)


def _with_user_names(program: Program, named: dict[str, NamedValue]) -> Program:
    values = tuple(
        dataclasses.replace(v, user_name=named[v.name].user_name)
        if v.name in named and named[v.name].user_name
        else v
        for v in program.values
    )
    return dataclasses.replace(program, values=values)


def _with_fingerprint(program: Program) -> Program:
    digest = hashlib.sha256(text.format_program(program).encode()).hexdigest()[:16]
    return dataclasses.replace(program, fingerprint=digest)
