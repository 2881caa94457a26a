"""Programs for tests: chains solved by hand, and random ones for hypothesis.

`UNIT` is a device on which every figure is a whole number: one FLOP and one byte take one
second each, launches and latencies take none.
"""

import dataclasses

import hypothesis.strategies as hps
import numpy as np

from jaxswap.model.device import Device
from jaxswap.model.kernel import Efficiency, KernelCost
from jaxswap.model.transfer import Link
from jaxswap.program.ir import Candidate, Loop, Op, Program, Value

EXACT = Efficiency(vector=1.0, half_matrix_s=0.0, half_memory_s=0.0)


def make_device(both_fraction=1.0, bytes_per_s=1.0):
    link = Link(latency_s=0.0, bandwidth_bytes_per_s=bytes_per_s, both_fraction=both_fraction)
    return Device(
        name="unit",
        description="one of everything per second",
        memory_bytes=10**9,
        peak_flops_per_s={"f32": 1.0},
        memory_bandwidth_bytes_per_s=1.0,
        l2_cache_bytes=0,
        launch_overhead_s=0.0,
        to_host=link,
        to_device=link,
    )


UNIT = make_device()


def work(seconds):
    """A kernel that takes so many seconds on `UNIT`."""
    return KernelCost(vector_flops=float(seconds))


@dataclasses.dataclass
class Draft:
    """A program being written: ops in order, values by name, readers filled in at the end."""

    ops: list = dataclasses.field(default_factory=list)
    values: dict = dataclasses.field(default_factory=dict)
    candidates: list = dataclasses.field(default_factory=list)
    loops: list = dataclasses.field(default_factory=list)

    def op(self, name, seconds, phase, reads=(), writes=(), heavy=True, **more):
        """Adds an op; `writes` are (name, bytes) pairs, or triples with fields of `Value`."""
        at = len(self.ops)
        for written, size_bytes, *fields in writes:
            self.values[written] = {"size_bytes": size_bytes, "producer": at, "readers": []}
            self.values[written] |= fields[0] if fields else {}
        for read in reads:
            self.values[read]["readers"].append(at)
        positions = list(self.values)
        self.ops.append(
            Op(
                name=name,
                phase=phase,
                reads=tuple(positions.index(v) for v in reads),
                writes=tuple(positions.index(w[0]) for w in writes),
                cost=work(seconds),
                is_heavy=heavy,
                source=f"model.py:{at}",
                **more,
            )
        )
        return at

    def candidate(self, name, again=None, parents=(), **more):
        """Makes a value a candidate, recomputed in `again` seconds from its parents."""
        value = self.values[name]
        readers = value["readers"]
        back = [op for op in readers if self.ops[op].phase != "forward"]
        forth = [op for op in readers if self.ops[op].phase == "forward"]
        names = [list(self.values)[c.value] for c in self.candidates]
        self.candidates.append(
            Candidate(
                value=list(self.values).index(name),
                last_forward=max([value["producer"], *forth]),
                first_backward=back[0],
                last_backward=back[-1],
                parents=tuple(names.index(p) for p in parents),
                recompute=None if again is None else (work(again),),
                **more,
            )
        )

    def finish(self, base_bytes=0, lean_s=0.0):
        values = tuple(
            Value(name=name, **(fields | {"readers": tuple(fields["readers"])}))
            for name, fields in self.values.items()
        )
        return Program(
            ops=tuple(self.ops),
            values=values,
            candidates=tuple(self.candidates),
            loops=tuple(self.loops),
            base_bytes=base_bytes,
            lean=((work(lean_s), 1),) if lean_s else (),
            fingerprint="test",
        )


def chain(sizes, *, forward_s=1.0, backward_s=2.0, again=1.0, base_bytes=0, gradient_bytes=0):
    """Layers in a row: op `i` makes `a{i}` from the one before; the backward pass reads each.

    Ops 0 … n-1 are the forward pass; op n + k is the backward op of layer n-1-k.
    """
    draft = Draft()
    n = len(sizes)
    for i, size in enumerate(sizes):
        reads = [f"a{i - 1}"] if i else []
        draft.op(f"f{i}", forward_s, "forward", reads, [(f"a{i}", size)])
    for i in reversed(range(n)):
        reads = [f"a{i}"] + ([f"g{i + 1}"] if i < n - 1 else [])
        draft.op(f"b{i}", backward_s, "backward", reads, [(f"g{i}", gradient_bytes)])
    for i in range(n):
        draft.candidate(f"a{i}", again=again, parents=[f"a{i - 1}"] if i else [])
    return draft.finish(base_bytes)


def looped(trips=4, size=10, forward_s=1.0, backward_s=2.0):
    """A loop that stacks `h` and `z`, and the loop of its backward pass that reads them."""
    draft = Draft()
    stacked = {"trips": trips, "is_stacked": True}
    draft.op("start", 1, "forward", [], [("x", 5)])
    inside = {"trips": trips, "loop": 0}
    draft.op("h", forward_s, "forward", ["x"], [("h", size, stacked)], **inside)
    draft.op("z", forward_s, "forward", ["h"], [("z", size, stacked)], **inside)
    draft.op("end", forward_s, "forward", ["z"], [], **inside)
    draft.op("loss", 1, "forward", [], [("loss", 1)])
    inside = {"trips": trips, "loop": 1}
    draft.op("dz", backward_s, "backward", ["z", "loss"], [("dz", 1, {"trips": trips})], **inside)
    draft.op("dh", backward_s, "backward", ["h", "dz"], [], **inside)
    draft.op("dx", backward_s, "backward", ["x"], [])
    draft.loops += [
        Loop(first_op=1, last_op=3, trips=trips),
        Loop(first_op=5, last_op=6, trips=trips),
    ]
    draft.candidate("h", again=forward_s)
    draft.candidate("z", again=forward_s, parents=["h"])
    return draft.finish()


