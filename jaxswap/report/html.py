"""HTML: one file that shows the whole report, with nothing to load.

Input: a `Report`. Output: a page with its styles, its code (`page/`) and its data in it, and a
short form for notebooks.
Whatever comes from the user's program is escaped here, or put in the page as text by the page's
own code; the data is JSON in which no tag can end.
"""

import base64
from functools import cache
from html import escape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from jaxswap._units import format_bytes, format_seconds
from jaxswap.report import figures, sections
from jaxswap.report.page_data import to_page_json
from jaxswap.report.rows import Figure
from jaxswap.report.words import format_change, format_value, verdict

if TYPE_CHECKING:
    from jaxswap.report.report import Report

_SCRIPTS = ("words.js", "plot.js", "memory.js", "streams.js", "decisions.js", "start.js")
_CARDS = ("device memory", "step time", "host memory", "waiting for copies")


def render_page(report: "Report") -> str:
    """The page."""
    script = "\n".join(_read(name) for name in _SCRIPTS)
    return Template(_read("page.html")).substitute(
        title=escape(report.title),
        subtitle=escape(_subtitle(report)),
        verdict=escape(_sentence(verdict(report))),
        verdict_class="fits" if report.fits else "over",
        css=_read("page.css"),
        js=f'"use strict";(() => {{\n{script}\n}})();',
        data=to_page_json(report),
        version=escape(_version()),
        cards="".join(_card(report, name) for name in _CARDS),
        memory=sections.memory(report),
        streams=sections.streams(report),
        peaks=sections.peaks(report),
        decisions=sections.decisions(report),
        front=_figure(report, "front"),
        batches=_figure(report, "batches"),
        refusals=sections.refusals(report),
        floor=sections.floor(report),
        agreement=sections.agreement(report),
        notes=sections.notes(report),
    )


def render_summary(report: "Report") -> str:
    """For notebooks: the figures and the memory curve, without any code."""
    rows = []
    for figure in _best_figures(report):
        cells = (f"{figure.name} ({figure.how})", format_value(figure, figure.before),
                 format_value(figure, figure.after),
                 format_change(figure.before, figure.after))  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    picture = ""
    if report.curve_before or report.curve_after:
        # As a picture, not as markup: its styles would be those of the whole notebook.
        drawn = base64.b64encode(figures.draw(report, "memory").encode()).decode()
        picture = (
            f'<img alt="device memory along the step" src="data:image/svg+xml;base64,{drawn}">'
        )
    return (
        f"<div><strong>{escape(report.title)}</strong> {escape(_subtitle(report))}: "
        f"{escape(verdict(report))}<table><tr><th></th><th>as written</th><th>planned</th>"
        f"<th>change</th></tr>{''.join(rows)}</table>"
        f"{picture}</div>"
    )


_FIGURE_LEADS = {
    "front": "Each point is a way to run the step. The line joins quick plans for other budgets: "
    "what a smaller budget costs, and what a larger one buys. JAX's policies are taken to be on "
    "all of the differentiated function; forecast, they make every value again only when it is "
    "needed. XLA often makes them earlier, and needs more.",
    "batches": "A larger batch pays as long as what leaves the device can hide behind the "
    "kernels; the best size is where the planned curve is highest.",
}
_FIGURE_HEADINGS = {
    "front": "Step time against device memory",
    "batches": "Throughput against batch size",
}


def _front_numbers(report: "Report") -> str:
    rows = [
        (f"{p.label} ({p.how})", format_bytes(p.size_bytes), format_seconds(p.step_s))
        for p in sorted(report.fronts, key=lambda p: p.size_bytes)
    ]
    return sections.table(("", "memory", "step"), rows, numbers=(1, 2))


def _batch_numbers(report: "Report") -> str:
    rate = lambda value: "does not fit" if value is None else f"{value:.4g}"
    rows = [
        (f"{r.batch_size} ({r.how})", rate(r.unplanned_per_s), rate(r.planned_per_s))
        for r in report.batches
    ]
    return sections.table(("batch", "as written, per s", "planned, per s"), rows, numbers=(1, 2))


_NUMBERS = {"front": _front_numbers, "batches": _batch_numbers}


def _figure(report: "Report", name: str) -> str:
    inner = figures.FIGURES[name](report)
    if not inner:
        return ""
    rows = report.fronts if name == "front" else report.batches
    hows = "".join(sections.pill(how) for how in dict.fromkeys(row.how for row in rows))
    return (
        f'<section id="{name}"><h2>{_FIGURE_HEADINGS[name]} {hows}</h2>'
        f'<p class="lead">{_FIGURE_LEADS[name]}</p>'
        f'<div class="figure">{figures.wrap(inner, crop=32)}</div><details><summary>In numbers'
        f'</summary><div class="scroll">{_NUMBERS[name](report)}</div></details></section>'
    )


def _best_figures(report: "Report") -> list[Figure]:
    names = dict.fromkeys(figure.name for figure in report.figures)
    found = (report.best(name) for name in names)
    return [figure for figure in found if figure and (figure.before or figure.after)]


def _card(report: "Report", name: str) -> str:
    figure = report.best(name)
    if figure is None:
        return ""
    parts = [format_change(figure.before, figure.after)]
    if figure.before is not None:
        parts.insert(0, f"as written {format_value(figure, figure.before)}")
    was = " ".join(f"<span>{escape(part)}</span>" for part in parts if part)
    top = max(figure.before or 0.0, figure.after or 0.0)
    bars = "".join(
        f'<div class="bar {side}" style="width:{100.0 * (value or 0.0) / top:.1f}%"></div>'
        for side, value in (("before", figure.before), ("after", figure.after))
        if top and value is not None
    )
    return (
        f'<div class="card"><h3>{escape(name.capitalize())}{sections.pill(figure.how)}</h3>'
        f'<p class="big">{escape(format_value(figure, figure.after))}</p>'
        f'<p class="was">{was or "&nbsp;"}</p><div class="bars">{bars}</div></div>'
    )


def _subtitle(report: "Report") -> str:
    has = report.device_memory_bytes
    parts = [f"on {report.device}" + (f" with {format_bytes(has)}" if has else "")]
    parts.append(f"budget {format_bytes(report.budget_bytes)}")
    if report.host_budget_bytes is not None:
        parts.append(f"host budget {format_bytes(report.host_budget_bytes)}")
    if report.planner:
        parts.append(f"planner {report.planner}, seed {report.seed}")
    again = next((f.after for f in report.figures if f.name == "recomputing"), None)
    if again:
        parts.append(f"{format_seconds(again)} of recomputing (forecast)")
    return " · ".join(parts)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


@cache
def _read(name: str) -> str:
    return resources.files("jaxswap.report").joinpath("page", name).read_text("utf-8")


def _version() -> str:
    from jaxswap import __version__

    return __version__
