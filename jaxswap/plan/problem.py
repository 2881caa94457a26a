"""Problem: what is to be decided, and what does an answer cost?

Input: a `Program`, a `Device` and budgets. Output: a `Problem`, which numbers the options of
every candidate and costs answers, many at a time.

An answer is a row of *genes*, one per candidate: the position of its choice in the table of
options. Option 0 is keep, 1 recompute; the others offload, with a window and a reload
distance that are multiples of what the copy would take alone.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from jaxswap.apply.decision import ACTIONS, Decision
from jaxswap.model.device import Device
from jaxswap.model.kernel import FITTED, Efficiency
from jaxswap.model.population import KEEP, OFFLOAD, RECOMPUTE, Forecasts, simulate_many
from jaxswap.model.simulate import Forecast, simulate
from jaxswap.model.timeline import Floats, Ints, Scope, Timeline, Track, build_timeline
from jaxswap.program.ir import Program

Genes = NDArray[np.int64]
KEEP_GENE, RECOMPUTE_GENE, FIRST_OFFLOAD_GENE = 0, 1, 2
# XLA does not keep a copy in flight for long once others are due: plans that count on more turns
# than this were forecast not to wait, and did.
_MAX_TURNS = 10


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of each candidate: arrays `[candidates, options]`.

    Attributes:
        actions: of each option, as positions in `ACTIONS`.
        windows: the `window_ops` of each candidate's options.
        aheads: the `reload_ahead_ops`.
        is_allowed: whether an option is possible, does something, and is no other's double.
    """

    actions: Ints
    windows: Ints
    aheads: Ints
    is_allowed: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Minimise the time of a step within a budget of device and host memory.

    Attributes:
        program: the step.
        device: what it runs on.
        budget_bytes: device bytes that the step may have at any op.
        host_budget_bytes: host bytes for what is offloaded; None for any number.
        efficiency: what kernels reach of the device's peaks.
        spreads: windows and reload distances to consider, as multiples of the time that the
            copy takes alone; 0 is the shortest there is.

    Example:
        >>> from jaxswap.program.ir import Program
        >>> program = Program(ops=(), values=(), candidates=(), base_bytes=7)
        >>> h100 = Device.named("h100-sxm")
        >>> Problem(program=program, device=h100, budget_bytes=8).baseline.peak_bytes
        7
    """

    program: Program
    device: Device
    budget_bytes: int
    host_budget_bytes: int | None = None
    efficiency: Efficiency = FITTED
    spreads: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 4.0)

    @cached_property
    def timeline(self) -> Timeline:
        """The step on its device, ready to be simulated."""
        return build_timeline(self.program, self.device, self.efficiency)

    @cached_property
    def options(self) -> Options:
        """What may be done with each candidate."""
        return _list_options(self.timeline, self.spreads)

    @cached_property
    def baseline(self) -> Forecast:
        """The forecast of the unplanned step."""
        return simulate(self.program, {}, self.device, efficiency=self.efficiency)

    @cached_property
    def worst_s(self) -> float:
        """More seconds than any plan takes: all copies and recomputations, one by one."""
        each = (t.out_s + t.in_s + (t.recompute_s or 0.0) for t in self.timeline.tracks)
        slow = min(self.timeline.to_host_fraction, self.timeline.to_device_fraction)
        return float(self.timeline.op_s.sum()) + sum(each) / slow + 1e-9

    @property
    def num_candidates(self) -> int:
        """How many values there are to decide about."""
        return len(self.program.candidates)

    @property
    def fits_unplanned(self) -> bool:
        """Whether there is nothing to do."""
        return self.baseline.fits(self.budget_bytes, self.host_budget_bytes)

    def at_budget(self, budget_bytes: int) -> "Problem":
        """The same problem with another budget; what does not depend on it is not redone."""
        other = replace(self, budget_bytes=budget_bytes)
        for name in ("timeline", "options", "baseline", "worst_s"):
            other.__dict__[name] = getattr(self, name)
        return other

    def with_slower_link(self, slowness: float) -> "Problem":
        """The same problem where copies take so many times longer; infinitely: without copies."""
        if slowness == 1.0:
            return self
        if math.isinf(slowness):
            candidates = [replace(c, can_offload=False) for c in self.program.candidates]
            program = replace(self.program, candidates=tuple(candidates))
            return replace(self, program=program)
        links = {
            name: replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / slowness)
            for name, link in (
                ("to_host", self.device.to_host),
                ("to_device", self.device.to_device),
            )
        }
        return replace(self, device=replace(self.device, **links))

    def empty_genes(self) -> Genes:
        """The answer that keeps everything."""
        return np.zeros(self.num_candidates, dtype=np.int64)

    def allowed(self, genes: Genes) -> Genes:
        """The same answers, with "keep" for every choice that its candidate does not allow."""
        genes = np.asarray(genes, dtype=np.int64)
        ok = self.options.is_allowed[np.arange(self.num_candidates), genes]
        return np.where(ok, genes, KEEP_GENE)

    def evaluate(self, genes: Genes) -> Forecasts:
        """Simulates answers, `[answers, candidates]`, or one."""
        genes = np.atleast_2d(genes)
        at = np.arange(self.num_candidates)
        options = self.options
        actions, windows, aheads = options.actions[genes], options.windows, options.aheads
        return simulate_many(self.timeline, actions, windows[at, genes], aheads[at, genes])

    def fits(self, forecasts: Forecasts) -> NDArray[np.bool_]:
        """Which answers are within the budgets."""
        return self.overshoot_bytes(forecasts) == 0

    def overshoot_bytes(self, forecasts: Forecasts) -> Ints:
        """The bytes by which answers exceed the budgets; 0 for those that fit."""
        over = np.maximum(forecasts.peak_bytes - self.budget_bytes, 0)
        if self.host_budget_bytes is not None:
            over = over + np.maximum(forecasts.host_bytes - self.host_budget_bytes, 0)
        return over

    def costs(self, forecasts: Forecasts) -> Floats:
        """What to minimise: seconds of what fits; above all of those, what does not."""
        over = self.overshoot_bytes(forecasts) / max(self.budget_bytes, 1)
        return np.where(over > 0, self.worst_s * (1.0 + over), forecasts.step_s)

    def costs_of(self, genes: Genes) -> Floats:
        """Simulates answers and says what they cost."""
        return self.costs(self.evaluate(genes))

    def decide(self, genes: Genes) -> dict[str, Decision]:
        """An answer as decisions, for the candidates that are not kept."""
        found = {}
        for index, (name, gene) in enumerate(
            zip(self.program.candidate_names, genes.tolist(), strict=True)
        ):
            action = ACTIONS[self.options.actions[gene]]
            if action == "offload":
                window = int(self.options.windows[index, gene])
                ahead = int(self.options.aheads[index, gene])
                found[name] = Decision(action=action, window_ops=window, reload_ahead_ops=ahead)
            elif action == "recompute":
                found[name] = Decision(action=action)
        return found

    def forecast(self, genes: Genes) -> Forecast:
        """The full forecast of one answer, by the plain simulator."""
        return simulate(self.program, self.decide(genes), self.device, efficiency=self.efficiency)


def _list_options(timeline: Timeline, spreads: tuple[float, ...]) -> Options:
    num_offloads = len(spreads) ** 2
    actions = np.array([KEEP, RECOMPUTE] + [OFFLOAD] * num_offloads, dtype=np.int64)
    shape = (len(timeline.tracks), len(actions))
    windows, aheads = np.ones(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    is_allowed = np.zeros(shape, dtype=bool)
    ends_s = np.concatenate([[0.0], np.cumsum(timeline.op_s)])
    for index, track in enumerate(timeline.tracks):
        forward, backward = timeline.scopes[track.forward], timeline.scopes[track.backward]
        is_allowed[index, KEEP_GENE] = True
        far = int(backward.turns_before[track.needed])
        near = int(forward.turns_before[track.read_end])
        is_recomputable = track.recompute_s is not None and (track.leaves_always or near < far)
        is_allowed[index, RECOMPUTE_GENE] = is_recomputable and track.size_bytes > 0
        seen = set()
        for k in range(num_offloads):
            out, back = spreads[k // len(spreads)], spreads[k % len(spreads)]
            window = min(_count_window(forward, track, ends_s, out * track.out_s), _MAX_TURNS)
            ahead = _count_ahead(backward, track, ends_s, back * track.in_s)
            gene = FIRST_OFFLOAD_GENE + k
            windows[index, gene], aheads[index, gene] = window, ahead
            leave = max(near, int(forward.turns_before[track.producer + 1]) + window - 1)
            goes = track.leaves_always or leave < far - ahead
            possible = track.can_offload and goes and track.size_bytes > 0
            is_allowed[index, gene] = possible and (window, ahead) not in seen
            seen.add((window, ahead))
    return Options(actions=actions, windows=windows, aheads=aheads, is_allowed=is_allowed)


def _count_window(scope: Scope, track: Track, ends_s: Floats, copy_s: float) -> int:
    """The first turn behind a value that starts no sooner than `copy_s` after it is made."""
    first = int(scope.turns_before[track.producer + 1])
    starts_s = ends_s[scope.turn_starts[first:]] - ends_s[track.producer + 1]
    return max(int(np.searchsorted(starts_s, copy_s * (1 - 1e-12))) + 1, 1)


def _count_ahead(scope: Scope, track: Track, ends_s: Floats, copy_s: float) -> int:
    """How many turns ahead a reload of `copy_s` is issued to be there when it is needed.

    Where a trip is too short for it, the trip before can hand it on, whose last turns then have
    to take as long.
    """
    if copy_s <= 0:
        return 0
    last = int(scope.turns_before[track.needed])
    # The reload that is k turns ahead is issued at the end of turn `last - k`, if not later.
    lead_s = ends_s[track.needed] - ends_s[scope.turn_ends[:last]][::-1]
    ahead = int(np.searchsorted(lead_s, copy_s * (1 - 1e-12))) + 1
    if ahead > last and track.hands_on:
        lead_s = ends_s[scope.end] - ends_s[scope.turn_ends[:-1]][::-1]
        before = int(np.searchsorted(lead_s, copy_s * (1 - 1e-12))) + 1
        return last + min(before, scope.num_turns, _MAX_TURNS)
    return min(ahead, max(last, 1), _MAX_TURNS)
