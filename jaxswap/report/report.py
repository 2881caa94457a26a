"""Report: what was decided about a step, why, and is it true?

Input: a `Program` and its `Plan`; where there are, what the compiler said of the step as written
and as planned, a front and a batch table. Output: a `Report`, plain data that prints, saves as
a page, a trace, tables and figures, and shows itself in a notebook.
Every number says whether it is forecast, replayed, measured or compiled.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jaxswap._errors import UnknownDeviceError
from jaxswap.model.device import Device
from jaxswap.model.presets import find_device
from jaxswap.model.simulate import Forecast, simulate
from jaxswap.model.timeline import Timeline, build_timeline
from jaxswap.plan.plan import Plan
from jaxswap.program.ir import Program
from jaxswap.report import build, curves
from jaxswap.report.forecast import Played, curve_of_forecast, play, streams_of_forecast
from jaxswap.report.rows import (
    BatchRow,
    Curve,
    DecisionRow,
    Figure,
    Floor,
    FrontPoint,
    Group,
    How,
    Refusal,
    Streams,
)

if TYPE_CHECKING:
    from jaxswap.verify.verify import Verified

_BEST_FIRST: tuple[How, ...] = ("measured", "compiled", "replayed", "forecast")


@dataclass(frozen=True, kw_only=True)
class Report:
    """A plan and its verification, to look at.

    Attributes:
        title: what the step is called.
        device: the name of the device.
        device_memory_bytes: what it has; None if the device is not known here.
        budget_bytes: what the step may take of it.
        host_budget_bytes: likewise of host memory; None for any amount.
        planner: who decided.
        seed: of the planner.
        is_confirmed: whether the compiler found the planned step within the budget.
        figures: each quantity, as written and planned, by each way it was found.
        decisions: one row per value, in program order.
        groups: the same with repeated blocks collapsed.
        refusals: what could not be decided about.
        floor: what no plan can go below.
        curve_before: memory along the step as written.
        curve_after: memory along the planned step.
        streams_before: kernels and copies of the step as written.
        streams_after: kernels and copies of the planned step.
        fronts: bytes against step time.
        batches: throughput against batch size.
        notes: what is assumed or not exact, in sentences.

    Example:
        >>> from jaxswap.model.simulate import Forecast
        >>> from jaxswap.plan.plan import Plan
        >>> plan = Plan(decisions={}, values={}, forecast=Forecast(peak_bytes=7, step_s=1e-3),
        ...             budget_bytes=8, device="t4")
        >>> program = Program(ops=(), values=(), candidates=(), base_bytes=7)
        >>> Report.of(program=program, plan=plan).fits
        True
    """

    title: str
    device: str
    device_memory_bytes: int | None
    budget_bytes: int
    host_budget_bytes: int | None
    planner: str
    seed: int
    is_confirmed: bool
    figures: tuple[Figure, ...]
    decisions: tuple[DecisionRow, ...] = field(repr=False)
    groups: tuple[Group, ...] = field(repr=False)
    refusals: tuple[Refusal, ...] = field(repr=False)
    floor: Floor | None = field(repr=False)
    curve_before: Curve | None = field(repr=False)
    curve_after: Curve | None = field(repr=False)
    streams_before: Streams | None = field(repr=False)
    streams_after: Streams | None = field(repr=False)
    fronts: tuple[FrontPoint, ...] = field(repr=False)
    batches: tuple[BatchRow, ...] = field(repr=False)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        program: Program,
        plan: Plan,
        before: "Verified | None" = None,
        after: "Verified | None" = None,
        fronts: Sequence[FrontPoint] = (),
        batches: Sequence[BatchRow] | None = None,
        device: Device | None = None,
        title: str = "training step",
    ) -> "Report":
        """Builds a report.

        Args:
            program: the step that was planned.
            plan: what was decided.
            before: the compiler's word on the step as written.
            after: the compiler's word on the planned step.
            fronts: bytes against step time, for other budgets and other ways.
            batches: throughput against batch size.
            device: what the plan is for; found by its name where it is a preset.
            title: what the step is called.
        """
        device = device or _find_device(plan, before, after)
        timeline = build_timeline(program, device) if device else None
        decisions = build.list_decisions(program, plan, timeline)
        played = _play_missing(program, plan, before, after, timeline)
        streams_before, streams_after = (
            _find_streams(program, verified, run)
            for verified, run in zip((before, after), played, strict=True)
        )
        return cls(
            title=title,
            device=plan.device,
            device_memory_bytes=device.memory_bytes if device else None,
            budget_bytes=plan.budget_bytes,
            host_budget_bytes=plan.host_budget_bytes,
            planner=plan.planner,
            seed=plan.seed,
            is_confirmed=plan.is_confirmed,
            figures=build.list_figures(plan, before, after),
            decisions=decisions,
            groups=build.group_decisions(decisions),
            refusals=build.list_refusals(program),
            floor=build.find_floor(program, timeline) if timeline else None,
            **_find_curves(program, plan, before, after, device, played),
            streams_before=streams_before,
            streams_after=streams_after,
            fronts=tuple(fronts),
            batches=tuple(batches or ()),
            notes=_list_notes(plan, before, after, device),
        )

    @property
    def fits(self) -> bool:
        """Whether the planned step is within the budget, by the best figure there is."""
        figure = self.best("device memory")
        return figure is not None and (figure.after or 0) <= self.budget_bytes

    def best(self, name: str) -> Figure | None:
        """A quantity by the best way it was found: measured, compiled, replayed, forecast."""
        known = [f for f in self.figures if f.name == name and f.after is not None]
        return min(known, key=lambda f: _BEST_FIRST.index(f.how), default=None)

    def counterpart(self, figure: Figure) -> Figure | None:
        """The forecast of a quantity that was found in a better way too."""
        named = (f for f in self.figures if f.name == figure.name and f.how == "forecast")
        return next((f for f in named if figure.how != "forecast"), None)

    def save(self, path: str | os.PathLike[str], *, part: str | None = None) -> None:
        """Writes the report; the suffix says as what.

        Args:
            path: `*.html` (the page), `*.json` (everything), `*.csv` (a table), `*.trace.json`
                (the timeline, for Perfetto or chrome://tracing), `*.svg` or `*.png` (figures).
            part: of a `.csv`, which table ("decisions" by default); of a picture, which
                figure (all by default).

        The file is there whole or, if writing is interrupted, as it was.
        """
        from jaxswap.report.save import save_report

        save_report(self, path, part=part)

    def to_text(self, *, width: int = 100) -> str:
        """The report as plain text."""
        from jaxswap.report.text import render_text

        return render_text(self, width=width, is_styled=False)

    def __str__(self) -> str:
        from jaxswap.report.text import render_for_print

        return render_for_print(self)

    def _repr_html_(self) -> str:
        from jaxswap.report.html import render_summary

        return render_summary(self)


def _find_device(plan: Plan, before: "Verified | None", after: "Verified | None") -> Device | None:
    for verified in (after, before):
        if verified is not None:
            return verified.device
    try:
        return find_device(plan.device)
    except UnknownDeviceError:
        return None


def _play_missing(
    program: Program,
    plan: Plan,
    before: "Verified | None",
    after: "Verified | None",
    timeline: Timeline | None,
) -> tuple[Played | None, Played | None]:
    """The simulator's run of what was not compiled: the step as written, and as planned."""
    if timeline is None or not program.ops:
        return None, None
    return (
        play(program, timeline, {}) if before is None else None,
        play(program, timeline, plan.decisions) if after is None else None,
    )


def _find_streams(
    program: Program, verified: "Verified | None", played: Played | None
) -> Streams | None:
    if verified is not None:
        return curves.mark_recomputed(curves.streams_of_verified(verified), program)
    return streams_of_forecast(played) if played else None


def _find_curves(
    program: Program,
    plan: Plan,
    before: "Verified | None",
    after: "Verified | None",
    device: Device | None,
    played: tuple[Played | None, Played | None],
) -> dict[str, Curve | None]:
    """The two memory curves: of the compiled schedules, or else the simulator's."""
    forecast: Forecast = plan.forecast
    if any(played) and device and not forecast.bytes_at:
        forecast = simulate(program, plan.decisions, device)  # a plan's file holds no curve
    found: dict[str, Curve | None] = {}
    sides = (
        ("curve_before", before, played[0], forecast.baseline),
        ("curve_after", after, played[1], forecast),
    )
    for name, verified, run, forecast_of in sides:
        found[name] = None
        if verified is not None:
            found[name] = curves.curve_of_verified(verified)
        elif run and forecast_of:
            found[name] = curve_of_forecast(run, forecast_of)
    return found


def _list_notes(
    plan: Plan, before: "Verified | None", after: "Verified | None", device: Device | None
) -> tuple[str, ...]:
    notes = dict.fromkeys([*(before.notes if before else ()), *(after.notes if after else ())])
    if after is None:
        notes["the planned step was not compiled for this report: its figures are forecast"] = None
    written = plan.forecast.baseline
    if before and device and written and written.peak_bytes > device.memory_bytes:
        notes["as written the step is forecast to need more than the device has: XLA's own "
              "rematerialisation, which sets in then, is part of its compiled and replayed "
              "figures"] = None  # fmt: skip
    if plan.forecast.stays:
        count = len(plan.forecast.stays)
        stay = "value stays" if count == 1 else "values stay"
        notes[f"{count} {stay} although decided otherwise: wanted before leaving"] = None
    return tuple(notes)
