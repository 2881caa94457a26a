"""Sections: the parts of the page that are plain markup.

Input: a `Report`. Output: pieces of HTML, with everything from the program escaped.
A part that has nothing to show is an empty string.
"""

from collections.abc import Iterable
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from jaxswap._units import format_bytes, format_seconds
from jaxswap.report import words
from jaxswap.report.names import group_holders, where_of
from jaxswap.report.rows import Curve, Group, Holder

if TYPE_CHECKING:
    from jaxswap.report.report import Report

_PEAK_ROWS = 10
_ACTIONS = ("offload", "recompute", "keep")
_ZOOM = (
    '<span class="spread"><button data-zoom="0.5" aria-label="zoom in">+</button>'
    '<button data-zoom="2" aria-label="zoom out">−</button>'
    '<button data-zoom="0">whole step</button></span>'
)


def pill(how: str) -> str:
    """How a figure was found, as a badge."""
    return f' <span class="how {escape(how)}">{escape(how)}</span>'


def memory(report: "Report") -> str:
    """The frame of the memory curves; the page's code draws them."""
    curves = [c for c in (report.curve_before, report.curve_after) if c and c.names]
    if not curves:
        return ""
    keys = [("before", "as written", report.curve_before), ("after", "planned", report.curve_after)]
    legend = "".join(
        _key(name, f"{word}, peak {format_bytes(curve.peak_bytes)}")
        for name, word, curve in keys
        if curve and curve.names
    )
    hows = "".join(pill(how) for how in dict.fromkeys(curve.how for curve in curves))
    return (
        f'<section id="memory"><h2>Device memory along the step {hows}</h2><p class="lead">Point '
        "at the curve to see which op runs and what is on the device then; drag to look closer."
        f'</p><div class="bar-row">{legend}{_key("budget", "budget")}{_ZOOM}</div>'
        '<div class="plot" id="memory-plot" data-label="Device memory along the step"></div>'
        '<div class="readout" id="readout" aria-live="polite"></div></section>'
    )


def streams(report: "Report") -> str:
    """The frame of the timeline."""
    sides = [("before", "as written", report.streams_before),
             ("after", "planned", report.streams_after)]  # fmt: skip
    known = [(side, word, s) for side, word, s in sides if s and s.slices]
    if not known:
        return ""
    shown = known[-1][0]
    buttons = "".join(
        f'<button data-side="{side}" aria-pressed="{str(side == shown).lower()}">{word}</button>'
        for side, word, _ in known
    )
    found = [s for _, _, each in known for s in each.slices]
    kinds = dict.fromkeys(s.phase if s.stream == "compute" else s.stream for s in found)
    names = {"to_host": "offload", "to_device": "reload", "collective": "collectives"}
    legend = "".join(_key(kind, names.get(kind, kind)) for kind in kinds)
    hows = "".join(pill(how) for how in dict.fromkeys(s.how for _, _, s in known))
    hint = "Point at the timeline to see what runs on each stream."
    lead = "Kernels and copies, each on its stream. Hatched: the kernels wait for a copy."
    if any(s.how == "forecast" for _, _, s in known):
        lead += (" Forecast streams are the simulator's: that step was not compiled, and XLA may "
                 "order its copies otherwise.")  # fmt: skip
    return (
        f'<section id="streams"><h2>Streams {hows}</h2><p class="lead">{lead}</p><div '
        f'class="bar-row">{buttons}{legend}{_key("waiting", "waiting")}{_ZOOM}</div><div '
        'class="plot" id="streams-plot" data-label="Kernels and copies over time"></div>'
        f'<p class="hint" id="slice" data-hint="{hint}">{hint}</p></section>'
    )


def peaks(report: "Report") -> str:
    """Who is on the device at the peak, as written and planned."""
    found = (("As written", report.curve_before), ("Planned", report.curve_after))
    shown = [_peak(name, curve) for name, curve in found if curve and curve.names]
    return "".join(shown) or "<p>No curve is known.</p>"


def _peak(name: str, curve: Curve) -> str:
    at = curve.peak_op
    place = escape(where_of(curve.labels[at] or curve.names[at], curve.sources[at]))
    return (
        f"<div><h3>{name}: {format_bytes(curve.peak_bytes)}{pill(curve.how)}</h3>"
        f'<p class="lead">at op {at} of {len(curve.names)}, {place}</p>'
        f"{_holders(curve.base_bytes, curve.alive_at(at))}</div>"
    )


def _holders(base_bytes: int, holders: Iterable[Holder]) -> str:
    rows = [(format_bytes(base_bytes), "", "arguments and outputs, there throughout", "")]
    groups = group_holders(holders)
    for count, label, source, size_bytes in groups[:_PEAK_ROWS]:
        rows.append((format_bytes(size_bytes), f"{count} ×", label, source))
    rest = groups[_PEAK_ROWS:]
    if rest:
        size = format_bytes(sum(row[3] for row in rest))
        rows.append((size, f"{sum(row[0] for row in rest)} ×", "smaller ones", ""))
    return table(("bytes", "", "what", "source"), rows, numbers=(0, 1), faint=(3,))