def blocks(num_blocks=12, *, sizes=(8, 4, 2), seed=0):
    """Equal blocks of a few values each, which share `repeat` numbers."""
    rng = np.random.default_rng(seed)
    seconds = rng.uniform(1.0, 6.0, len(sizes)).round(1)
    draft = Draft()
    previous = None
    for b in range(num_blocks):
        for j, size in enumerate(sizes):
            name = f"v{b}_{j}"
            reads = [previous] if previous else []
            draft.op(f"f{b}_{j}", seconds[j], "forward", reads, [(name, size)], heavy=j != 1)
            previous = name
    gradient = None
    for b in reversed(range(num_blocks)):
        for j in reversed(range(len(sizes))):
            reads = [f"v{b}_{j}"] + ([gradient] if gradient else [])
            gradient = f"g{b}_{j}"
            draft.op(f"b{b}_{j}", 2 * seconds[j], "backward", reads, [(gradient, 1)], heavy=j != 1)
    previous = None
    for b in range(num_blocks):
        for j in range(len(sizes)):
            draft.candidate(
                f"v{b}_{j}",
                again=seconds[j],
                parents=[previous] if previous else [],
                repeat=j + 1,
            )
            previous = f"v{b}_{j}"
    return draft.finish(base_bytes=3)


def large_program(num_ops=1000, num_candidates=200):
    """A program of a given size, for timings: equal layers, one candidate in each."""
    draft = Draft()
    per_layer = -(-num_ops // (2 * num_candidates))
    light = per_layer - 1
    for i in range(num_candidates):
        reads = [f"a{i - 1}"] if i else []
        draft.op(f"f{i}", 2, "forward", reads, [(f"a{i}", 3 + i % 5)])
        for j in range(light):
            draft.op(f"f{i}_{j}", 0.5, "forward", [f"a{i}"], [], heavy=j % 2 == 1)
    for i in reversed(range(num_candidates)):
        draft.op(f"b{i}", 4, "backward", [f"a{i}"], [(f"g{i}", 2)])
        for j in range(light):
            draft.op(f"b{i}_{j}", 1, "backward", [f"g{i}"], [], heavy=j % 2 == 1)
    for i in range(num_candidates):
        draft.candidate(f"a{i}", again=2, parents=[f"a{i - 1}"] if i else [], repeat=1 + i % 4)
    return draft.finish(base_bytes=10)


@hps.composite
def programs(draw, max_candidates=6, with_loops=True):
    """A random step: values made in order, read on, and read again in the backward pass."""
    draft = Draft()
    count = draw(hps.integers(1, max_candidates))
    seconds = hps.sampled_from([0.5, 1.0, 2.0, 3.0])
    loop_at = draw(hps.integers(0, count - 1)) if with_loops and draw(hps.booleans()) else count
    trips = draw(hps.integers(2, 4))
    names = []
    for i in range(count):
        in_loop = {"loop": 0, "trips": trips} if i >= loop_at else {}
        stacked = {"is_stacked": True, "trips": trips} if i >= loop_at else {}
        reads = draw(hps.lists(hps.sampled_from(names), max_size=2, unique=True)) if names else []
        heavy = draw(hps.booleans())
        written = (f"a{i}", draw(hps.integers(1, 9)), stacked)
        draft.op(f"f{i}", draw(seconds), "forward", reads, [written], heavy, **in_loop)
        names.append(f"a{i}")
    if loop_at < count:
        draft.loops.append(Loop(first_op=loop_at, last_op=count - 1, trips=trips))
    implicit = ("u", draw(hps.integers(0, 5)), {"is_implicit": True})
    draft.op("turn", 1.0, "forward", [], [("t", 1), implicit], draw(hps.booleans()))
    start = len(draft.ops)
    for i in reversed(range(count)):
        in_loop = {"loop": 1, "trips": trips} if i >= loop_at else {}
        others = [n for n in names if (names.index(n) >= loop_at) == (i >= loop_at)]
        extra = draw(hps.lists(hps.sampled_from(others), max_size=1))
        reads = list(dict.fromkeys([f"a{i}", *extra]))
        written = (f"g{i}", draw(hps.integers(0, 4)), {"trips": trips} if in_loop else {})
        scratch = draw(hps.integers(-3, 3))
        draft.op(
            f"b{i}", draw(seconds), "backward", reads, [written], draw(hps.booleans()),
            scratch_bytes=scratch, **in_loop,
        )  # fmt: skip
        if i == loop_at:
            last = len(draft.ops) - 1
            draft.loops.append(Loop(first_op=start, last_op=last, trips=trips))
    draft.op("after", 1.0, "backward", ["u"])
    for i in range(count):
        parents = draw(hps.lists(hps.sampled_from(names[:i]), max_size=2, unique=True)) if i else []
        # Two candidates that repeat the same op share it.
        again_ops = draw(hps.one_of(hps.just(()), hps.tuples(hps.integers(0, 1))))
        draft.candidate(
            f"a{i}",
            again=draw(hps.one_of(hps.none(), seconds)),
            parents=parents,
            recompute_ops=again_ops,
            recompute_bytes=draw(hps.integers(0, 5)),
            can_offload=draw(hps.integers(0, 5)) > 0,
            repeat=draw(hps.integers(0, 2)),
        )
    lean_s = draw(hps.sampled_from([0.0, 1.0, 10.0]))
    return draft.finish(base_bytes=draw(hps.integers(0, 5)), lean_s=lean_s)
