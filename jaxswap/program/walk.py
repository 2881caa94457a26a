"""Walk: what is the op graph of a traced step?

Input: a step's jaxpr, differentiated and with its values named (`apply/place.py`). Output:
its `Graph`. Calls, checkpoint regions and scans are entered; what runs an unknown number of
times (`while`) or one way of several (`cond`) is one opaque node.

Equal equations of equal inputs are one node, as XLA will merge them too, unless a
`jax.checkpoint` region with `prevent_cse` stands between them.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from jaxswap import _compat
from jaxswap.apply import heavy, jaxprs
from jaxswap.apply import program as marks
from jaxswap.apply.jaxprs import Atom, Eqn, Var, jx
from jaxswap.apply.place import SCOPE, VALUE
from jaxswap.model.compute import MOVES, classify, cost_of
from jaxswap.model.kernel import KernelCost
from jaxswap.program.graph import Array, Graph, LoopSpan, Node
from jaxswap.program.ir import Phase

_VIEWS = frozenset(
    ("reshape", "squeeze", "expand_dims", "stop_gradient", "copy", "copy_p", "name",
     "sharding_constraint", "pvary", "reduce_precision_view", "layout_constraint")
)  # fmt: skip
_ENTERED = frozenset(("custom_jvp_call", "custom_vjp_call", "custom_lin", "shard_map", "jit",
                      "closed_call", "core_call", "remat_call"))  # fmt: skip
_PASSES = frozenset(("optimization_barrier", "device_put"))
_TWO_STAGES = frozenset(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"))
_LONG_ROW, _LONG_COLUMN = 16384, 4096
# Reads of a loop's own slice of an array, and writes to it.
SLICE, STACK = "dynamic_slice", "stack"


class Walk:
    """Builds a `Graph`, one jaxpr at a time."""

    def __init__(self, min_heavy_bytes: int):
        self.graph = Graph()
        self.min_heavy_bytes = min_heavy_bytes
        self.merged: dict[Any, list[int]] = {}
        self.guard = 0  # equal equations under different guards are not merged
        self.loop: int | None = None
        self.phases: dict[int, Phase] = {}

    # ---- arrays and nodes ----

    def new_array(self, aval: Any, **facts: Any) -> int:
        """Adds an array of a type; returns its position."""
        dtype = getattr(aval, "dtype", None)
        array = Array(
            shape=tuple(getattr(aval, "shape", ())),
            dtype=str(dtype),
            size_bytes=jaxprs.size_bytes(aval),
            trips=self.trips,
            **facts,
        )
        self.graph.arrays.append(array)
        return len(self.graph.arrays) - 1

    @property
    def trips(self) -> int:
        """How often one step runs what is being walked."""
        total, loop = 1, self.loop
        while loop is not None:
            total *= self.graph.loops[loop].trips
            loop = self.graph.loops[loop].parent
        return total

    def add_node(
        self, name: str, kind: Any, phase: Phase, reads: Sequence[tuple[int, float]],
        avals: Sequence[Any], cost: KernelCost, **facts: Any,
    ) -> list[int]:  # fmt: skip
        """Adds a node and its results; returns their positions."""
        index = len(self.graph.nodes)
        writes = [self.new_array(aval, producer=index) for aval in avals]
        self.graph.nodes.append(
            Node(name=name, kind=kind, phase=phase, reads=tuple(reads), writes=tuple(writes),
                 cost=cost, loop=self.loop, not_before=self.guard, **facts)
        )  # fmt: skip
        return writes

    # ---- jaxprs ----

    def run(self, jaxpr: Any, env: dict[Var, int], phase: Phase | None) -> None:
        """Walks a jaxpr whose inputs the environment has; `phase` is that of its caller."""
        eqns = list(jaxpr.eqns)
        phases = classify_phases(jaxpr, phase)
        for eqn, own in zip(eqns, phases, strict=True):
            self.visit(eqn, env, own)

    def visit(self, eqn: Eqn, env: dict[Var, int], phase: Phase) -> None:
        """Adds what one equation does."""
        primitive, name = eqn.primitive, eqn.primitive.name
        called = _compat.called_jaxpr(eqn)
        if called is not None:
            self.enter(called, eqn, env, phase)
        elif primitive is jx.scan_p:
            self.enter_scan(eqn, env, phase)
        elif primitive is jx.remat_p:
            self.enter_region(eqn, env, phase)
        elif name in _ENTERED and jaxprs.bodies(eqn):
            self.enter(_body_of(eqn), eqn, env, phase)
        elif name in _PASSES and not isinstance(eqn.invars[0], jx.Literal):
            for source, target in zip(eqn.invars, eqn.outvars, strict=True):
                env[target] = self.read(source, env, phase)
                self.graph.arrays[env[target]].must_exist |= name == "optimization_barrier"
        elif name == "split":
            self.add_split(eqn, env, phase)
        elif self.is_view(eqn):
            self.look_through(eqn, env, phase)
        else:
            self.add_equation(eqn, env, phase)

    def is_view(self, eqn: Eqn) -> bool:
        """Whether an equation makes nothing: its result is its input, seen differently."""
        name = eqn.primitive.name
        if isinstance(eqn.invars[0] if eqn.invars else None, jx.Literal) or not eqn.invars:
            return False
        if name in _VIEWS:
            return True
        source, target = eqn.invars[0].aval, eqn.outvars[0].aval
        if name == "broadcast_in_dim":
            return math.prod(source.shape) == math.prod(target.shape) and len(eqn.invars) == 1
        if name == "transpose":
            kept = [d for d in eqn.params["permutation"] if source.shape[d] != 1]
            return kept == sorted(kept)
        if name == "convert_element_type":
            return source.dtype == target.dtype
        return False

    def look_through(self, eqn: Eqn, env: dict[Var, int], phase: Phase) -> None:
        """Gives a view the array it looks at, and a named value its name."""
        array = self.read(eqn.invars[0], env, phase)
        env[eqn.outvars[0]] = array
        if eqn.primitive is jx.name_p and eqn.params["name"].startswith(VALUE):
            self.name(array, eqn.params["name"].removeprefix(VALUE))

    def name(self, array: int, name: str) -> None:
        """Notes a name, apart if it is that of a loop's result."""
        record = self.graph.arrays[array]
        producer = record.producer
        loop = self.graph.nodes[producer].loop if producer is not None else self.loop
        names = record.names if loop == self.loop else record.result_names
        if name not in names:
            names.append(name)

    def read(self, atom: Atom, env: dict[Var, int], phase: Phase) -> int:
        """The array of an atom; a literal is a constant that is made on the spot."""
        if not isinstance(atom, jx.Literal):
            return env[atom]
        key = ("literal", str(atom.aval), repr(atom.val), self.loop)
        if key not in self.merged:
            self.merged[key] = self.add_node("constant", "map", phase, (), [atom.aval], KernelCost())
        return self.merged[key][0]

    def add_equation(self, eqn: Eqn, env: dict[Var, int], phase: Phase) -> None:
        """Adds an equation as one node, or none if an equal one is there already."""
        reads = self.shares(eqn, env, phase)
        key = self.key_of(eqn, [array for array, _ in reads])
        writes = self.merged.get(key) if key is not None else None
        if writes is None:
            name = eqn.primitive.name
            reads = self.add_first_stage(eqn, reads, phase)
            writes = self.add_node(
                name, classify(eqn), phase, reads, [v.aval for v in eqn.outvars], cost_of(eqn),
                is_heavy=heavy.is_heavy(eqn, self.min_heavy_bytes),
                is_row_reduction=_is_row_reduction(eqn), scratch_bytes=_scratch_bytes(eqn),
                origin=eqn.source_info,
            )  # fmt: skip
            if key is not None:
                self.merged[key] = writes
        env.update(zip(eqn.outvars, writes, strict=True))

    def add_first_stage(
        self, eqn: Eqn, reads: list[tuple[int, float]], phase: Phase
    ) -> list[tuple[int, float]]:
        """Reduces something long to partial results first; returns what is left to reduce."""
        parts = _count_parts(eqn)
        if parts == 1:
            return reads
        (result,) = eqn.outvars
        aval = jx.ShapedArray((parts, *result.aval.shape), result.aval.dtype)
        partial = self.add_node(
            eqn.primitive.name, "reduce", phase, reads, [aval], cost_of(eqn),
            origin=eqn.source_info,
        )  # fmt: skip
        return [(partial[0], 1.0)]

    def add_split(self, eqn: Eqn, env: dict[Var, int], phase: Phase) -> None:
        """A split is one slice per part, each of which fuses by itself."""
        source = self.read(eqn.invars[0], env, phase)
        size = max(1, self.graph.arrays[source].elements)
        for k, target in enumerate(eqn.outvars):
            key = ("split", source, k, tuple(eqn.params.items()), self.loop, self.guard)
            if key not in self.merged:
                share = math.prod(target.aval.shape) / size
                self.merged[key] = self.add_node(
                    "slice", "map", phase, [(source, share)], [target.aval], KernelCost(),
                    origin=eqn.source_info,
                )  # fmt: skip
            env[target] = self.merged[key][0]

    def key_of(self, eqn: Eqn, reads: list[int]) -> Any:
        """Equal for equations that XLA merges; None if they cannot be compared."""
        if eqn.effects:
            return None
        key = (eqn.primitive.name, self.guard, self.loop, tuple(reads), tuple(eqn.params.items()))
        literals = tuple(repr(v.val) for v in eqn.invars if isinstance(v, jx.Literal))
        avals = tuple(str(v.aval) for v in eqn.outvars) if not reads else ()
        try:
            hash(key)
        except TypeError:
            return None
        return (*key, literals, avals)

    def shares(self, eqn: Eqn, env: dict[Var, int], phase: Phase) -> list[tuple[int, float]]:
        """What an equation reads, and which share of it."""
        name = eqn.primitive.name
        found: dict[int, float] = {}
        out = max((math.prod(getattr(v.aval, "shape", ())) for v in eqn.outvars), default=0)
        for position, atom in enumerate(eqn.invars):
            if isinstance(atom, jx.Literal) and math.prod(getattr(atom.aval, "shape", ())) == 1:
                continue
            array = self.read(atom, env, phase)
            size = max(1, self.graph.arrays[array].elements)
            share = 1.0
            if name in ("slice", "dynamic_slice", "gather", "broadcast_in_dim"):
                share = out / size if position == 0 else 1.0
            elif eqn.primitive is jx.dot_p:
                array = self.lay_out(eqn, position, array, phase)
            elif classify(eqn) == "update" and position == 0:
                share = 0.0
            elif name in MOVES or size < out:
                share = max(1.0, out / size) if name not in ("pad", "concatenate") else 1.0
            found[array] = max(found.get(array, 0.0), share)
        return list(found.items())

    def lay_out(self, eqn: Eqn, position: int, array: int, phase: Phase) -> int:
        """The operand of a dot, transposed if its dimensions are not in an order for it.

        Batch dimensions lead, and of the rest those that are contracted are together.
        """
        contracting, batch = (dims[position] for dims in eqn.params["dimension_numbers"])
        aval = eqn.invars[position].aval
        wide = [d for d in range(len(aval.shape)) if aval.shape[d] != 1]
        lead = [d for d in batch if d in wide]
        rest = [d for d in wide if d not in batch]
        is_in = [d in contracting for d in rest]
        if sum(a != b for a, b in itertools.pairwise(is_in)) > 1:
            rest.sort(key=lambda d: d in contracting)
        if wide == lead + rest:
            return array
        key = ("layout", array, tuple(lead + rest), self.loop, self.guard)
        if key not in self.merged:
            self.merged[key] = self.add_node(
                "transpose", "map", phase, [(array, 1.0)], [aval], KernelCost(),
                origin=eqn.source_info,
            )  # fmt: skip
            self.graph.arrays[self.merged[key][0]].stands_for = array
        return self.merged[key][0]

    # ---- calls, regions, loops ----

    def enter(self, closed: Any, eqn: Eqn, env: dict[Var, int], phase: Phase) -> None:
        """Walks a call as if it were written out."""
        jaxpr = closed.jaxpr if isinstance(closed, jx.ClosedJaxpr) else closed
        inner = {v: self.new_constant(v) for v in jaxpr.constvars}
        inputs = eqn.invars[len(eqn.invars) - len(jaxpr.invars) :]
        inner |= {v: self.read(a, env, phase) for v, a in zip(jaxpr.invars, inputs, strict=True)}
        self.run(jaxpr, inner, phase)
        for target, result in zip(eqn.outvars, jaxpr.outvars, strict=True):
            env[target] = self.read(result, inner, phase)

    def new_constant(self, var: Var) -> int:
        """An array that the step closes over: there from the start, like an argument."""
        return self.new_array(var.aval, is_argument=True)

    def enter_region(self, eqn: Eqn, env: dict[Var, int], phase: Phase) -> None:
        """Walks a `jax.checkpoint` region; what it recomputes is not merged with the first."""
        outer = self.guard
        if eqn.params.get("prevent_cse") and eqn.params.get("differentiated"):
            self.guard = len(self.graph.nodes)
            for v in jaxprs.variables(eqn.invars):
                self.graph.arrays[env[v]].must_exist = True
        self.enter(eqn.params["jaxpr"], eqn, env, phase)
        self.guard = outer

    def enter_scan(self, eqn: Eqn, env: dict[Var, int], phase: Phase) -> None:
        """Walks a loop's body once: it reads slices, and stacks what it gives per trip."""
        params, body = eqn.params, eqn.params["jaxpr"]
        first_carry, num_carry = params["num_consts"], params["num_carry"]
        first_xs = first_carry + num_carry
        outer, trips = self.loop, params["length"]
        arrays = self.graph.arrays
        inputs = [self.read(a, env, phase) for a in eqn.invars]
        self.fill_stacks(eqn, phase)
        self.graph.loops.append(LoopSpan(trips=trips, parent=outer, first=len(self.graph.nodes)))
        self.loop = loop = len(self.graph.loops) - 1
        # XLA counts the trips with a kernel of its own.
        self.add_node("counter", "opaque", phase, (), (), KernelCost(size_bytes=8.0))
        inner = {v: self.new_constant(v) for v in body.jaxpr.constvars}
        for k, var in enumerate(body.jaxpr.invars):
            if k < first_carry:
                inner[var] = inputs[k]
            elif k < first_xs:
                inner[var] = self.new_array(var.aval, must_exist=True)
                arrays[inputs[k]].must_exist = True
            else:
                inner[var] = self.take_slice(inputs[k], var.aval, trips, phase)
        self.run(body.jaxpr, inner, phase)
        results = [self.read(a, inner, phase) for a in body.jaxpr.outvars]
        carried = body.jaxpr.invars[first_carry:first_xs]
        for var, result, target in zip(carried, results, eqn.outvars, strict=False):
            env[target] = self.hand_on(inner[var], result, phase)
        for result, target in zip(results[num_carry:], eqn.outvars[num_carry:], strict=True):
            env[target] = self.stack(result, phase)
        self.graph.loops[loop].end = len(self.graph.nodes)
        self.loop = outer

    def fill_stacks(self, eqn: Eqn, phase: Phase) -> None:
        """XLA sets what a loop will stack to zero first."""
        stacked = eqn.outvars[eqn.params["num_carry"] :]
        size_bytes = sum(jaxprs.size_bytes(v.aval) for v in stacked)
        if size_bytes:
            self.add_node("fill", "opaque", phase, (), (), KernelCost(size_bytes=size_bytes))

    def take_slice(self, array: int, aval: Any, trips: int, phase: Phase) -> int:
        """A trip's own slice of an array."""
        is_stack = self.graph.arrays[array].is_stacked
        share = 1.0 if is_stack else 1.0 / trips
        self.graph.arrays[array].must_exist = True
        return self.add_node(SLICE, "map", phase, [(array, share)], [aval], KernelCost())[0]

    def hand_on(self, before: int, after: int, phase: Phase) -> int:
        """What the next trip reads; unchanged and shared values are copied."""
        array = self.graph.arrays[after]
        is_own = array.producer is not None and self.graph.nodes[array.producer].loop == self.loop
        if after == before:
            return before
        if not is_own or after in self.graph.carries.values():
            aval = jx.ShapedArray(array.shape, array.dtype) if not is_own else None
            after = self.copy(after, "copy", phase, aval)
        self.graph.arrays[after].must_exist = True
        self.graph.carries[before] = after
        return after

    def copy(self, array: int, name: str, phase: Phase, aval: Any = None) -> int:
        """A copy of an array, made in the loop that is being walked."""
        source = self.graph.arrays[array]
        new = self.add_node(name, "map", phase, [(array, 1.0)], [None], KernelCost())[0]
        target = self.graph.arrays[new]
        target.shape, target.dtype, target.size_bytes = source.shape, source.dtype, source.size_bytes
        return new

    def stack(self, array: int, phase: Phase) -> int:
        """What a loop gives per trip, all trips in a row."""
        key = ("stacked", array, self.loop)
        if key in self.merged:
            return self.merged[key][0]
        new = self.copy(array, STACK, phase)
        self.merged[key] = [new]
        target = self.graph.arrays[new]
        target.is_stacked = target.must_exist = True
        target.stands_for = array
        return new


