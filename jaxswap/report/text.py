"""Text: what does a report say in a terminal?

Input: a `Report`. Output: text, styled where standard output is a terminal and plain elsewhere.
The order is that of the questions: does it fit and what does it cost, who is in the peak, what
was decided, what was not, what would be needed to go lower, and how far is all this true.
"""

import io
import os
import sys
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from jaxswap._units import format_bytes, format_seconds
from jaxswap.report.names import group_holders, where_of
from jaxswap.report.rows import Curve, Group, Holder
from jaxswap.report.words import agreement, count_of, format_change, format_value, verdict

if TYPE_CHECKING:
    from jaxswap.report.report import Report

STYLES = {"offload": "bold blue", "recompute": "bold yellow", "keep": "dim"}
_PEAK_ROWS = 6
_BLOCK_ROWS = 8
_BAR_CELLS = 40


def render_for_print(report: "Report") -> str:
    """For `print`: styled and as wide as the terminal, or plain."""
    is_terminal = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = Console().width if sys.stdout.isatty() else 100
    return render_text(report, width=width, is_styled=is_terminal)


def render_text(report: "Report", *, width: int, is_styled: bool) -> str:
    """The report as text, with or without terminal styles."""
    out = io.StringIO()
    console = Console(
        file=out, width=max(width, 60), force_terminal=is_styled, highlight=False,
        no_color=not is_styled,
    )  # fmt: skip
    for part in (_print_head, _print_peaks, _print_decisions, _print_refusals, _print_floor,
                 _print_agreement, _print_notes):  # fmt: skip
        part(report, console)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


# ---- the parts -------------------------------------------------------------------------


def _print_head(report: "Report", console: Console) -> None:
    console.print(Text(report.title, "bold"), Text(f"on {report.device}"), end="")
    seed = f", seed {report.seed}" if report.planner else ""
    console.print(Text(f", planned by {report.planner}{seed}" if report.planner else ""))
    console.print(Text(verdict(report), "bold green" if report.fits else "bold red"))
    console.print()
    table = _table("", "as written", "planned", "change", right=(1, 2, 3))
    for name in dict.fromkeys(figure.name for figure in report.figures):
        figure = report.best(name)
        if figure is None or not (figure.before or figure.after):
            continue
        table.add_row(
            f"{name} ({figure.how})", format_value(figure, figure.before),
            format_value(figure, figure.after), format_change(figure.before, figure.after),
        )  # fmt: skip
    console.print(table)
    _print_bars(report, console)


def _print_bars(report: "Report", console: Console) -> None:
    figure = report.best("device memory")
    if figure is None:
        return
    most = max(figure.before or 0, figure.after or 0, report.budget_bytes, 1)
    console.print()
    rows = (("as written", figure.before, "magenta"), ("planned", figure.after, "cyan"),
            ("budget", report.budget_bytes, "red"))  # fmt: skip
    for label, value, style in rows:
        if value is not None:
            cells = round(_BAR_CELLS * value / most)
            bar = Text("█" * cells, style) if label != "budget" else Text("─" * cells + "┤", style)
            console.print(Text(f"  {label:<11}"), bar, Text(format_bytes(value)))


def _print_peaks(report: "Report", console: Console) -> None:
    pairs = (("as written", report.curve_before), ("planned", report.curve_after))
    for name, curve in pairs:
        if curve is not None and curve.names:
            _print_peak(name, curve, console)


def _print_peak(name: str, curve: Curve, console: Console) -> None:
    at = curve.peak_op
    place = where_of(curve.labels[at] or curve.names[at], curve.sources[at])
    _heading(console, f"Peak, {name}")
    console.print(
        Text(f"{format_bytes(curve.peak_bytes)} ({curve.how}) at op {at} of {len(curve.names)}, "),
        Text(place, "bold"),
        sep="",
    )
    _print_holders(curve.base_bytes, curve.alive_at(at), console)


