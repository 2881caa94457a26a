"""Apply table: what do applied steps need, by the GPU compiler, and what does their order cost?

    python -m benchmarks.apply_table [--pins] [--stalls] [--only NAME] [--write]

One rule for every model of who is offloaded: every candidate that may be (a value of at least
1 MiB over all its trips that the forward pass writes to memory and the backward pass reads,
`jaxswap/program/candidates.py`); whatever else the backward pass reads is made again from these.
The row with "names" offloads the values with these names alone.

`--pins`: everything is kept, the order is pinned: what does that do to the compute time?
`--stalls`: offload-only plans whose copies can hide behind compute: how long are the waits?
`--write` puts the tables that were asked for into docs/apply.md. A process for each row.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.apply_rows import MEMORY_ROWS, PIN_ROWS, STALL_ROWS, Row

DOC = pathlib.Path("docs") / "apply.md"
_TIMEOUT_S = 900
Result = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One of the tables."""

    name: str
    labels: Sequence[str]
    headings: Sequence[str]
    cells: Callable[[int, Result], tuple[str, ...]]


def _bound(row: Row) -> str:
    return f"{row.max_gb:g} GB" if row.max_gb is not None else f"{row.max_share:.0%} of temp"


def _memory_cells(number: int, r: Result) -> tuple[str, ...]:
    return (
        f"{r['written_gb']:.2f}", f"{r['applied_gb']:.2f}", f"{r['host_gb']:.2f}",
        f"{r['temp_share']:.1%}", _bound(MEMORY_ROWS[number]),
    )  # fmt: skip


def _pin_cells(_: int, r: Result) -> tuple[str, ...]:
    return (
        f"{r['written_gb']:.2f}", f"{r['pinned_gb']:.2f}", f"{r['written_ms']:.1f}",
        f"{r['pinned_ms']:.1f}", f"{r['pinned_ms'] / r['written_ms'] - 1:+.1%}",
    )  # fmt: skip


def _stall_cells(_: int, r: Result) -> tuple[str, ...]:
    return (
        str(r["batch"]), str(r["offloads"]), f"{r['copied_gb']:.2f}", f"{r['copies_ms']:.1f}",
        f"{r['step_ms']:.1f}", f"{r['stall_share']:.1%}",
        f"{r['late_reloads']} ({r['late_ms']:.1f} ms)",
    )  # fmt: skip


KINDS = {
    "memory": Kind(
        name="memory",
        labels=[row.label for row in MEMORY_ROWS],
        headings=("as written GB", "applied GB", "host GB", "temporaries", "bound"),
        cells=_memory_cells,
    ),
    "pins": Kind(
        name="pins",
        labels=[row.label for row in PIN_ROWS],
        headings=("as written GB", "pinned GB", "as written ms", "pinned ms", "change"),
        cells=_pin_cells,
    ),
    "stalls": Kind(
        name="stalls",
        labels=[f"{row.label}, {device}" for row, device in STALL_ROWS],
        headings=(
            "batch",
            "offloads",
            "copied GB",
            "copies ms",
            "step ms",
            "stalls",
            "late reloads",
        ),
        cells=_stall_cells,
    ),
}
TEXTS = {
    "memory": """## Memory: everything offloadable offloaded

Device GB are XLA's buffer assignment for an H100: arguments + outputs − aliased + temporaries,
parameters and optimizer state donated. One rule for all: every candidate that may be offloaded
is, and whatever else the backward pass reads is made again from these. The LSTM has a vocabulary
of 1000: with 10 000, as by default, its logits, not its activations, set the floor.""",
    "pins": """## Time: the order pinned, everything kept

Replayed compute time (the step without its stalls) on an H100; at most 3 % more is allowed. VGG-16
needs less memory, because XLA no longer shares arrays of zeros between the forward pass's `relu`
and what the gradients of max-pools start from.""",
    "stalls": """## Stalls: copies that can hide

Offload-only plans: the largest candidates first, until the copies in one direction take 60 % of
the compute time, passing over those for which the forecast has stalls. The batch is halved until
the plan's forecast is at most 80 % of the device's memory: a step that does not fit XLA compiles to
wait for every copy. Compiled without hints, and with hints from the replay while they help, as
`jaxswap.plan` does. Replayed; asked for is under 5 % and no late reload, which is any wait for a
reload of more than a microsecond. In the LSTM nothing could hide a copy outside its loops: the link
carries copies in turn, and a loop with copies of its own would wait for it. Such values are passed
over, since the forecast knows.""",
}


def run_row(kind: str, number: int) -> Result:
    """Measures one row in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.apply_rows", kind, str(number)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def run_kind(kind: Kind, only: str) -> tuple[list[tuple[str, ...]], bool]:
    """Measures the rows of a table and prints it."""
    numbers = [n for n, label in enumerate(kind.labels) if only.lower() in label.lower()]
    lines, is_ok = [], True
    for number in track(numbers, kind.name, console=Console(stderr=True)):
        result = run_row(kind.name, number)
        verdict = "yes" if result["ok"] else "no"
        lines.append((kind.labels[number], *kind.cells(number, result), verdict))
        is_ok &= result["ok"]
    table = Table("step", *kind.headings, "ok", box=None)
    for line in lines:
        table.add_row(*line)
    Console(width=140).print(table)
    return lines, is_ok


def main() -> int:
    """Prints the tables; 1 if a row misses its bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pins", action="store_true", help="the order pinned, everything kept")
    parser.add_argument("--stalls", action="store_true", help="copies that can hide")
    parser.add_argument("--only", default="", help="rows whose label contains this")
    parser.add_argument("--write", action="store_true", help=f"write {DOC}")
    arguments = parser.parse_args()
    asked = [name for name in ("pins", "stalls") if getattr(arguments, name)] or ["memory"]
    sections, is_ok = {}, True
    for name in asked:
        lines, all_ok = run_kind(KINDS[name], arguments.only)
        sections[name] = _section(name, lines)
        is_ok &= all_ok
    if arguments.write:
        _write(sections)
    return 0 if is_ok else 1


def _section(name: str, lines: list[tuple[str, ...]]) -> str:
    headings = ("step", *KINDS[name].headings, "ok")
    rows = ["| " + " | ".join(cells) + " |" for cells in (headings, *lines)]
    rows.insert(1, "| --- " * len(headings) + "|")
    return "\n".join([TEXTS[name], "", *rows])


def _write(sections: dict[str, str]) -> None:
    """Replaces the sections that were made; the others stay."""
    old = DOC.read_text().split("\n## ")[1:] if DOC.exists() else []
    kept = {title.split("\n", 1)[0]: f"## {title}".strip() for title in old}
    for text in sections.values():
        kept[text.split("\n", 1)[0].removeprefix("## ")] = text
    head = (
        "# Applied steps, by the GPU compiler\n\n"
        "Made by `python -m benchmarks.apply_table --write`, and with `--pins` and `--stalls`\n"
        "(XLA:GPU of jax 0.10.2, no GPU)."
    )
    DOC.write_text("\n\n".join([head, *kept.values()]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
