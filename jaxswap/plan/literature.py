"""Literature: what would the published systems do?

Input: a `Problem`. Output: the plan of a published policy, in our vocabulary. Each policy lists
its plans, from the least that leaves to the most, whatever the budget; the fastest that fits
is its answer, so that a tighter budget never gets a faster plan. They are baselines: each
docstring says what differs from the paper. `autotm.py` has the one that is an integer program.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from jaxswap.model.device import Progress
from jaxswap.model.timeline import Floats
from jaxswap.plan.base import Solution, make_solution
from jaxswap.plan.problem import (
    FIRST_OFFLOAD_GENE,
    KEEP_GENE,
    RECOMPUTE_GENE,
    Genes,
    Problem,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A published policy.

    Attributes:
        name: in the registry.
        list_plans: its plans, `[plans, candidates]`, whatever the budget.

    Example:
        >>> [make().name for make in PLANNERS][:2]
        ['vdnn-all', 'vdnn-conv']
    """

    name: str
    list_plans: Callable[[Problem], Genes]

    def solve(
        self, problem: Problem, rng: np.random.Generator, progress: Progress | None
    ) -> Solution:
        """The fastest of its plans that fits; the lowest one if none does."""
        genes = problem.allowed(self.list_plans(problem))
        costs = problem.costs_of(genes)
        best = genes[int(costs.argmin())]
        return make_solution(problem, best, self.name, evaluations=len(genes))


def list_vdnn_all(problem: Problem) -> Genes:
    """Every value is offloaded while the next layer runs, and reloaded one layer ahead.

    vDNN (Rhu et al., MICRO 2016), policy "all". What differs: layers are heavy ops, and what
    leaves is every candidate, not only the inputs of layers.
    """
    return _nearest_offload(problem, window=2, ahead=1)[None]


def list_vdnn_conv(problem: Problem) -> Genes:
    """Only what convolutions make or read is offloaded: they last long enough to hide it.

    vDNN (Rhu et al., MICRO 2016), policy "conv". What differs: in a step without convolutions
    the matrix products take their place.
    """
    ops = problem.program.ops
    kinds = ("conv",) if any(op.cost.kind == "conv" for op in ops) else ("dot",)
    chosen = [
        any(ops[op].cost.kind in kinds for op in _ops_of(problem, index))
        for index in range(problem.num_candidates)
    ]
    return np.where(chosen, _nearest_offload(problem, window=2, ahead=1), KEEP_GENE)[None]


def list_superneurons(problem: Problem) -> Genes:
    """Cheap layers are recomputed first; then the results of heavy ones leave, oldest first.

    SuperNeurons (Wang et al., PPoPP 2018). What differs: its tensor cache decides while the
    step runs, by least recent use; here the oldest leave, which is the same order in a
    forward pass. Its recomputation is cost-aware per segment; here each value is recomputed
    when it is needed, and stays while it is.
    """
    ops, values = problem.program.ops, problem.program.values
    makers = [values[c.value].producer for c in problem.program.candidates]
    is_heavy = np.array([at is not None and ops[at].is_heavy for at in makers])
    again = np.where(problem.options.is_allowed[:, RECOMPUTE_GENE], RECOMPUTE_GENE, KEEP_GENE)
    light = np.where(is_heavy, KEEP_GENE, again)
    plans = _prefixes(light, np.flatnonzero(light))
    heavy = np.where(is_heavy, _nearest_offload(problem, window=2, ahead=1), light)
    return np.concatenate([plans, _prefixes(heavy, np.flatnonzero(is_heavy), start=light)])


def list_capuchin(problem: Problem) -> Genes:
    """By free time: what can be swapped unseen is; of the rest, what recomputes cheapest.

    Capuchin (Peng et al., ASPLOS 2020), with its free time (idle minus both copies) and its
    MSPS (bytes saved per second of recomputation). What differs: times are forecast, not
    measured in a first iteration, and in-trigger feedback is the reload distance.
    """
    tracks = problem.timeline.tracks
    idle_s, copy_s = _idle_s(problem), np.array([t.out_s + t.in_s for t in tracks])
    free_s = idle_s - copy_s
    again_s = np.array([np.inf if t.recompute_s is None else t.recompute_s for t in tracks])
    size = np.array([t.kept_bytes for t in tracks], dtype=np.float64)
    on_time = _spread_offload(problem, int(np.searchsorted(problem.spreads, 1.0)))
    by_free_time = np.argsort(-free_s, kind="stable")
    # The link is one: what is swapped unseen is so only as long as the link has time.
    room_s = float(problem.timeline.op_s.sum()) / 2
    used_s = np.cumsum(np.array([t.in_s for t in tracks])[by_free_time])
    is_hidden = np.zeros(len(tracks), dtype=bool)
    is_hidden[by_free_time] = (free_s[by_free_time] >= 0) & (used_s <= room_s)
    is_again = ~is_hidden & (again_s <= np.maximum(copy_s - idle_s, 0.0) + copy_s)
    choice = np.where(is_again, RECOMPUTE_GENE, on_time)
    rate = size / np.maximum(np.where(is_again, again_s, copy_s), 1e-30)
    later = np.argsort(-np.where(is_hidden, -np.inf, rate), kind="stable")
    order = [*by_free_time[is_hidden[by_free_time]], *later[~is_hidden[later]]]
    return _prefixes(choice, np.array(order, dtype=np.int64))


