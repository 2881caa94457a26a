"""Tables: what can be taken out of a report and worked with?

Input: a `Report`. Output: its tables, each a list of rows with headings, as CSV or JSON.
Bytes are bytes and seconds are seconds, unrounded; headings name the unit.
"""

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jaxswap._errors import BadArgumentError
from jaxswap.report.rows import (
    BatchRow,
    Curve,
    DecisionRow,
    Figure,
    FrontPoint,
    Group,
    Refusal,
    Slice,
)

if TYPE_CHECKING:
    from jaxswap.report.report import Report

FORMAT, VERSION = "jaxswap-report", 1
Table = tuple[Sequence[str], list[list[Any]]]


def _rows_of(kind: type, rows: Iterable[Any]) -> Table:
    names = [f.name for f in dataclasses.fields(kind)]
    return names, [[getattr(row, name) for name in names] for row in rows]


def _peaks(report: "Report") -> Table:
    headings = ["step", "how", "op", "op_source", "label", "source", "size_bytes"]
    rows: list[list[Any]] = []
    for step, curve in (("as written", report.curve_before), ("planned", report.curve_after)):
        if curve is None or not curve.names:
            continue
        at = curve.peak_op
        place = [step, curve.how, curve.labels[at] or curve.names[at], curve.sources[at]]
        rows.append([*place, "arguments and outputs", "", curve.base_bytes])
        rows += [[*place, h.label, h.source, h.size_bytes] for h in curve.alive_at(at)]
    return headings, rows


def _timeline(report: "Report") -> Table:
    names, rows = ["step", "how"], []
    headings, _ = _rows_of(Slice, ())
    for step, streams in (("as written", report.streams_before), ("planned", report.streams_after)):
        if streams is not None:
            rows += [[step, streams.how, *row] for row in _rows_of(Slice, streams.slices)[1]]
    return [*names, *headings], rows


def _curves(report: "Report") -> Table:
    headings = ["step", "how", "op", "name", "label", "source", "start_s", "device_bytes"]
    rows: list[list[Any]] = []
    for step, curve in (("as written", report.curve_before), ("planned", report.curve_after)):
        if curve is not None:
            rows += [[step, curve.how, *row] for row in _curve_rows(curve)]
    return headings, rows


def _curve_rows(curve: Curve) -> Iterable[tuple[Any, ...]]:
    columns = (curve.names, curve.labels, curve.sources, curve.starts_s, curve.bytes_at)
    return ((op, *row) for op, row in enumerate(zip(*columns, strict=True)))


TABLES: dict[str, Callable[["Report"], Table]] = {
    "decisions": lambda r: _rows_of(DecisionRow, r.decisions),
    "groups": lambda r: _rows_of(Group, r.groups),
    "figures": lambda r: _rows_of(Figure, r.figures),
    "peak": _peaks,
    "refused": lambda r: _rows_of(Refusal, r.refusals),
    "front": lambda r: _rows_of(FrontPoint, r.fronts),
    "batches": lambda r: _rows_of(BatchRow, r.batches),
    "memory": _curves,
    "timeline": _timeline,
}


def table_of(report: "Report", name: str) -> Table:
    """A table by name: its headings and its rows."""
    if name not in TABLES:
        raise BadArgumentError(
            f"`part={name!r}` is no table of a report: write one of {', '.join(map(repr, TABLES))}."
        )
    return TABLES[name](report)


def to_csv(report: "Report", name: str = "decisions") -> str:
    """A table as CSV, with its headings."""
    headings, rows = table_of(report, name)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return "; ".join(map(str, value))
    if isinstance(value, str) and value[:1] in "=+-@\t\r" and value[:1]:
        return "'" + value  # a spreadsheet would run it as a formula
    return value


def to_json(report: "Report", *, with_ops: bool = True) -> str:
    """The report as one JSON object; `with_ops` includes the tables with a row per op."""
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "title": report.title,
        "device": report.device,
        "device_memory_bytes": report.device_memory_bytes,
        "budget_bytes": report.budget_bytes,
        "host_budget_bytes": report.host_budget_bytes,
        "planner": report.planner,
        "seed": report.seed,
        "is_confirmed": report.is_confirmed,
        "fits": report.fits,
        "notes": list(report.notes),
        "floor": dataclasses.asdict(report.floor) if report.floor else None,
    }
    tables = {}
    for name in TABLES:
        if name in ("memory", "timeline") and not with_ops:
            continue
        headings, rows = table_of(report, name)
        tables[name] = [dict(zip(headings, row, strict=True)) for row in rows]
    return json.dumps({**facts, "tables": tables}, indent=1, allow_nan=False) + "\n"