def decisions(report: "Report") -> str:
    """What was decided: in sum, by block, and value by value."""
    if not report.decisions:
        return "<p>There was nothing to decide about.</p>"
    sums = {action: [r for r in report.decisions if r.action == action] for action in _ACTIONS}
    sizes = {action: sum(r.size_bytes for r in rows) for action, rows in sums.items()}
    stack = "".join(f'<div class="{a}" style="flex:{size}"></div>' for a, size in sizes.items()
                    if size)  # fmt: skip
    legend = "".join(
        _key(
            action, f"{action}: {words.count_of(len(rows), 'value')}, {format_bytes(sizes[action])}"
        )
        for action, rows in sums.items()
    )
    buttons = "".join(
        f'<button data-action="{action}" aria-pressed="{str(not action).lower()}">'
        f"{action or 'all'}</button>"
        for action in ("", *_ACTIONS)
    )
    return (
        f'<div class="stack" aria-hidden="true">{stack}</div><div class="bar-row">{legend}</div>'
        f"{_blocks(report.groups)}"
        f'<details open><summary>Value by value</summary><div class="tools">{buttons}'
        '<input id="filter" type="search" placeholder="filter: a layer, an op, a file …" '
        'aria-label="filter the decisions"></div><p class="lead" id="count"></p>'
        '<div class="scroll"><table><thead><tr id="head"></tr></thead><tbody id="rows"></tbody>'
        '</table></div><p><button id="more" hidden>show more</button></p></details>'
    )


def _blocks(groups: Iterable[Group]) -> str:
    changed = [group for group in groups if group.action != "keep"]
    if not changed:
        return '<p class="lead">The step fits as it is: nothing is changed.</p>'
    rows = []
    for block, members in groupby(changed, key=lambda group: group.block):
        inside = list(members)
        size = format_bytes(sum(g.size_bytes for g in inside))
        name = escape(block or "outside any block")
        rows.append(f'<tr class="block"><td colspan="3">{name}</td><td class="n">{size}</td>'
                    '<td></td><td class="hide-small"></td></tr>')  # fmt: skip
        rows += [_group_row(block, group) for group in inside]
    head = ('<tr><th>decision</th><th class="n"></th><th>what</th><th class="n">bytes</th>'
            '<th class="n">seconds</th><th class="hide-small">source</th></tr>')  # fmt: skip
    return (
        '<details open><summary>By block</summary><p class="lead">Seconds: of the copies both '
        "ways, or of the kernels made again, each value alone (forecast).</p>"
        f'<div class="scroll"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'
        "</div></details>"
    )


def _group_row(block: str, group: Group) -> str:
    inner = group.label.removeprefix(block).strip("/")
    seconds = "–" if group.seconds is None else format_seconds(group.seconds)
    return (
        f'<tr><td><span class="tag {group.action}">{group.action}</span></td>'
        f'<td class="n">{group.count} ×</td><td>{escape(f"{inner} {group.what}".strip())}</td>'
        f'<td class="n">{format_bytes(group.size_bytes)}</td><td class="n">{seconds}</td>'
        f'<td class="src hide-small">{escape(group.source)}</td></tr>'
    )


def refusals(report: "Report") -> str:
    """What could not be decided about, and why."""
    if not report.refusals:
        return ""
    rows = [
        (str(r.count), format_bytes(r.size_bytes), r.reason, "; ".join(r.examples))
        for r in report.refusals
    ]
    inner = table(("values", "bytes", "why", "such as"), rows, numbers=(0, 1), faint=(3,))
    return (
        '<section id="refused"><h2>Not decided about</h2>'
        f'<div class="scroll">{inner}</div></section>'
    )


def floor(report: "Report") -> str:
    """What no plan can go below, and why."""
    found = report.floor
    if found is None:
        return ""
    place = where_of(found.label, found.source)
    return (
        f'<section id="floor"><h2>The floor: {format_bytes(found.size_bytes)}{pill("forecast")}'
        f'</h2><p class="lead">No plan goes below it. It is set by <strong>{escape(found.name)}'
        f"</strong>{escape(f' at {place}') if place else ''}, with this on the device:</p>"
        f'<div class="scroll">{_holders(found.base_bytes, found.holders)}</div></section>'
    )


def agreement(report: "Report") -> str:
    """Forecast, replayed and measured side by side."""
    rows = words.agreement(report)
    if not rows:
        return ""
    headings = ("", "step", "forecast", "compiled or replayed", "measured", "forecast is off by")
    inner = table(headings, rows, numbers=(2, 3, 4, 5))
    return (
        '<section id="agreement"><h2>How far is it true</h2><p class="lead">The same quantities '
        f'by every way they were found.</p><div class="scroll">{inner}</div></section>'
    )


def notes(report: "Report") -> str:
    """What is assumed or not exact."""
    items = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def table(
    headings: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    numbers: tuple[int, ...] = (),
    faint: tuple[int, ...] = (),
) -> str:
    """A table of text, escaped; some columns are numbers, some are faint."""

    def style(column: int) -> str:
        names = [n for n, where in (("n", numbers), ("src", faint)) if column in where]
        return f' class="{" ".join(names)}"' if names else ""

    head = "".join(f"<th{style(k)}>{escape(h)}</th>" for k, h in enumerate(headings))
    body = "".join(
        "<tr>" + "".join(f"<td{style(k)}>{escape(c)}</td>" for k, c in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _key(name: str, word: str) -> str:
    return f'<span class="key {name}"><i></i>{escape(word)}</span>'
