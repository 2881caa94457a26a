"""Planner speed: what do tracing, simulating, planning and compiling cost as a step gets deeper?

    python -m benchmarks.planner_speed [--depths 12,48] [--planners genetic] [--compile] [--write]

For a GPT of each depth, unrolled, in a process of its own: processor seconds of tracing, plans
simulated per second, processor seconds of each planner at half the bytes, the most memory, wall
seconds of a plan from the cache, JAX's own tracing included and listed beside it, and, with
`--compile`, wall seconds of compiling the step as it is written. `--write` puts the table into
docs/costs.md.
"""

import argparse
import os
import pathlib
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.models import Workload, build
from jaxswap import Device, plan, verify
from jaxswap.plan.base import run_planner
from jaxswap.plan.problem import Problem
from jaxswap.program.trace import fingerprint_step, trace_program

DEVICE, SHARE, BATCH = "rtx4090", 0.5, 2000
DOC = pathlib.Path("docs") / "costs.md"
Row = dict[str, Any]

_HEADER = f"""# Costs, as a step gets deeper

Made by `python -m benchmarks.planner_speed --compile --write`, beside other work on two cores:
GPT-2-small with more or fewer layers, unrolled, batch 16, planned for half its bytes on an
{DEVICE}. Tracing and planning are processor seconds, with JAX's own tracing in the first;
*compiled* is wall seconds of XLA:GPU for the step as it is written, once; a confirmed plan needs
several of these. *From the cache* is wall seconds of `jaxswap.plan` the second time, and of it
JAX's own tracing and hashing of the step. Memory is the most that the process had before it
compiled.
"""


def measure(depth: int, planners: list[str], *, is_compiled: bool) -> Row:
    """What one depth costs."""
    os.environ["JAXSWAP_CACHE_DIR"] = tempfile.mkdtemp()
    workload = build("gpt2-small", layers=depth)
    start_s = time.process_time()
    program = trace_program(workload.step, *workload.args, donate_argnums=workload.donate_argnums)
    row: Row = {
        "layers": depth,
        "kernels": len(program.ops),
        "candidates": len(program.candidates),
        "traced s": time.process_time() - start_s,
    }
    problem = Problem(program=program, device=Device.named(DEVICE), budget_bytes=0)
    problem = problem.at_budget(int(SHARE * problem.baseline.peak_bytes))
    row["plans/s"] = round(_rate(problem))
    for planner in planners:
        start_s = time.process_time()
        run_planner(problem, planner)
        row[f"{planner} s"] = time.process_time() - start_s
    row |= _time_cache(workload, problem.budget_bytes)
    row["memory GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    if is_compiled:
        start_s = time.perf_counter()
        verify(workload.step, *workload.args, device=DEVICE, donate_argnums=workload.donate_argnums)
        row["compiled s"] = time.perf_counter() - start_s
    return row


def _rate(problem: Problem) -> float:
    """Random plans per second of processor time."""
    rng = np.random.default_rng(0)
    genes = rng.integers(0, problem.options.is_allowed.shape[1], (BATCH, problem.num_candidates))
    genes = problem.allowed(genes)
    problem.evaluate(genes)  # the first to touch so much memory pays for it
    start_s = time.process_time()
    problem.evaluate(genes)
    return BATCH / (time.process_time() - start_s)


def _time_cache(workload: Workload, budget_bytes: int) -> Row:
    ask = lambda: plan(
        workload.step, *workload.args, budget=budget_bytes, device=DEVICE,
        planner="greedy", donate_argnums=workload.donate_argnums, confirm=False,
    )  # fmt: skip
    ask()
    start_s = time.perf_counter()
    ask()
    hit_s = time.perf_counter() - start_s
    start_s = time.perf_counter()
    fingerprint_step(workload.step, *workload.args)
    return {"from the cache s": hit_s, "of it JAX s": time.perf_counter() - start_s}


def format_row(row: Row) -> str:
    """A line of the table in Markdown."""
    cells = [f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()]
    return f"| {' | '.join(cells)} |"


def main(argv: list[str] | None = None) -> int:
    """Prints a line per depth as it is found."""
    listed = lambda text: [part for part in text.split(",") if part]
    parser = argparse.ArgumentParser(description="What planning costs as a step gets deeper.")
    parser.add_argument("--depths", type=listed, default=["6", "12", "24", "48", "96"],
                        help="comma-separated")  # fmt: skip
    parser.add_argument("--planners", type=listed, default=["greedy", "genetic"],
                        help="likewise")  # fmt: skip
    parser.add_argument("--compile", action="store_true", help="compile the step as well")
    parser.add_argument("--write", action="store_true", help=f"write {DOC} as well")
    arguments = parser.parse_args(argv)
    lines: list[str] = []
    for depth in map(int, arguments.depths):
        # A process for each: the memory is that depth's alone.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            asked = (measure, depth, arguments.planners)
            row = pool.submit(*asked, is_compiled=arguments.compile).result()
        if not lines:
            lines += [f"| {' | '.join(row)} |", "| --- " * len(row) + "|"]
            print("\n".join(lines), flush=True)
        lines.append(format_row(row))
        print(lines[-1], flush=True)
    if arguments.write:
        DOC.write_text(f"{_HEADER}\n" + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