def _body_of(eqn: Eqn) -> Any:
    for key in ("call_jaxpr", "jaxpr", "fun_jaxpr"):
        if key in eqn.params:
            return eqn.params[key]
    return jaxprs.bodies(eqn)[0]


def _is_row_reduction(eqn: Eqn) -> bool:
    axes = eqn.params.get("axes")
    if classify(eqn) != "reduce" or axes is None:
        return False
    shape = eqn.invars[0].aval.shape
    wide = [d for d in range(len(shape)) if shape[d] != 1]
    reduced = sorted(d for d in axes if d in wide)
    return bool(reduced) and wide[-len(reduced) :] == reduced


def _count_parts(eqn: Eqn) -> int:
    """How many partial results XLA:GPU makes of a reduction first; 1 for none.

    One block per result is enough up to a length; beyond it XLA splits the length into two
    factors of about the same size, and reduces twice.
    """
    if eqn.primitive.name not in _TWO_STAGES or len(eqn.outvars) != 1:
        return 1
    shape, axes = eqn.invars[0].aval.shape, eqn.params["axes"]
    length = math.prod(shape[d] for d in axes)
    if length <= (_LONG_ROW if _is_row_reduction(eqn) else _LONG_COLUMN):
        return 1
    return 2 ** int(math.log2(math.sqrt(length)))


