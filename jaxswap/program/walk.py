"""Walk: what is the op graph of a traced step?

Input: a step's jaxpr, differentiated and with its values named (`apply/place.py`). Output:
its `Graph`. Calls, checkpoint regions and scans are entered; what runs an unknown number of
times (`while`) or one way of several (`cond`) is one opaque node.

Equal equations of equal inputs are one node, as XLA will merge them too, unless a
`jax.checkpoint` region with `prevent_cse` stands between them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxswap import _compat
from jaxswap.apply import heavy, jaxprs
from jaxswap.apply.jaxprs import Atom, Eqn, Var, jx
from jaxswap.apply.marks import VALUE
from jaxswap.apply.pin import open_twin
from jaxswap.model import compute
from jaxswap.model.kernel import KernelCost
from jaxswap.program import enter, operands
from jaxswap.program.graph import Array, Graph, Node
from jaxswap.program.ir import Phase
from jaxswap.program.phases import classify_phases

_VIEWS = frozenset(
    ("reshape", "squeeze", "expand_dims", "stop_gradient", "copy", "copy_p", "name",
     "sharding_constraint", "pvary", "reduce_precision_view", "layout_constraint")
)  # fmt: skip
# Over dimensions of one element, as the gradient of a broadcast has them, these do nothing.
_REDUCTIONS = frozenset(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"))
_ENTERED = frozenset(("custom_jvp_call", "custom_vjp_call", "custom_lin", "shard_map", "jit",
                      "closed_call", "core_call", "remat_call"))  # fmt: skip
_BARRIERS = frozenset(("optimization_barrier", "jaxswap_pin"))
_PASSES = _BARRIERS | {"device_put"}


class Walk:
    """Builds a `Graph`, one jaxpr at a time."""

    def __init__(self, min_heavy_bytes: int, padded: frozenset[str]):
        self.graph = Graph()
        self.min_heavy_bytes = min_heavy_bytes
        self.padded = padded  # dtypes whose dots are padded
        self.merged: dict[Any, list[int]] = {}
        self.guard = 0  # equal equations under different guards are not merged
        self.loop: int | None = None

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
        eqn = open_twin(eqn)
        primitive, name = eqn.primitive, eqn.primitive.name
        called = _compat.called_jaxpr(eqn)
        if called is not None:
            enter.enter_call(self, called, eqn, env, phase)
        elif primitive is jx.scan_p:
            enter.enter_scan(self, eqn, env, phase)
        elif primitive is jx.remat_p:
            enter.enter_region(self, eqn, env, phase)
        elif name in _ENTERED and jaxprs.bodies(eqn):
            enter.enter_call(self, enter.body_of(eqn), eqn, env, phase)
        elif name in _PASSES and not isinstance(eqn.invars[0], jx.Literal):
            for source, target in zip(eqn.invars, eqn.outvars, strict=True):
                env[target] = self.read(source, env, phase)
                self.graph.arrays[env[target]].must_exist |= name in _BARRIERS
        elif name == "split":
            self.add_split(eqn, env, phase)
        elif self.is_view(eqn):
            self.look_through(eqn, env, phase)
        else:
            self.add_equation(eqn, env, phase)

    def is_view(self, eqn: Eqn) -> bool:
        """Whether an equation makes nothing: its result is its input, seen differently."""
        name = eqn.primitive.name
        if name in _VIEWS:
            return True
        if not (eqn.invars and eqn.outvars) or isinstance(eqn.invars[0], jx.Literal):
            return False
        source, target = eqn.invars[0].aval, eqn.outvars[0].aval
        if name == "broadcast_in_dim":
            return math.prod(source.shape) == math.prod(target.shape) and len(eqn.invars) == 1
        if name == "transpose":
            kept = [d for d in eqn.params["permutation"] if source.shape[d] != 1]
            return kept == sorted(kept)
        if name == "convert_element_type":
            return source.dtype == target.dtype
        if name in _REDUCTIONS:
            return all(source.shape[d] == 1 for d in eqn.params["axes"])
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
            made = self.add_node("constant", "map", phase, (), [atom.aval], KernelCost())
            self.merged[key] = made
        return self.merged[key][0]

    def add_equation(self, eqn: Eqn, env: dict[Var, int], phase: Phase) -> None:
        """Adds an equation as one node, or none if an equal one is there already."""
        key = self.key_of(eqn, env)
        writes = self.merged.get(key) if key is not None else None
        if writes is None:
            reads = self.add_first_stage(eqn, self.shares(eqn, env, phase), phase)
            writes = self.add_node(
                eqn.primitive.name,
                compute.classify(eqn),
                phase,
                reads,
                [v.aval for v in eqn.outvars],
                self.cost_of(eqn, env, phase),
                is_heavy=heavy.is_heavy(eqn, self.min_heavy_bytes),
                is_row_reduction=compute.is_row_reduction(eqn),
                has_batch_dims=eqn.primitive is jx.dot_p
                and any(eqn.params["dimension_numbers"][1]),
                is_zero=compute.is_zero(eqn),
                scratch_bytes=compute.scratch_bytes_of(eqn),
                origin=eqn.source_info,
            )
            if key is not None:
                self.merged[key] = writes
        env.update(zip(eqn.outvars, writes, strict=True))

    def cost_of(self, eqn: Eqn, env: dict[Var, int], phase: Phase) -> KernelCost:
        """The work of an equation, bytes at its edge left out."""
        cost = compute.cost_of(eqn)
        if eqn.primitive is not jx.dot_p or not self.padded:
            return cost
        arrays = [self.read(v, env, phase) for v in eqn.invars]
        return replace(cost, size_bytes=operands.pad_bytes(self, eqn, arrays))

    def add_first_stage(
        self, eqn: Eqn, reads: list[tuple[int, float]], phase: Phase
    ) -> list[tuple[int, float]]:
        """Reduces something long to partial results first; returns what is left to reduce."""
        parts = compute.count_parts(eqn)
        if parts == 1:
            return reads
        (result,) = eqn.outvars
        aval = jx.ShapedArray((parts, *result.aval.shape), result.aval.dtype)
        partial = self.add_node(
            eqn.primitive.name, "reduce", phase, reads, [aval], compute.cost_of(eqn),
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

    def key_of(self, eqn: Eqn, env: dict[Var, int]) -> Any:
        """Equal for equations that XLA merges; None if they cannot be compared."""
        if eqn.effects:
            return None
        inputs = tuple(
            (repr(v.val), str(v.aval)) if isinstance(v, jx.Literal) else env[v] for v in eqn.invars
        )
        key = (eqn.primitive.name, self.guard, self.loop, inputs, tuple(eqn.params.items()))
        try:
            hash(key)
        except TypeError:
            return None
        return key

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
                array = operands.lay_out(self, eqn, position, array, phase)
            elif compute.classify(eqn) == "update" and position == 0:
                share = 0.0
            elif name in compute.MOVES or size < out:
                share = max(1.0, out / size) if name not in ("pad", "concatenate") else 1.0
            found[array] = max(found.get(array, 0.0), share)
        return list(found.items())