def list_lms(problem: Problem) -> Genes:
    """The values with the longest way to their next use leave, reloaded some ops ahead.

    LMS (Le et al., TFLMS, ISMM 2018). What differs: its thresholds (`n_tensors`, `lb`) are
    tuned by hand; here every number of values is tried, at two and four ops ahead.
    """
    order = np.argsort(-_idle_s(problem), kind="stable")
    ahead = [_nearest_offload(problem, window=1, ahead=k) for k in (2, 4)]
    return np.concatenate([_prefixes(choice, order) for choice in ahead])


def list_modnn(problem: Problem) -> Genes:
    """The largest values leave first, copied in time: neither sooner nor later than needed.

    moDNN (Chen et al., DATE 2018), its offload and prefetch schedule. What differs: the choice
    of convolution algorithms and of sub-batches is not ours to make.
    """
    size = np.array([track.kept_bytes for track in problem.timeline.tracks])
    order = np.argsort(-size, kind="stable")
    spreads = range(len(problem.spreads))
    return np.concatenate([_prefixes(_spread_offload(problem, s), order) for s in spreads])


def list_chen(problem: Problem) -> Genes:
    """Every k-th value is kept, the others are recomputed from the last kept one.

    Chen et al., Training Deep Nets with Sublinear Memory Cost (2016): k = √n. What differs:
    every k is tried, as in its search over budgets, and segments are cut by candidates.
    """
    count = problem.num_candidates
    again = np.where(problem.options.is_allowed[:, RECOMPUTE_GENE], RECOMPUTE_GENE, KEEP_GENE)
    steps = np.unique(np.append(np.arange(1, min(count, 64) + 1), int(np.ceil(np.sqrt(count)))))
    is_kept = np.arange(count)[None] % steps[:, None] == steps[:, None] - 1
    return np.where(is_kept, KEEP_GENE, again)


def list_flashneuron(problem: Problem) -> Genes:
    """The first values of the step leave, as many as it takes.

    FlashNeuron (Bae et al., FAST 2021), its linear tensor selection. What differs: the other
    end is host memory, not an SSD, and nothing is compressed.
    """
    order = np.arange(problem.num_candidates)
    return _prefixes(_spread_offload(problem, len(problem.spreads) - 1), order)


def _prefixes(choice: Genes, order: np.ndarray, start: Genes | None = None) -> Genes:
    """The plans in which the first k of `order` leave as chosen, for every k."""
    start = np.full(len(choice), KEEP_GENE) if start is None else start
    plans = np.repeat(start[None], len(order) + 1, axis=0)
    for k, index in enumerate(order):
        plans[k + 1 :, index] = choice[index]
    return plans


def _nearest_offload(problem: Problem, *, window: int, ahead: int) -> Genes:
    """The allowed offload whose window and distance are closest; "keep" where none is."""
    options = problem.options
    far = np.abs(options.windows - window) + np.abs(options.aheads - ahead)
    is_offload = options.is_allowed & (np.arange(len(options.actions)) >= FIRST_OFFLOAD_GENE)
    far = np.where(is_offload, far, np.iinfo(np.int64).max)
    return np.where(is_offload.any(axis=1), far.argmin(axis=1), KEEP_GENE)


def _spread_offload(problem: Problem, spread: int) -> Genes:
    """The offload of that spread, or the nearest that is allowed."""
    spread = min(spread, len(problem.spreads) - 1)
    gene = FIRST_OFFLOAD_GENE + spread * len(problem.spreads) + spread
    windows, aheads = problem.options.windows[:, gene], problem.options.aheads[:, gene]
    rows = [
        _nearest_offload(problem, window=int(w), ahead=int(a))[index]
        for index, (w, a) in enumerate(zip(windows, aheads, strict=True))
    ]
    return np.array(rows, dtype=np.int64)


def _idle_s(problem: Problem) -> Floats:
    ends_s = np.concatenate([[0.0], np.cumsum(problem.timeline.op_s)])
    return np.array([ends_s[t.needed] - ends_s[t.read_end] for t in problem.timeline.tracks])


def _ops_of(problem: Problem, index: int) -> tuple[int, ...]:
    value = problem.program.values[problem.program.candidates[index].value]
    return value.readers if value.producer is None else (value.producer, *value.readers)


_POLICIES: dict[str, Callable[[Problem], Genes]] = {
    "vdnn-all": list_vdnn_all,
    "vdnn-conv": list_vdnn_conv,
    "superneurons": list_superneurons,
    "capuchin": list_capuchin,
    "lms": list_lms,
    "modnn": list_modnn,
    "chen": list_chen,
    "flashneuron": list_flashneuron,
}
PLANNERS = tuple(partial(Policy, name=name, list_plans=rule) for name, rule in _POLICIES.items())
"""A factory for each published policy."""