def _print_holders(base_bytes: int, holders: Iterable[Holder], console: Console) -> None:
    table = _table("bytes", "n", "what", "source", right=(0, 1))
    table.add_row(format_bytes(base_bytes), "", "arguments and outputs, there throughout", "")
    groups = group_holders(holders)
    for count, label, source, size_bytes in groups[:_PEAK_ROWS]:
        table.add_row(format_bytes(size_bytes), f"{count} ×", escape(label), escape(source))
    rest = groups[_PEAK_ROWS:]
    if rest:
        total = format_bytes(sum(size_bytes for *_, size_bytes in rest))
        table.add_row(total, f"{sum(row[0] for row in rest)} ×", "smaller ones", "")
    console.print(table)


def _print_decisions(report: "Report", console: Console) -> None:
    _heading(console, "Decisions")
    if not report.decisions:
        console.print("There was nothing to decide about.")
        return
    for action in ("offload", "recompute", "keep"):
        rows = [row for row in report.decisions if row.action == action]
        size = format_bytes(sum(row.size_bytes for row in rows))
        console.print(
            Text(f"  {action:<10}", STYLES[action]), f"{count_of(len(rows), 'value')}, {size}"
        )
    changed = [group for group in report.groups if group.action != "keep"]
    if not changed:
        console.print("The step fits as it is: nothing is changed.")
        return
    table = _table("", "n", "what", "bytes", "seconds", "source", right=(1, 3, 4))
    for block, members in groupby(changed, key=lambda group: group.block):
        _add_block(table, block, list(members))
    console.print(table)
    console.print(Text("seconds: of the copies both ways, or of the kernels made again; each "
                       "value alone (forecast)", "dim"))  # fmt: skip


def _add_block(table: Table, block: str, groups: list[Group]) -> None:
    known = [g.seconds for g in groups if g.seconds is not None]
    table.add_row(
        f"[bold]{escape(block or 'outside any block')}[/]", "", "",
        f"[bold]{format_bytes(sum(g.size_bytes for g in groups))}[/]",
        f"[bold]{format_seconds(sum(known))}[/]" if len(known) == len(groups) else "–",
    )  # fmt: skip
    for group in groups[:_BLOCK_ROWS]:
        inner = group.label.removeprefix(block).strip("/")
        what = f"{inner} {group.what}".strip()
        table.add_row(
            f"  [{STYLES[group.action]}]{group.action}[/]", f"{group.count} ×", escape(what),
            format_bytes(group.size_bytes),
            "–" if group.seconds is None else format_seconds(group.seconds), escape(group.source),
        )  # fmt: skip
    rest = groups[_BLOCK_ROWS:]
    if rest:
        count = sum(g.count for g in rest)
        size = format_bytes(sum(g.size_bytes for g in rest))
        table.add_row("  …", f"{count} ×", "smaller ones", size, "", "")


def _print_refusals(report: "Report", console: Console) -> None:
    if not report.refusals:
        return
    _heading(console, "Not decided about")
    table = _table("n", "bytes", "why, and an example", right=(0, 1))
    for refusal in report.refusals:
        example = f"[dim]{escape(refusal.examples[0])}[/]" if refusal.examples else ""
        size = format_bytes(refusal.size_bytes)
        table.add_row(str(refusal.count), size, f"{escape(refusal.reason)}\n{example}")
    console.print(table)


def _print_floor(report: "Report", console: Console) -> None:
    floor = report.floor
    if floor is None:
        return
    _heading(console, "The floor")
    place = where_of(floor.label, floor.source)
    console.print(
        Text(f"No plan goes below {format_bytes(floor.size_bytes)} (forecast). It is set by "),
        Text(floor.name, "bold"), Text(f" at {place}" if place else ""),
        Text(", with on the device"), sep="",
    )  # fmt: skip
    _print_holders(floor.base_bytes, floor.holders, console)


def _print_agreement(report: "Report", console: Console) -> None:
    """Forecast, replayed and measured side by side."""
    rows = agreement(report)
    if not rows:
        return
    _heading(console, "How far is it true")
    table = _table("", "step", "forecast", "compiled or replayed", "measured",
                   "forecast is off by", right=(2, 3, 4, 5))  # fmt: skip
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_notes(report: "Report", console: Console) -> None:
    if report.notes:
        console.print()
    for note in report.notes:
        console.print(Text(f"note: {note}", "dim"))


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, "bold underline"))


def _table(*headings: str, right: tuple[int, ...] = ()) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if at in right else "left",
                         overflow="fold", no_wrap=at in right)  # fmt: skip
    return table
