"""Bench: is jaxswap faster than JAX's policies, XLA and the papers, on the same bytes?

    python -m benchmarks.bench --models gpt2-small,resnet50 --devices rtx4090
    python -m benchmarks.bench --table [--write]

Runs every contender (`contenders.py`) on every model, GPU and budget, each in a process of its
own, and keeps what it finds in `benchmarks/results` (`kept.py`): a run that is stopped goes on
where it was, and only what changed is run again. `--table` prints what there is; `--write` puts it
into docs/benchmarks.md, or where `--doc` says.
"""

import argparse
import json
import pathlib
import signal
import sys
from dataclasses import asdict

from benchmarks.cell_runs import run_cell, run_cells
from benchmarks.cells import Cell, digest_cell
from benchmarks.contenders import choose_contenders
from benchmarks.panels import Panel
from jaxswap._errors import JaxswapError

GRID_MODELS = ("gpt2-small", "gpt2-small-scan", "resnet50", "vgg16", "vit-b16", "unet")
GRID_DEVICES = ("h100-sxm", "a100-40gb", "rtx4090", "rtx2080ti")
GRID_SHARES = (0.75, 0.5, 0.35, 0.25)
TIMEOUT_S = 600.0
DOC = pathlib.Path("docs") / "benchmarks.md"
_INTERRUPTED = 130  # the exit code of a command that Ctrl-C ended


def list_cells(
    models: list[str], devices: list[str], shares: list[float], contenders: list[str]
) -> list[Cell]:
    """Every configuration that was asked for; the unconstrained steps come first."""
    panels = [Panel(model=model, device=device) for model in models for device in devices]
    cells = []
    for panel in panels:
        for contender in choose_contenders(panel.model, contenders):
            place = {**asdict(panel), "contender": contender.name}
            cells += [Cell(**place, share=s) for s in (shares if contender.has_budget else [None])]
    return sorted(cells, key=lambda cell: cell.contender != "unconstrained")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs the benchmark, or shows it.")
    listed = lambda text: [part for part in text.split(",") if part]
    shares = lambda text: [float(part) for part in listed(text)]
    add = parser.add_argument
    add("--models", type=listed, default=list(GRID_MODELS), help="comma-separated")
    add("--devices", type=listed, default=list(GRID_DEVICES), help="comma-separated")
    add("--shares", type=shares, default=list(GRID_SHARES), help="budgets, of the unplanned bytes")
    add("--contenders", type=listed, default=["all"],
        help="names or kinds: all, unplanned, policy, xla, paper, jaxswap")  # fmt: skip
    add("--jobs", type=int, default=1, help="processes at a time")
    add("--timeout", type=float, default=TIMEOUT_S, help="seconds per cell")
    add("--retry", action="store_true", help="run again what has a result")
    add("--table", action="store_true", help="print what there is, and run nothing")
    add("--write", action="store_true", help="write the page, and run nothing")
    add("--doc", type=pathlib.Path, default=DOC, help=f"the page that `--write` writes, {DOC}")
    add("--cell", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Runs cells or prints tables; 1 if a cell ended in an error."""
    arguments = parse_arguments(argv)
    if arguments.cell:
        cell = Cell(**json.loads(arguments.cell))
        sources = digest_cell(cell)  # those that are about to run
        cell.write(sources, run_cell(cell))
        return 0
    # Ended by its id as much as by Ctrl-C, it leaves no process behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _show(arguments) if arguments.table or arguments.write else _run(arguments)
    except JaxswapError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped: what is done is kept, the same command goes on", file=sys.stderr)
        return _INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    asked = (arguments.models, arguments.devices, arguments.shares)
    failed = run_cells(
        list_cells(*asked, arguments.contenders),
        jobs=arguments.jobs,
        timeout_s=arguments.timeout,
        retry=arguments.retry,
    )
    return 1 if failed else 0


def _show(arguments: argparse.Namespace) -> int:
    from benchmarks.bench_page import print_page, write_page

    asked = (arguments.models, arguments.devices, arguments.shares)
    if arguments.write:
        write_page(*asked, arguments.doc)
    else:
        print_page(*asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
