"""Linear: what must hold of every plan within the budget, in linear inequalities?

Input: a `Problem` and the ops at which its budget is enforced. Output: a `LinearModel`, rows
of `matrix @ columns <= limits`, which every plan of the simulator satisfies.

Columns: offload and recompute (binary, one each per candidate), the waiting, the parents that
a recomputed child needs early, for a few *checkpoints* the part of each candidate that is away
on the host then, and the ops that several recomputations share. Bytes are in units of the
budget and seconds in units of the step.
- Bytes at an op: fixed ones, what is kept, what has not left yet (with the shortest window, or
  at checkpoints as far as it is away), what is needed now, and parents from the op at which a
  recomputed child needs them. Left out: children that are needed early by their children.
- Seconds: all ops, what is recomputed, and waiting. What is made after op `a` and away at `t`
  has gone out between the two, and comes in between `t` and the op that needs it. If that
  takes longer than the ops between, and what is recomputed there, the device waits.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from jaxswap.model.timeline import Floats, Ints, Track
from jaxswap.plan.problem import FIRST_OFFLOAD_GENE, RECOMPUTE_GENE, Problem
from jaxswap.program import liveness

_MAX_CHECKPOINTS = 16
_MAX_EDGES = 12

Rows = tuple[sparse.csr_array, Floats]


@dataclass(frozen=True, slots=True)
class _Early:
    """Bytes of a parent, from op `first` to before `end`, for the sake of a recomputed child."""

    parent: int
    child: int
    first: int
    end: int
    is_before: bool  # before the parent's own turn; otherwise after it


class LinearModel:
    """The inequalities of one problem."""

    def __init__(self, problem: Problem, ops: Ints, with_recompute: bool):
        self.problem, self.ops, self.with_recompute = problem, ops, with_recompute
        self.tracks = problem.timeline.tracks
        self.count = len(self.tracks)
        self.scale_s = max(float(problem.timeline.op_s.sum()), 1e-30)
        self.scale_bytes = max(problem.budget_bytes, 1)
        self.ends_s = np.concatenate([[0.0], np.cumsum(problem.timeline.op_s)])
        self.made = np.array([track.producer for track in self.tracks])
        self.needed = np.array([track.needed for track in self.tracks])
        self.leaves = np.array([self._first_leave(track) for track in self.tracks])
        self.again_s = np.array([track.recompute_s or 0.0 for track in self.tracks])
        self.own_s = np.array([track.own_s for track in self.tracks])
        self.copies_s = (
            np.array([track.out_s for track in self.tracks]),
            np.array([track.in_s for track in self.tracks]),
        )
        self.earliest = self._find_earliest()
        self.early = self._list_early()
        self.checkpoints = _thin(ops, _MAX_CHECKPOINTS)
        self.first_away = 2 * self.count + 1 + len(self.early)
        self.first_shared = self.first_away + self.count * len(self.checkpoints)
        self.num_columns = self.first_shared + len(problem.timeline.shared_s)

    def costs(self) -> Floats:
        """Seconds besides the ops themselves, of each column."""
        costs = np.zeros(self.num_columns)
        spared_s = np.array([track.spared_s for track in self.tracks])
        costs[: self.count] = -spared_s / self.scale_s
        lean_s = np.array([track.lean_s for track in self.tracks])
        costs[self.count : 2 * self.count] = (self.own_s - spared_s - lean_s) / self.scale_s
        costs[self.first_shared :] = self.problem.timeline.shared_s / self.scale_s
        costs[2 * self.count] = 1.0
        return costs

    def is_binary(self) -> Ints:
        """Which columns are choices."""
        return (np.arange(self.num_columns) < 2 * self.count).astype(np.int64)

    def upper(self) -> Floats:
        """The most that each column can be."""
        allowed = self.problem.options.is_allowed
        upper = np.ones(self.num_columns)
        upper[: self.count] = allowed[:, FIRST_OFFLOAD_GENE:].any(axis=1)
        upper[self.count : 2 * self.count] = allowed[:, RECOMPUTE_GENE] * self.with_recompute
        upper[2 * self.count] = np.inf
        for k, op in enumerate(self.checkpoints):
            is_idle = (self.leaves <= op) & (op < self.needed)
            upper[self._away(k)] = upper[: self.count] * is_idle
        return upper

    def rows(self) -> Rows:
        """All inequalities."""
        parts = [self._choose_one(), self._bytes(), self._early_rows(), self._away_rows()]
        parts += [self._go_out(), self._come_in(), self._shared_rows()]
        if self.problem.host_budget_bytes is not None:
            matrix = np.zeros((1, self.num_columns))
            matrix[0, : self.count] = [track.host_bytes for track in self.tracks]
            limit = np.array([self.problem.host_budget_bytes], dtype=np.float64)
            parts.append((sparse.csr_array(matrix / self.scale_bytes), limit / self.scale_bytes))
        matrices, limits = zip(*parts, strict=True)
        return sparse.csr_array(sparse.vstack(matrices)), np.concatenate(limits)

    def _away(self, k: int) -> slice:
        first = self.first_away + k * self.count
        return slice(first, first + self.count)

    def _first_leave(self, track: Track) -> int:
        scope = self.problem.timeline.scopes[track.forward]
        turn = int(scope.turns_before[track.producer + 1])
        return max(track.read_end, int(scope.turn_starts[min(turn, len(scope.turn_starts) - 1)]))

    def _find_earliest(self) -> Ints:
        """The first op at which each candidate can be needed, for a child's child at last."""
        scopes = self.problem.timeline.scopes
        earliest = self.needed.copy()
        for index in reversed(range(self.count)):
            for parent in self.tracks[index].parents:
                lift = scopes[self.tracks[parent].backward].lift_first
                earliest[parent] = min(earliest[parent], lift[earliest[index]])
        return earliest

    def _list_early(self) -> list[_Early]:
        """Parents that children need at other times than their own, in parts end to end."""
        children = liveness.find_children(self.problem.program.candidates)
        found = []
        for parent, track in enumerate(self.tracks):
            scope = self.problem.timeline.scopes[track.backward]
            firsts = [(int(scope.lift_first[self.needed[c]]), c) for c in children[parent]]
            ends = [(int(scope.lift_last[self.earliest[c]]) + 1, c) for c in children[parent]]
            before = sorted(pair for pair in firsts if pair[0] < track.needed)
            after = sorted(pair for pair in ends if pair[0] > track.last + 1)
            stops = [op for op, _ in before[1:]] + [track.needed]
            for (op, child), stop in zip(before, stops, strict=False):
                found.append(_Early(parent, child, op, stop, True))
            starts = [track.last + 1] + [op for op, _ in after[:-1]]
            for (op, child), start in zip(after, starts, strict=False):
                found.append(_Early(parent, child, start, op, False))
        return found

    def _choose_one(self) -> Rows:
        eye = sparse.eye_array(self.count)
        rest = sparse.csr_array((self.count, self.num_columns - 2 * self.count))
        return sparse.csr_array(sparse.hstack([eye, eye, rest])), np.ones(self.count)

    def _bytes(self) -> Rows:
        timeline, count, ops = self.problem.timeline, self.count, self.ops
        matrix, kept = np.zeros((len(ops), self.num_columns)), np.zeros(len(ops))
        for index, track in enumerate(self.tracks):
            last = int(timeline.scopes[track.common].lift_last[track.last])
            stay = _rows(ops, track.kept_first, last + 1)
            kept[stay] += track.kept_bytes
            columns, ends = (index, count + index), (int(self.leaves[index]), track.read_end)
            for column, end in zip(columns, ends, strict=True):
                matrix[stay, column] -= track.kept_bytes
                matrix[_rows(ops, track.made_first, end), column] += track.size_bytes
                matrix[_rows(ops, track.needed, track.last + 1), column] += track.back_bytes
        for k, each in enumerate(self.early):
            rows = _rows(ops, each.first, each.end)
            matrix[rows, 2 * count + 1 + k] += self.tracks[each.parent].back_bytes
        size = np.array([track.size_bytes for track in self.tracks])
        for k, op in enumerate(self.checkpoints):
            # An offloaded value is gone only as far as it is away.
            row = int(np.searchsorted(ops, op))
            idle_bytes = size * ((self.leaves <= op) & (op < self.needed))
            matrix[row, :count] += idle_bytes
            matrix[row, self._away(k)] -= idle_bytes
        fixed = timeline.fixed_bytes[ops] + timeline.scratch_bytes[ops] + kept
        limits = (self.problem.budget_bytes - fixed) / self.scale_bytes
        return sparse.csr_array(matrix / self.scale_bytes), limits

    def _early_rows(self) -> Rows:
        first = 2 * self.count + 1
        matrix = sparse.lil_array((2 * len(self.early), self.num_columns))
        limits = np.zeros(2 * len(self.early))
        for k, each in enumerate(self.early):
            matrix[2 * k, first + k] = -1.0
            matrix[2 * k, self.count + each.child] = 1.0
            if each.is_before:
                # Where the parent is kept, it is there already.
                matrix[2 * k, each.parent] = matrix[2 * k, self.count + each.parent] = 1.0
                limits[2 * k] = 1.0
            other = k - 1 if each.is_before else k + 1
            near = self.early[other] if 0 <= other < len(self.early) else None
            if near and (near.parent, near.is_before) == (each.parent, each.is_before):
                # What an earlier child needed is there for the later one, and vice versa.
                matrix[2 * k + 1, first + other], matrix[2 * k + 1, first + k] = 1.0, -1.0
        return matrix.tocsr(), limits

    def _away_rows(self) -> Rows:
        """Only what is offloaded is away."""
        num = len(self.checkpoints)
        eye = sparse.eye_array(self.count)
        left = sparse.vstack([-eye] * num)
        middle = sparse.csr_array((num * self.count, self.first_away - self.count))
        away = sparse.eye_array(num * self.count)
        rest = sparse.csr_array((num * self.count, self.num_columns - self.first_shared))
        matrix = sparse.hstack([left, middle, away, rest])
        return sparse.csr_array(matrix), np.zeros(num * self.count)

    def _shared_rows(self) -> Rows:
        """An op that recomputations share runs again if any of them does."""
        pairs = [(index, slot) for index, t in enumerate(self.tracks) for slot in t.shared]
        matrix = sparse.lil_array((len(pairs), self.num_columns))
        for row, (index, slot) in enumerate(pairs):
            matrix[row, self.count + index] = 1.0
            matrix[row, self.first_shared + slot] = -1.0
        return matrix.tocsr(), np.zeros(len(pairs))

    def _go_out(self) -> Rows:
        first_back = int(self.earliest.min())
        parts = []
        for k, op in enumerate(self.checkpoints):
            for a in _thin(np.unique(self.made), _MAX_EDGES):
                if a + 1 <= op:
                    parts.append((k, self.made >= a, self.ends_s[op] - self.ends_s[a + 1], 0))
        is_late = [bool(self.checkpoints[part[0]] > first_back) for part in parts]
        return self._link_rows(parts, is_late)

    def _come_in(self) -> Rows:
        parts = []
        for k, op in enumerate(self.checkpoints):
            for b in _thin(np.unique(self.needed), _MAX_EDGES):
                if op + 1 <= b:
                    inside = (self.needed <= b) & (op < self.earliest)
                    parts.append((k, inside, self.ends_s[b] - self.ends_s[op + 1], 1))
        return self._link_rows(parts, [True] * len(parts))

    def _link_rows(self, parts: list, has_recompute: list[bool]) -> Rows:
        """What is copied in a span of ops takes no longer than it, and what is waited."""
        matrix, limits = np.zeros((len(parts), self.num_columns)), np.zeros(len(parts))
        for row, (k, inside, span_s, direction) in enumerate(parts):
            matrix[row, self._away(k)] = self.copies_s[direction] * inside
            matrix[row, self.count : 2 * self.count] = -self.again_s * has_recompute[row]
            matrix[row, 2 * self.count] = -self.scale_s
            limits[row] = span_s
        return sparse.csr_array(matrix / self.scale_s), limits / self.scale_s


def _rows(ops: Ints, first: int, end: int) -> slice:
    return slice(int(np.searchsorted(ops, first)), int(np.searchsorted(ops, end)))


def _thin(ops: Ints, count: int) -> Ints:
    """At most `count` of the ops, evenly, the first and the last among them."""
    if len(ops) <= count:
        return ops
    return ops[np.unique(np.linspace(0, len(ops) - 1, count).astype(np.int64))]