def _scratch_bytes(eqn: Eqn) -> int:
    """What XLA needs beside operands and results.

    The gradient of a max-pooling finds the place of each maximum first: its value and its
    indices in 32 bits, one array each.
    """
    if eqn.primitive.name not in ("select_and_scatter_add", "select_and_gather_add"):
        return 0
    source = eqn.invars[0].aval
    wide = sum(1 for n in source.shape if n != 1)
    return math.prod(source.shape) * (getattr(source.dtype, "itemsize", 4) + 4 * (wide - 1))


def classify_phases(jaxpr: Any, caller: Phase | None) -> list[Phase]:
    """Which pass each equation is part of.

    What depends on a turn's cotangent is backward while it is of the differentiated function,
    or leads to such an equation; behind that, it is the update.
    """
    eqns = jaxpr.eqns
    turns = marks.find_turns(jaxpr)
    if not turns:
        return [caller or "update"] * len(eqns)
    seeds = {v for e in eqns if marks.is_turn(e) for v in e.outvars}
    dependents = marks.find_dependents(eqns, seeds)
    phases: list[Phase] = ["update"] * len(eqns)
    needed: set[Var] = set()
    for i in range(len(eqns) - 1, -1, -1):
        eqn = eqns[i]
        is_ours = any(
            getattr(element, "name", "").startswith(SCOPE)
            for element in eqn.source_info.name_stack.stack
        )
        is_dependent = any(v in dependents for v in jaxprs.variables(eqn.invars))
        if not is_dependent:
            phases[i] = "forward" if is_ours else "update"
        elif is_ours or any(v in needed for v in eqn.outvars):
            phases[i] = "backward"
            needed.update(jaxprs.variables(eqn.invars))
    return phases
