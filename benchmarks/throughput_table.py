"""Throughput table: how far is the replay from published training runs?

    python -m benchmarks.throughput_table [--fit] [--write]

Compiles every run of `benchmarks/published.py` for its GPU, replays it and compares samples per
second. `--fit` finds the constants of `jaxswap.model.kernel.Efficiency` anew and prints them;
`--write` puts the table into docs/throughput.md.
"""

import argparse
import math
import pathlib
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, fields

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.optimize import minimize

from benchmarks.compiled import compile_workload
from benchmarks.models import build
from benchmarks.published import PublishedRun, published_runs
from jaxswap.model.device import Device
from jaxswap.model.kernel import FITTED, Efficiency, KernelCost, kernels_s
from jaxswap.model.presets import find_device
from jaxswap.verify.hlo import Module, parse_module
from jaxswap.verify.replay import replay

DOC = pathlib.Path("docs") / "throughput.md"
# Shares of a peak that cannot be beaten. f32 convolutions beat theirs: Winograd's algorithm
# needs fewer multiplications than are counted.
BOUNDED = ("dot_half", "dot_tf32", "dot_f32", "conv_half", "conv_tf32", "vector", "memory")
_IN_SAMPLE = (
    "The constants below were fitted to these same rows (11 constants, 35 rows):",
    "the errors are those of the fit, not of rows held out.",
)
MEDIAN_ALLOWED, WORST_ALLOWED = 0.15, 0.40


@dataclass(frozen=True, slots=True)
class Case:
    run: PublishedRun
    module: Module
    samples: int


def load_cases() -> list[Case]:
    """Compiles what is not compiled yet."""
    cases = []
    for run in track(published_runs(), "compiling", console=Console(stderr=True)):
        compiled = compile_workload(run.model, run.settings, run.device)
        samples = build(run.model, **run.settings).samples
        cases.append(Case(run, parse_module(compiled.hlo_text), samples))
    return cases


def replayed(case: Case, efficiency: Efficiency) -> float:
    """Replayed samples per second."""
    step_s = replay(case.module, find_device(case.run.device), efficiency).step_s
    return case.samples / step_s


def fit(cases: list[Case]) -> Efficiency:
    """The constants with the least squared log error, one vote per model, device and precision.

    These steps copy nothing to the host, so that a step is the sum of its kernels: the replay
    is taken once, and the sum many times.
    """
    names = [f.name for f in fields(Efficiency)]
    start = np.log([getattr(Efficiency(), name) for name in names])
    steps = [_Step.of(case) for case in cases]
    votes = Counter(_group(case) for case in cases)
    weights = np.array([1 / votes[_group(case)] for case in cases]) / len(votes)

    def loss(logs: np.ndarray) -> float:
        efficiency = Efficiency(**dict(zip(names, map(float, np.exp(logs)), strict=True)))
        errors = np.array([step.log_error(efficiency) for step in steps])
        # A weak pull to the start keeps constants that no row speaks of where they are.
        pull = 2e-3 * np.mean((logs - start) ** 2)
        pull += sum(max(0.0, logs[names.index(name)]) ** 2 for name in BOUNDED)
        return float(weights @ errors**2 + pull)

    found = minimize(loss, start, method="Powell", options={"maxfev": 4000, "xtol": 1e-3})
    values = (float(f"{value:.3g}") for value in np.exp(found.x))
    return Efficiency(**dict(zip(names, values, strict=True)))


def _group(case: Case) -> tuple[str, str, str]:
    return case.run.model, case.run.device, case.run.precision


@dataclass(frozen=True, slots=True)
class _Step:
    """A case's distinct kernels, how often each runs, and the step time that was published."""

    device: Device
    costs: list[KernelCost]
    counts: np.ndarray
    published_s: float

    @classmethod
    def of(cls, case: Case) -> "_Step":
        device = find_device(case.run.device)
        events = replay(case.module, device).events
        counted = Counter(event.cost for event in events if event.cost is not None)
        counts = np.array(list(counted.values()), float)
        return cls(device, list(counted), counts, case.samples / case.run.samples_per_s)

    def log_error(self, efficiency: Efficiency) -> float:
        """Above zero where the replay is too slow."""
        step_s = float(self.counts @ kernels_s(self.device, self.costs, efficiency))
        return math.log(step_s / self.published_s)


def main() -> int:
    """Prints the table; 1 if the replay is further off than allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="find the constants anew")
    parser.add_argument("--write", action="store_true", help=f"write {DOC}")
    arguments = parser.parse_args()
    cases = load_cases()
    efficiency = fit(cases) if arguments.fit else FITTED
    rows, errors = [], []
    for case in cases:
        got, run = replayed(case, efficiency), case.run
        errors.append(got / run.samples_per_s - 1)
        rows.append((run.row, run.model, run.device, run.precision, str(run.settings["batch"]),
                     run.framework, f"{run.samples_per_s:.0f}", f"{got:.0f}",
                     f"{errors[-1]:+.0%}"))  # fmt: skip
    sizes = [abs(e) for e in errors]
    verdict = (
        f"{len(rows)} rows: median error {statistics.median(sizes):.1%} (allowed "
        f"{MEDIAN_ALLOWED:.0%}), worst {max(sizes):.1%} (allowed {WORST_ALLOWED:.0%}), "
        f"mean signed error {statistics.fmean(errors):+.1%}"
    )
    headings = ("row", "model", "device", "precision", "batch", "framework",
                "published /s", "replayed /s", "error")  # fmt: skip
    table = Table(*headings, box=None)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    print(verdict)
    print(efficiency)
    if arguments.write:
        DOC.write_text(_document(headings, rows, verdict, efficiency))
    return 0 if statistics.median(sizes) < MEDIAN_ALLOWED and max(sizes) < WORST_ALLOWED else 1


def _document(
    headings: tuple[str, ...], rows: list[tuple[str, ...]], verdict: str, efficiency: Efficiency
) -> str:
    constants = [f"| `{f.name}` | {getattr(efficiency, f.name):g} |" for f in fields(Efficiency)]
    lines = [
        "# The replay against published throughput",
        "",
        "Made by `python -m benchmarks.throughput_table --write`; `--fit` finds the constants.",
        "Published figures were measured by others, with other frameworks, on hardware we do not",
        "have; the source of every row is in `benchmarks/data/throughput.csv`. Replayed ones are",
        "predictions from the schedule that XLA:GPU compiled for that GPU.",
        "",
        f"**{verdict}.**",
        "",
        "| " + " | ".join(headings) + " |",
        "| --- " * len(headings) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        *_IN_SAMPLE,
        "",
        "## The constants",
        "",
        "They are the same for every model, device and framework (`jaxswap.model.kernel`).",
        "",
        "| constant | value |",
        "| --- | --- |",
        *constants,
        "",
        "## What is left out, and why",
        "",
        "Rows of the data file with flash attention (XLA does not write it by itself, so the step",
        "compiled here would be another one) and rows over several GPUs (they include",
        "communication). PyTorch and MXNet rows run other kernels than XLA's: expect scatter.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
