"""Liveness: when is each value on the device, and how high does memory climb?

Input: a `Program`. Output: the lifetime of each value, the `MemoryCurve` of the step as
written, who is alive at an op, and how long each candidate lies idle.
A value is live from the op that makes it to the last op that reads it, *both ends included*:
an op's inputs and outputs coexist while it runs. Seen from outside, a loop is one op: what a
loop reads is there until its last trip, and what it stacks is there from its first.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxswap.program.ir import Candidate, Program, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """When a value is on the device: from `first_op` to `last_op`, both included.

    Attributes:
        value: its position in `Program.values`.
        first_op: the op that makes it, or the first of the loop that stacks it.
        last_op: the last op that reads it, or the last of the loop that does.
        size_bytes: of all that is there at once: every trip of a stacked value.
    """

    value: int
    first_op: int
    last_op: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Device bytes while each op runs, what is there throughout included."""

    bytes_at: tuple[int, ...]

    @property
    def peak_bytes(self) -> int:
        """The most bytes at any op."""
        return max(self.bytes_at, default=0)

    @property
    def peak_op(self) -> int:
        """The first op at which the peak is reached."""
        return self.bytes_at.index(self.peak_bytes) if self.bytes_at else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """How long a candidate lies in memory unread between forward and backward pass.

    Attributes:
        candidate: its position in `Program.candidates`.
        after_op: the last forward op that reads it.
        before_op: the first backward op that reads it.
        size_bytes: of all of it that is there at once.
    """

    candidate: int
    after_op: int
    before_op: int
    size_bytes: int


def loop_chain(program: Program, op: int) -> tuple[int, ...]:
    """The loops that an op is in, outermost first."""
    chain = []
    loop = program.ops[op].loop
    while loop is not None:
        chain.append(loop)
        loop = program.loops[loop].parent
    return tuple(reversed(chain))


def common_loop(program: Program, ops: Iterable[int]) -> int | None:
    """The innermost loop that all of `ops` are in; None if there is none."""
    chains = [loop_chain(program, op) for op in ops]
    common = None
    for level in zip(*chains, strict=False):
        if len(set(level)) > 1:
            break
        common = level[0]
    return common


def span_from(program: Program, op: int, scope: int | None) -> tuple[int, int]:
    """The ops that an op stands for, seen from `scope`, a loop or None for the whole step.

    Returns:
        The op itself, twice, if it is directly in `scope` or not in it at all; otherwise the
        first and the last op of the loop in `scope` that holds it.
    """
    chain = loop_chain(program, op)
    if scope is not None and scope not in chain:
        return op, op
    depth = 0 if scope is None else chain.index(scope) + 1
    if depth == len(chain):
        return op, op
    loop = program.loops[chain[depth]]
    return loop.first_op, loop.last_op


def count_stacked(program: Program, value: Value) -> int:
    """How many trips of a value are on the device at once."""
    if not value.is_stacked or value.producer is None:
        return 1
    shared = common_loop(program, (value.producer, *value.readers))
    trips = value.trips
    while shared is not None:
        trips //= program.loops[shared].trips
        shared = program.loops[shared].parent
    return max(trips, 1)


def find_lifetimes(program: Program, *, is_planned: bool = False) -> list[Lifetime]:
    """The lifetimes of all values besides arguments and outputs, which `base_bytes` holds.

    Args:
        program: the step.
        is_planned: whether a plan is applied to it; implicit values then end with the forward
            pass.
    """
    found = []
    for index, value in enumerate(program.values):
        if value.is_argument or value.is_output or value.producer is None:
            continue
        ops = (value.producer, *value.readers)
        if is_planned and value.is_implicit:
            ops = tuple(op for op in ops if program.ops[op].phase != "backward")
        scope = common_loop(program, ops)
        spans = [span_from(program, op, scope) for op in ops]
        first, last = spans[0][0], max(end for _, end in spans)
        if scope is not None and min(ops) < value.producer:
            # Read before it is made: by the next trip, so it is there during all of them.
            first, last = program.loops[scope].first_op, program.loops[scope].last_op
        is_cut = len(ops) <= len(value.readers)
        stacked = 1 if is_cut else count_stacked(program, value)
        size_bytes = value.size_bytes * stacked
        found.append(Lifetime(value=index, first_op=first, last_op=last, size_bytes=size_bytes))
    return found


def sum_lifetimes(lifetimes: Iterable[Lifetime], num_ops: int) -> list[int]:
    """Sums the bytes that are alive at each op, in O(values + ops)."""
    change = [0] * (num_ops + 1)
    for life in lifetimes:
        change[life.first_op] += life.size_bytes
        change[life.last_op + 1] -= life.size_bytes
    return list(itertools.accumulate(change[:-1]))


def memory_curve(program: Program) -> MemoryCurve:
    """Device bytes at every op of the step as it is written.

    Example:
        >>> from jaxswap.model.kernel import KernelCost
        >>> from jaxswap.program.ir import Op, Value
        >>> op = Op(name="exp", phase="forward", reads=(), writes=(0,), cost=KernelCost())
        >>> x = Value(name="0/0", size_bytes=8, producer=0, readers=())
        >>> memory_curve(Program(ops=(op,), values=(x,), candidates=(), base_bytes=2)).bytes_at
        (10,)
    """
    alive = sum_lifetimes(find_lifetimes(program), len(program.ops))
    scratch = (op.scratch_bytes - op.reused_bytes for op in program.ops)
    base = program.base_bytes
    return MemoryCurve(bytes_at=tuple(base + a + s for a, s in zip(alive, scratch, strict=True)))


def find_alive(program: Program, op: int) -> list[Lifetime]:
    """The values that are on the device while `op` runs, the largest first."""
    alive = [life for life in find_lifetimes(program) if life.first_op <= op <= life.last_op]
    return sorted(alive, key=lambda life: (-life.size_bytes, life.value))


def find_idle(program: Program) -> list[Idle]:
    """The time that each candidate spends unread, in the order of the candidates.

    Example:
        >>> find_idle(Program(ops=(), values=(), candidates=()))
        []
    """
    return [
        Idle(
            candidate=index,
            after_op=candidate.last_forward,
            before_op=candidate.first_backward,
            size_bytes=_all_bytes(program, candidate),
        )
        for index, candidate in enumerate(program.candidates)
    ]


def _all_bytes(program: Program, candidate: Candidate) -> int:
    value = program.values[candidate.value]
    return value.size_bytes * count_stacked(program, value)


def find_children(candidates: Sequence[Candidate]) -> list[list[int]]:
    """For each candidate, those whose recomputation starts from it."""
    children: list[list[int]] = [[] for _ in candidates]
    for index, candidate in enumerate(candidates):
        for parent in candidate.parents:
            children[parent].append(index)
    return children
