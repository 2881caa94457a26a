"""Batch table: how much throughput does the chosen batch size gain over the largest that fits?

    python -m benchmarks.batch_table [--models resnet50] [--devices rtx4090] [--write]

The table of pommDNN's kind: per model and device, samples per second at the largest batch that
fits as it is written, and at the chosen one; both compiled and replayed, not measured. Cards
without bf16 train in f16.
`--exhaustive` also plans and compiles every size from half the chosen one to twice it, and says
how far the chosen one is from the best of them: many minutes per row.
Rows are kept (`kept.py`): a run that is stopped goes on where it was, and what changed is run
again. `--table` shows what there is, older rows too, and `--write` puts it into docs/batch.md.
"""

import argparse
import functools
import math
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jaxswap
from benchmarks import kept
from benchmarks.panels import MODELS, Panel
from benchmarks.sources import digest_jaxswap, digest_model
from jaxswap import BatchChoice, BudgetInfeasibleError

TABLE_MODELS = ("gpt2-small", "resnet50", "resnet152", "vgg16", "vit-b16", "bert-base")
TABLE_DEVICES = ("rtx2080ti", "v100-16gb", "rtx4090", "a100-40gb")
ALLOWED = 0.02  # that the chosen size may be slower than the best of all
DOC = pathlib.Path("docs") / "batch.md"
BEGIN, END = "<!-- made by `python -m benchmarks.batch_table --write` -->", "<!-- end -->"
Row = dict[str, Any]


def measure(panel: Panel, planner: str) -> Row:
    """Chooses a batch size for a model on a device."""
    start_s = time.perf_counter()
    choice = jaxswap.choose_batch_size(*_ask(panel), **_settings(panel, planner))
    return {
        "model": panel.model,
        "device": panel.device,
        "planner": planner,
        **summarise(choice),
        "spent_s": time.perf_counter() - start_s,
    }


def measure_all(panel: Panel, row: Row) -> dict[str, float]:
    """Samples per second at every size from half the chosen one to twice it, planned as it was."""
    step, make_args = _ask(panel)
    rates = {}
    for size in row["sizes"]:
        if row["chosen"] / 2 <= size <= 2 * row["chosen"]:
            settings = _settings(panel, row["planner"]) | {"budget": row["budget_bytes"]}
            try:
                found = jaxswap.plan(step, *make_args(size), **settings)
            except BudgetInfeasibleError:
                break
            rates[str(size)] = size / (found.replayed_s or math.inf)
    return rates


def _ask(panel: Panel) -> tuple[Callable, Callable[[int], tuple]]:
    build = functools.cache(lambda **changes: panel.build(**changes))  # shapes, and quite slow
    return build().step, lambda size: build(batch=size).args


def _settings(panel: Panel, planner: str) -> dict[str, Any]:
    donated = panel.build().donate_argnums
    return {"device": panel.device, "planner": planner, "donate_argnums": donated}


def summarise(choice: BatchChoice) -> Row:
    """The chosen size, and the largest that fits as it is written, with their throughput."""
    rates = {row.batch_size: row.replayed for row in choice.table if row.replayed}
    fitting = [row.batch_size for row in choice.table if row.fits and row.replayed]
    largest = max(fitting, default=None)
    return {
        "largest": largest,
        "before": rates[largest] if largest else None,
        "chosen": choice.batch_size,
        "after": rates[choice.batch_size],
        "compiled": len(rates),
        "sizes": [row.batch_size for row in choice.table],
        "budget_bytes": choice.budget_bytes,
        "reason": choice.reason,
    }


def is_good(row: Row) -> bool:
    """Whether nothing is lost against the largest size, nor much against the best of all."""
    best = max(row.get("rates", {}).values(), default=0.0)
    return row["after"] >= max(row["before"] or 0.0, (1 - ALLOWED) * best)


def format_table(rows: list[Row]) -> str:
    """The table in Markdown, and what it comes to."""
    lines = [
        "| model | GPU | largest that fits | samples/s | chosen | samples/s | gain "
        "| best of all sizes | found in |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        before, after = row["before"], row["after"]
        unplanned = f"{row['largest']} | {before:.1f}" if before else "none | "
        gain = f"{after / before - 1:+.1%}" if before else ""
        rates = row.get("rates", {})
        best = max(rates, key=rates.__getitem__, default=None)
        all_sizes = f"{best}: {rates[best]:.1f}, of {len(rates)}" if best else ""
        lines.append(
            f"| {row['model']} | {row['device']} | {unplanned} | {row['chosen']} | {after:.1f} "
            f"| {gain} | {all_sizes} | {row['spent_s']:.0f} s |"
        )
    gains = [row["after"] / row["before"] - 1 for row in rows if row["before"]]
    compared = [row for row in rows if row.get("rates")]
    near = [row for row in compared if is_good(row)]
    lines += [
        "",
        f"- {len(rows)} rows; a larger batch than fits pays in "
        f"{sum(row['chosen'] > (row['largest'] or 0) for row in rows)}.",
        f"- Gain: from {min(gains, default=0):+.1%} to {max(gains, default=0):+.1%}.",
        f"- Within {ALLOWED:.0%} of the best of all sizes: {len(near)} of {len(compared)} rows "
        "for which all were compiled.",
    ]
    if older := sum(row.get("is_older", False) for row in rows):
        lines.append(f"- {older} rows are of older sources.")
    return "\n".join(lines)


def _read_or_measure(panel: Panel, arguments: argparse.Namespace, jaxswap_is: str) -> Row | None:
    name = f"batch/{panel.model}-{panel.device}"
    sources = f"{jaxswap_is}-{digest_model(MODELS[panel.model][0])}-{arguments.planner}"
    if arguments.table:
        return kept.read_newest(name, sources)
    row = kept.read_kept(name, sources)
    if row is None:
        print(f"{panel.model} on {panel.device}", flush=True)
        row = kept.write_kept(name, sources, measure(panel, arguments.planner))
        print(row["reason"], flush=True)
    if arguments.exhaustive and "rates" not in row:
        row = kept.write_kept(name, sources, {**row, "rates": measure_all(panel, row)})
    return row


def main(argv: list[str] | None = None) -> int:
    """Prints the table; 1 if a row misses what is asked of it."""
    listed = lambda text: [part for part in text.split(",") if part]
    parser = argparse.ArgumentParser(description="What the chosen batch size gains.")
    parser.add_argument("--models", type=listed, default=list(TABLE_MODELS), help="comma-separated")
    parser.add_argument("--devices", type=listed, default=list(TABLE_DEVICES), help="likewise")
    parser.add_argument("--planner", default="exact", help="makes the plans that are compiled")
    parser.add_argument("--exhaustive", action="store_true", help="compile all sizes around")
    parser.add_argument("--table", action="store_true", help="print what there is, run nothing")
    parser.add_argument("--write", action="store_true", help=f"write {DOC} as well")
    arguments = parser.parse_args(argv)
    os.environ["JAXSWAP_CACHE_DIR"] = tempfile.mkdtemp()  # what is timed is a first run
    panels = [Panel(model=m, device=d) for m in arguments.models for d in arguments.devices]
    sources = digest_jaxswap()  # those that run, whatever is edited meanwhile
    rows = [row for panel in panels if (row := _read_or_measure(panel, arguments, sources))]
    table = format_table(rows)
    print(table)
    if arguments.write:
        head, _, rest = DOC.read_text().partition(BEGIN)
        DOC.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")
    return 0 if all(map(is_good, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
