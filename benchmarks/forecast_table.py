"""Forecast table: how far is the forecast of a step from what the GPU compiler makes of it?

    python -m benchmarks.forecast_table [--write] [--only LABEL]

Traces every row, forecasts its peak and its time on an H100 without compiling it, and compares
with the compiler's buffer assignment and the replay of its schedule: as written, and under a
plan for half the bytes. `--write` puts the tables into docs/forecast.md.
"""

import argparse
import pathlib
import sys
import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.compiled import compile_workload
from benchmarks.models import build
from jaxswap.model.presets import find_device
from jaxswap.model.simulate import simulate
from jaxswap.plan.base import run_planner
from jaxswap.plan.plan import make_plan
from jaxswap.plan.problem import Problem
from jaxswap.program.trace import trace_program
from jaxswap.verify.hlo import parse_module
from jaxswap.verify.replay import replay
from jaxswap.verify.verify import verify

DEVICE = "h100-sxm"
SHARE, PLANNER = 0.5, "exact"
PEAK_ALLOWED, TIME_ALLOWED = 0.10, 0.15
DOC = pathlib.Path("docs") / "forecast.md"


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    model: str
    settings: dict[str, Any]


# The fusion rules were made with the first group in view. Two more came from the second: that
# a checkpoint region's work stays behind its start (`dots_saveable`), and that long columns are
# reduced twice (DenseNet). No rule came from BERT or from ResNet in f32.
ROWS = [
    Row("GPT-2-small, unrolled", "gpt2-small", {}),
    Row("GPT-2-small, scan", "gpt2-small", {"scan": True}),
    Row("ResNet-50, batch 256, bf16", "resnet50", {"batch": 256}),
    Row("VGG-16, batch 256, f32", "vgg16", {"batch": 256, "dtype": "f32"}),
    Row("ViT-B/16", "vit-b16", {}),
    Row("LSTM", "lstm", {}),
    Row("U-Net", "unet", {}),
    Row("MoE", "moe", {}),
]
CHECKS = [
    Row("GPT-2-small, `nothing_saveable`", "gpt2-small", {"remat": "nothing_saveable"}),
    Row("GPT-2-small, `dots_saveable`", "gpt2-small", {"remat": "dots_saveable"}),
    Row("GPT-2-small, `dots_with_no_batch_dims_saveable`", "gpt2-small",
        {"remat": "dots_with_no_batch_dims_saveable"}),
    Row("GPT-2-small, scan, `nothing_saveable`", "gpt2-small",
        {"scan": True, "remat": "nothing_saveable"}),
    Row("BERT-base", "bert-base", {}),
    Row("ResNet-50, batch 64, f32", "resnet50", {"batch": 64, "dtype": "f32"}),
    Row("DenseNet-121", "densenet121", {}),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    row: Row
    peak_gb: float
    device_gb: float
    step_ms: float
    replayed_ms: float
    num_ops: int
    trace_s: float

    @property
    def peak_error(self) -> float:
        return self.peak_gb / self.device_gb - 1

    @property
    def time_error(self) -> float:
        return self.step_ms / self.replayed_ms - 1

    def cells(self) -> tuple[str, ...]:
        return (
            self.row.label, f"{self.peak_gb:.2f}", f"{self.device_gb:.2f}",
            f"{self.peak_error:+.1%}", f"{self.step_ms:.1f}", f"{self.replayed_ms:.1f}",
            f"{self.time_error:+.1%}", str(self.num_ops), f"{self.trace_s:.1f}",
        )  # fmt: skip


HEADINGS = ("step", "forecast GB", "compiler's GB", "error", "forecast ms", "replayed ms",
            "error", "kernels", "trace s")  # fmt: skip


def measure(row: Row) -> Result:
    """Forecasts one row, and compiles it, or reads what an earlier run compiled."""
    device, workload = find_device(DEVICE), build(row.model, **row.settings)
    start_s = time.process_time()
    program = trace_program(workload.step, *workload.args, device=device,
                            donate_argnums=workload.donate_argnums)  # fmt: skip
    trace_s = time.process_time() - start_s
    forecast = simulate(program, {}, device)
    compiled = compile_workload(row.model, row.settings, DEVICE)
    timeline = replay(parse_module(compiled.hlo_text), device)
    return Result(
        row=row,
        peak_gb=forecast.peak_bytes / 1e9,
        device_gb=compiled.device_bytes / 1e9,
        step_ms=forecast.step_s * 1e3,
        replayed_ms=timeline.step_s * 1e3,
        num_ops=len(program.ops),
        trace_s=trace_s,
    )


def measure_planned(row: Row) -> Result:
    """Plans one row for a share of its bytes, and compiles it under that plan."""
    device, workload = find_device(DEVICE), build(row.model, **row.settings)
    start_s = time.process_time()
    program = trace_program(workload.step, *workload.args, device=device,
                            donate_argnums=workload.donate_argnums)  # fmt: skip
    problem = Problem(program=program, device=device, budget_bytes=0)
    problem = problem.at_budget(int(SHARE * problem.baseline.peak_bytes))
    plan = make_plan(problem, run_planner(problem, PLANNER))
    planned_s = time.process_time() - start_s
    verified = verify(workload.step, *workload.args, device=device, plan=plan,
                      donate_argnums=workload.donate_argnums)  # fmt: skip
    return Result(
        row=row,
        peak_gb=plan.forecast.peak_bytes / 1e9,
        device_gb=verified.device_bytes / 1e9,
        step_ms=plan.forecast.step_s * 1e3,
        replayed_ms=verified.timeline.step_s * 1e3,
        num_ops=len(program.ops),
        trace_s=planned_s,
    )


def main() -> int:
    """Prints the tables; 1 if a row that counts is off by more than is allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {DOC}")
    parser.add_argument("--only", default="", help="rows whose label starts with this")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    listed = lambda rows, what: track(
        [row for row in rows if row.label.startswith(arguments.only)], what, console=console
    )
    written = [measure(row) for row in listed(ROWS, "as written")]
    planned = [measure_planned(row) for row in listed(ROWS, "planned")]
    checks = [measure(row) for row in listed(CHECKS, "more, as written")]
    for title, results in (("as written", written), ("planned", planned), ("more", checks)):
        table = Table(*HEADINGS, box=None, title=title)
        for result in results:
            table.add_row(*result.cells())
        Console(width=160).print(table)
    is_good = _judge("as written", written) & _judge("planned", planned)
    if arguments.write:
        DOC.write_text(_document(written, planned, checks))
    return 0 if is_good else 1


def _judge(title: str, results: list[Result]) -> bool:
    peak = max((abs(r.peak_error) for r in results), default=0.0)
    step = max((abs(r.time_error) for r in results), default=0.0)
    print(f"worst {title}: peak {peak:.1%} (allowed {PEAK_ALLOWED:.0%}), "
          f"time {step:.1%} (allowed {TIME_ALLOWED:.0%})")  # fmt: skip
    return peak <= PEAK_ALLOWED and step <= TIME_ALLOWED


def _rows(results: list[Result]) -> list[str]:
    return ["| " + " | ".join(r.cells()) + " |" for r in results]


def _document(written: list[Result], planned: list[Result], checks: list[Result]) -> str:
    heading = ["| " + " | ".join(HEADINGS) + " |", "| --- " * len(HEADINGS) + "|"]
    lines = [
        "# How good is the forecast?",
        "",
        "Made by `python -m benchmarks.forecast_table --write` (XLA:GPU of jax 0.10.2, H100",
        "target, no GPU). The forecast comes from tracing alone: the step is walked, its",
        "equations are grouped into kernels as XLA would for that device, and each kernel is",
        "timed by the same roofline as the replay. The compiler's GB are XLA's buffer assignment;",
        "replayed ms are its schedule, played on the roofline. *Trace s* is processor time.",
        "",
        "## As written",
        "",
        "XLA runs many weight gradients at the end of the step, where the forecast has them in",
        "program order; a planned step is pinned to program order.",
        "",
        *heading,
        *_rows(written),
        "",
        "## Planned",
        "",
        f"The same steps under a plan of `{PLANNER}` for {SHARE:.0%} of the bytes. *Trace s* has",
        "the search in it.",
        "",
        *heading,
        *_rows(planned),
        "",
        "Where times are beyond 15 %, in a ViT (looked into on an RTX 4090, with 4 layers), XLA",
        "pads recomputed dots, which have 197 rows, and copies wait.",
        "",
        "## More, as written",
        "",
        "The rules were made with those steps in view, and two of them with `dots_saveable` and",
        "DenseNet. No rule came from the other steps here:",
        "",
        *heading,
        *_rows(checks),
        "",
        "Known to be off: DenseNet's time, in part because XLA writes the slices of a",
        "concatenation's gradient to memory and the rules fuse them; peaks in the backward pass,",
        "where XLA's order of weight gradients counts; and steps that do not fit the device (not",
        "listed), in which XLA recomputes on its own.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
