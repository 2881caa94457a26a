"""Programs: what part does each equation of a differentiated function play?

Input: equations. Output: a `Program`, which the other passes share, and the `Ledger` in which
they write down what became of the decisions.
The one convention: names and the user's own `jax.checkpoint` regions are taken out of a
program before anything is decided about its values (`open_program`).
"""

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxswap.apply import jaxprs
from jaxswap.apply.decision import Decision
from jaxswap.apply.jaxprs import Atom, Env, Eqn, Var, jx
from jaxswap.apply.marks import VALUE


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What was decided, and what became of it, while a step is rewritten.

    Attributes:
        decide: the decision for a value by name; None asks for the unnamed.
        min_heavy_bytes: ops that touch less are not heavy.
        rest_as_written: whether what nothing is decided about is XLA's to keep or to make again,
            where all that it is made of is kept.
        can_offload: whether the step may use host memory at all.
        offloaded: names of the values that are really offloaded.
        demoted: names that could not be treated as decided, and why.
        copies: variables in host memory, with the decision that put them there.
        reloads: variables that were reloaded, likewise.
        late_gates: gates that wait for a gradient, not for the heavy op before them.
    """

    decide: Callable[[str | None], Decision]
    min_heavy_bytes: int
    rest_as_written: bool = False
    can_offload: bool = True
    offloaded: list[str] = field(default_factory=list)
    demoted: dict[str, str] = field(default_factory=dict)
    copies: dict[Var, Decision] = field(default_factory=dict)
    reloads: dict[Var, Decision] = field(default_factory=dict)
    late_gates: dict[Var, Var] = field(default_factory=dict)


class Part(enum.Enum):
    """What an equation is to the differentiation at hand."""

    OUTSIDE = "neither of the function that is differentiated nor of its backward pass"
    FORWARD = "of the function that is differentiated"
    LAZY = "only there for the backward pass, which asks for it when it needs it"
    BACKWARD = "of the backward pass"


@dataclass(slots=True, kw_only=True)
class Program:
    """Equations in order, each with its part in the differentiation.

    Attributes:
        arguments: variables defined from the start that cost nothing to hold on to.
        carried: variables defined from the start that are new in every iteration of a loop.
        eqns: the equations.
        parts: the part of each.
        cotangents: variables that are cotangents, besides those that depend on them.
        outs: what the forward pass returns.
        backward_outs: what the backward pass returns.
        prefix: names of this program's values start so.
        saved: variables that the user's own policies save, or that are in host memory anyway.
        is_body: whether it is an iteration of a loop; the next iterations of the forward
            pass then come between its forward and its backward part.
        is_unrolled: whether all iterations of that loop are written out, so that XLA sees both
            parts in one computation.
        can_offload: whether its values may be offloaded one by one. In loops in loops, and
            with some versions of XLA in loops that run backwards, only whole stacks can.
    """

    arguments: Sequence[Var]
    carried: Sequence[Var]
    eqns: list[Eqn]
    parts: list[Part]
    cotangents: set[Var]
    outs: list[Atom]
    backward_outs: list[Atom]
    prefix: str
    saved: set[Var] = field(default_factory=set)
    is_body: bool = False
    is_unrolled: bool = False
    can_offload: bool = True

    def __iter__(self) -> Iterator[tuple[Eqn, Part]]:
        return iter(zip(self.eqns, self.parts, strict=True))

    def update(self, eqns: Sequence[tuple[Eqn, Part]], env: Env) -> None:
        """Replaces the equations, and what stands for the variables outside of them."""
        self.eqns, self.parts = [e for e, _ in eqns], [p for _, p in eqns]
        self.outs = [jaxprs.read(env, v) for v in self.outs]
        self.backward_outs = [jaxprs.read(env, v) for v in self.backward_outs]
        self.cotangents = {jaxprs.read(env, v) for v in self.cotangents}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A program whose backward pass is served: equations, and which are on its side."""

    eqns: list[Eqn]
    is_backward: list[bool]
    outs: list[Atom]
    backward_outs: list[Atom]


def find_dependents(eqns: Sequence[Eqn], seeds: set[Var]) -> set[Var]:
    """The variables that depend on one of `seeds`, themselves included."""
    found = set(seeds)
    for eqn in eqns:
        if any(v in found for v in jaxprs.variables(eqn.invars)):
            found.update(eqn.outvars)
    return found


def open_program(program: Program) -> dict[Var, str]:
    """Takes names and regions out of a program (in place); returns which value has which."""
    names = _strip_names(program)
    _open_regions(program, names)
    return names


def _strip_names(program: Program) -> dict[Var, str]:
    env: Env = {}
    names: dict[Var, str] = {}
    kept = []
    for eqn, part in program:
        eqn = jaxprs.substitute(eqn, env)
        label = eqn.params["name"] if eqn.primitive is jx.name_p else ""
        is_own = label.startswith(VALUE + program.prefix)
        if not label or not (is_own or part is Part.FORWARD):
            kept.append((eqn, part))
            continue
        (source,) = eqn.invars
        env[eqn.outvars[0]] = source
        if is_own and not isinstance(source, jx.Literal):
            names[source] = label.removeprefix(VALUE)
    program.update(kept, env)
    return names


def _open_regions(program: Program, names: dict[Var, str]) -> None:
    """Inlines the user's `jax.checkpoint` regions of the backward pass.

    Their recomputation goes on demand like ours. What they saved stays saved, unless it is
    a value that was decided about.
    """
    dependents = find_dependents(program.eqns, program.cotangents)
    opened: list[tuple[Eqn, Part]] = []
    env: Env = {}
    for eqn, part in program:
        eqn = jaxprs.substitute(eqn, env)
        inputs = jaxprs.variables(eqn.invars)
        is_region = eqn.primitive is jx.remat_p and eqn.params["differentiated"]
        cotangents = {v for v in inputs if v in dependents}
        if not (is_region and part is Part.BACKWARD and cotangents):
            opened.append((eqn, part))
            continue
        program.saved |= {v for v in inputs if v not in names and v not in cotangents}
        body = jaxprs.inline_calls(jx.ClosedJaxpr(eqn.params["jaxpr"], ()), is_differentiated=True)
        body = jx.ClosedJaxpr(jaxprs.write_out_constants(body), ())
        _, invars, inner, outs = jaxprs.rename_jaxpr(body)
        inner_env: Env = dict(zip(invars, eqn.invars, strict=True))
        inner = [jaxprs.substitute(e, inner_env) for e in inner]
        reached = find_dependents(inner, cotangents)
        dependents |= reached
        for e in inner:
            is_backward = any(v in reached for v in jaxprs.variables(e.invars))
            opened.append((e, Part.BACKWARD if is_backward else Part.LAZY))
        env.update(zip(eqn.outvars, [jaxprs.read(inner_env, v) for v in outs], strict=True))
    program.update(opened, env)
