"""Batch size: `choose_batch_size`, which batch trains the most samples per second on a device.

Input: a step, and a function from a batch size to its arguments. Output: a `BatchChoice`: the
size, its plan, and a table of every size looked at.
A few sizes are traced, the rest predicted; the largest that fits as it is written is compiled;
those that could win are planned by the fast planner; the best of them and its neighbours are
planned as asked for, compiled, and compared by replay, and so on from the best of these.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax

from jaxswap._api import NEARLY, open_cache, plan_to_beat
from jaxswap._attempt import Asked
from jaxswap._batch_choice import BatchChoice, BatchRow, give_reason
from jaxswap._collect import rare_collections
from jaxswap._confirm import TooSlowError
from jaxswap._errors import BadArgumentError, BudgetInfeasibleError
from jaxswap._step import Step
from jaxswap._terminal import shown_progress
from jaxswap._units import format_bytes
from jaxswap.model.device import Device, Progress
from jaxswap.model.presets import find_device
from jaxswap.model.simulate import forecast_kept
from jaxswap.plan import batch
from jaxswap.plan.base import Solution, find_planner, run_planner
from jaxswap.plan.budget import DEFAULT_SHARE, Budget, parse_budget
from jaxswap.plan.plan import Plan
from jaxswap.plan.problem import Problem
from jaxswap.verify.target import open_pool
from jaxswap.verify.verify import begin_verifying

_QUICK = "exact"
_MAX_GROWTH = 8  # times the largest size that fits as it is written
_FIRST = (4, 8)  # sizes to trace before anything is known


def choose_batch_size(
    fn: Callable,
    make_args: Callable[[int], Sequence[Any]],
    *,
    device: Device | str | None = None,
    budget: Budget | None = None,
    batch_sizes: Sequence[int] | None = None,
    planner: str = "genetic",
    donate_argnums: int | tuple[int, ...] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> BatchChoice:
    """Chooses the batch size with the best throughput within a budget.

    Args:
        fn: the step.
        make_args: gives the step's arguments for a batch size, arrays or
            `jax.ShapeDtypeStruct`s; the batch is the first axis of what depends on it.
        device: a name from `jaxswap.devices()`, a `Device` or its file; the attached GPU by
            default.
        budget: as in `jaxswap.plan`; by default the device's memory less 5 %.
        batch_sizes: the sizes to choose from; by default those that suit the hardware.
        planner: makes the plans that are compiled. The search before them uses `"exact"`.
        donate_argnums: as in `jax.jit`.
        seed: of the planner.
        progress: called as `progress(done, total, label)`; a bar by default.

    Returns:
        The choice. Its plan is confirmed by the compiler.

    Raises:
        BudgetInfeasibleError: no size fits, planned or not.
        BadArgumentError: `make_args` ignores its argument, or the batch is not the first axis.
    """
    target = Device.detect() if device is None else find_device(device)
    asked = _check_sizes(batch_sizes)
    with (
        rare_collections(),
        shown_progress("choosing a batch size", progress) as show,
        open_pool() as pool,
    ):
        search = _Search(
            fn=fn,
            make_args=make_args,
            device=target,
            budget_bytes=parse_budget(DEFAULT_SHARE if budget is None else budget, target),
            asked=Asked(planner=find_planner(planner).name, seed=seed),
            donated=(donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums),
            report=show,
            pool=pool,
        )
        return search.run(asked)


@dataclass(kw_only=True, eq=False)
class _Search:
    fn: Callable
    make_args: Callable[[int], Sequence[Any]]
    device: Device
    budget_bytes: int
    asked: Asked
    donated: tuple[int, ...]
    report: Progress
    pool: Executor

    def __post_init__(self):
        self.steps: dict[int, Step] = {}  # what is traced of a size serves all its plans
        self.problem_at = cache(self._trace)
        self.samples: dict[int, batch.Sample] = {}
        self.plans: dict[int, Plan | None] = {}  # confirmed; None if none fits and is fast
        self.solved: dict[int, Solution] = {}  # by the planner that is quick
        self.written_slower = 1.0  # than its forecast, compiled as it is written

    def run(self, asked: list[int] | None) -> BatchChoice:
        sizes = self._look_around(asked)
        samples = batch.predict_samples(self.samples, sizes)
        fitting = [b for b in sizes if self._is_forecast_to_fit(samples[b])]
        self._compile_largest(fitting)
        self._correct_written(samples)
        bounds = {b: batch.find_bound_s(samples[b], self.budget_bytes, self.device) for b in sizes}
        bounds |= {b: samples[b].step_s * self.written_slower for b in fitting}
        quick = dict(batch.search_sizes(bounds, lambda size: self._plan_quickly(size, samples)))
        if not quick:
            raise self._explain_nothing_fits(min(sizes))
        forecasts = {b: b / seconds for b, seconds in quick.items()}
        if (promising := batch.choose_best(forecasts)) not in fitting:
            self._compile_smallest_planned([b for b in sizes if b >= promising])
        forecasts |= {b: b / bounds[b] for b in self.plans if b not in forecasts}
        first = batch.choose_best({b: r for b, r in forecasts.items() if b in fitting} or forecasts)
        known = {size: self._find_rate(size) for size in self.plans}
        begin = lambda missing: self._begin(b for b in missing if b in fitting)
        rates = batch.climb(first, forecasts, known, self._find_rate, begin)
        if not rates:
            raise self._explain_nothing_fits(min(sizes))
        unplanned = [b for b in rates if self._plan(b).is_empty]
        best = batch.choose_best(rates, rates[max(unplanned)] if unplanned else 0.0)
        samples = batch.predict_samples(self.samples, sizes)  # more is known than before
        rows = [self._row(b, samples, quick) for b in sorted(sizes)]
        return BatchChoice(
            batch_size=best,
            plan=self._plan(best),
            min_swap_bytes=batch.find_min_swap_bytes(samples[best], self.budget_bytes),
            table=tuple(rows),
            reason=give_reason(best, rows),
            budget_bytes=self.budget_bytes,
            device=self.device.name,
        )

    def _step(self, size: int) -> Step:
        if size not in self.steps:
            make_args = lambda: tuple(self.make_args(size))
            self.steps[size] = Step(
                fn=self.fn, make_args=make_args, donated=self.donated, device=self.device
            )
        return self.steps[size]

    def _trace(self, size: int) -> Problem:
        self.report(0, 1, f"tracing batch {size}")
        program = self._step(size).program
        problem = Problem(program=program, device=self.device, budget_bytes=self.budget_bytes)
        tracks = problem.timeline.tracks
        rates = [t.recompute_s / t.kept_bytes for t in tracks if t.recompute_s and t.kept_bytes]
        seconds = problem.timeline.op_s + problem.timeline.implicit_s
        updates = [s for op, s in zip(program.ops, seconds, strict=True) if op.phase == "update"]
        kept = forecast_kept(program, problem.timeline)
        self.samples[size] = batch.Sample(
            peak_bytes=problem.baseline.peak_bytes,
            step_s=problem.baseline.step_s,
            update_s=float(sum(updates)),
            again_s_per_byte=min(rates, default=0.0),
            kept_bytes=min(kept.peak_bytes, problem.baseline.peak_bytes),
            kept_s=min(kept.step_s, problem.baseline.step_s),
        )
        return problem

    def _look_around(self, asked: list[int] | None) -> list[int]:
        """Traces a few sizes, and lists those to choose from."""
        first = _FIRST if asked is None else (asked[0], asked[-1])
        if len(set(first)) == 1:
            first = (first[0], 2 * first[0])
        _check_arguments(self.make_args, *first)
        for size in first:
            self.problem_at(size)
            self.steps.pop(size)  # a trace is large, and hardly any of these is planned
        low, high = (self.samples[size].peak_bytes for size in first)
        per_sample = max((high - low) / (first[1] - first[0]), 1.0)
        fitting = int((self.budget_bytes - low) / per_sample) + first[0]
        sizes = asked or batch.list_sizes(max(fitting, 1) * _MAX_GROWTH)
        if middle := [b for b in sizes if b <= fitting]:
            self._begin([max(middle)])
            self.problem_at(max(middle))
        return sizes

    def _plan_quickly(self, size: int, samples: dict[int, batch.Sample]) -> float | None:
        """Forecast seconds of a size; those that fit as they are need no tracing."""
        if self._is_forecast_to_fit(samples[size]):
            return samples[size].step_s * self.written_slower
        if samples[size].peak_bytes <= NEARLY * self.budget_bytes:
            self._begin([size])  # it may fit once compiled, and is looked at next
        problem = self.problem_at(size)
        self.report(0, 1, f"planning batch {size}")
        try:
            self.solved[size] = run_planner(problem, _QUICK, seed=self.asked.seed)
            return self.solved[size].forecast.step_s
        except BudgetInfeasibleError:
            return None

    def _is_forecast_to_fit(self, sample: batch.Sample) -> bool:
        return sample.peak_bytes <= self.budget_bytes

    def _compile_largest(self, fitting: list[int]) -> None:
        """Compiles the largest size that fits as it is written: what there is without a plan."""
        for size in sorted(fitting, reverse=True):
            if self._find_rate(size) is not None and self._plan(size).is_empty:
                return

    def _compile_smallest_planned(self, sizes: list[int]) -> None:
        """Compiles the smallest size that has a plan: what is forecast not to fit may fit."""
        for size in sorted(sizes):
            if self._find_rate(size) is None or not self._plan(size).is_empty:
                return

    def _correct_written(self, samples: dict[int, batch.Sample]) -> None:
        """Forecasts of sizes as they are written are as far off as that of the largest.

        Those of planned sizes need not be: where the compiler does badly by the step as it is
        written, a plan, which orders it, is worth a try that its forecast would not be.
        """
        for size, plan in self.plans.items():
            if plan is not None and plan.is_empty and plan.replayed_s:
                self.written_slower = max(plan.replayed_s / samples[size].step_s, 1.0)

    def _find_rate(self, size: int) -> float | None:
        """Samples per second of a size, compiled and replayed; None if no plan fits and pays."""
        if size not in self.plans:
            self.plans[size] = self._compile(size)
        plan = self.plans[size]
        if plan is None:
            return None
        assert plan.replayed_s is not None
        return size / plan.replayed_s

    def _plan(self, size: int) -> Plan:
        plan = self.plans[size]
        assert plan is not None
        return plan

    def _begin(self, sizes: Iterable[int]) -> None:
        """Has sizes compiled as they are written, unless known, while they are traced."""
        for size in sizes:
            step = self._step(size)
            if open_cache(step, self.asked).load(self.budget_bytes) is None:
                self.report(0, 1, f"compiling batch {size}")
                begin_verifying(step.fn, step.make_args(), step.device, step.donated, self.pool)

    def _compile(self, size: int) -> Plan | None:
        self.report(0, 1, f"planning and compiling batch {size}")
        known = self.solved.get(size) if self.asked.planner == _QUICK else None
        try:
            return plan_to_beat(
                self._find_to_beat_s(size), self._step(size), self.budget_bytes, self.asked,
                self.report, known=known,
            )  # fmt: skip
        except (BudgetInfeasibleError, TooSlowError):
            return None
        finally:
            self.steps.pop(size, None)

    def _find_to_beat_s(self, size: int) -> float:
        """Seconds of a step from which on a planned size is not chosen: it gains too little."""
        rates = [b / p.replayed_s for b, p in self.plans.items() if p and p.replayed_s]
        return size * (1.0 + batch.MIN_GAIN) / max(rates) if rates else math.inf

    def _row(
        self, size: int, samples: dict[int, batch.Sample], quick: dict[int, float]
    ) -> BatchRow:
        sample, plan = samples[size], self.plans.get(size)
        is_forecast = size not in self.plans and self._is_forecast_to_fit(sample)
        fits = is_forecast if plan is None else plan.is_empty
        known_s = None if plan is None or plan.is_empty else plan.forecast.step_s
        planned_s = known_s or (None if fits else quick.get(size))
        accumulated_s = batch.find_accumulated_s(samples, size, self.budget_bytes)
        return BatchRow(
            batch_size=size,
            unplanned_bytes=int(sample.peak_bytes),
            fits=fits,
            min_swap_bytes=batch.find_min_swap_bytes(sample, self.budget_bytes),
            unplanned=size / sample.step_s,
            ideal=size / batch.find_ideal_s(sample, self.budget_bytes, self.device),
            accumulated=size / accumulated_s if accumulated_s else None,
            planned=size / planned_s if planned_s else None,
            replayed=size / plan.replayed_s if plan and plan.replayed_s else None,
            compiled_bytes=plan.compiled_bytes if plan else None,
        )

    def _explain_nothing_fits(self, smallest: int) -> BudgetInfeasibleError:
        needs = int(self.problem_at(smallest).baseline.peak_bytes)
        return BudgetInfeasibleError(
            f"No batch size fits `budget={format_bytes(self.budget_bytes)}` on "
            f"{self.device.name}, planned or not: the smallest, {smallest}, needs "
            f"{format_bytes(needs)} as it is written. Raise `budget`, or use a smaller model.",
            floor_bytes=needs,
        )


def _check_sizes(batch_sizes: Sequence[int] | None) -> list[int] | None:
    if batch_sizes is None:
        return None
    sizes = sorted(set(batch_sizes))
    if not sizes or any(not isinstance(b, int) or b < 1 for b in sizes):
        raise BadArgumentError(
            f"`batch_sizes={list(batch_sizes)!r}`: a batch size is a whole number above zero; "
            "write a list such as [8, 16, 32], or leave it out."
        )
    return sizes


def _check_arguments(make_args: Callable[[int], Sequence[Any]], small: int, large: int) -> None:
    """Raises unless something in the arguments has the batch as its first axis."""
    shapes = [
        [tuple(jax.numpy.shape(leaf)) for leaf in jax.tree.leaves(tuple(make_args(size)))]
        for size in (small, large)
    ]
    pairs = list(zip(*shapes, strict=len(shapes[0]) == len(shapes[1])))
    changed = [(a, b) for a, b in pairs if a != b]
    if not changed:
        raise BadArgumentError(
            f"`make_args` gives the same shapes for batch {small} and {large}: it has to make "
            "the step's arguments for the batch size that it is given."
        )
    for a, b in changed:
        grows = a and b and a[0] * large == b[0] * small and a[1:] == b[1:]
        if not grows:
            raise BadArgumentError(
                f"`make_args` gives an argument of shape {a} for batch {small} and {b} for "
                f"{large}: the batch has to be the first axis of what depends on it."
            )
