"""Planner speed: how long does it take to trace, to simulate and to plan, as a step gets deeper?

    python -m benchmarks.planner_speed [--depths 12,48] [--planners genetic]

For a GPT of each depth, unrolled: processor seconds of tracing, the most memory this process had
by then, plans simulated per second, processor seconds of each planner at half the bytes, and
wall seconds of a plan from the cache, JAX's own tracing included and listed beside it.
"""

import argparse
import os
import resource
import tempfile
import time

import numpy as np

from benchmarks.models import build
from jaxswap import Device, plan
from jaxswap.plan.base import run_planner
from jaxswap.plan.problem import Problem
from jaxswap.program.trace import fingerprint_step, trace_program

DEVICE, SHARE, BATCH = "rtx4090", 0.5, 2000


def main() -> None:
    """Prints a line per depth and question."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depths", default="12,48")
    parser.add_argument("--planners", default="greedy,exact,genetic")
    arguments = parser.parse_args()
    os.environ["JAXSWAP_CACHE_DIR"] = tempfile.mkdtemp()
    for depth in map(int, arguments.depths.split(",")):
        _measure(depth, arguments.planners.split(","))


def _measure(depth: int, planners: list[str]) -> None:
    workload = build("gpt2-small", layers=depth)
    start_s = time.process_time()
    program = trace_program(workload.step, *workload.args, donate_argnums=workload.donate_argnums)
    traced_s = time.process_time() - start_s
    most_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{depth} layers: {len(program.ops)} kernels, {len(program.candidates)} candidates; "
          f"traced in {traced_s:.1f} s of processor time, {most_gb:.2f} GB",
          flush=True)  # fmt: skip
    problem = Problem(program=program, device=Device.named(DEVICE), budget_bytes=0)
    problem = problem.at_budget(int(SHARE * problem.baseline.peak_bytes))
    print(f"  {_rate(problem):.0f} plans per second, {BATCH} at a time", flush=True)
    for planner in planners:
        start_s = time.process_time()
        found = run_planner(problem, planner)
        spent_s = time.process_time() - start_s
        most_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        bound = f", bound {1e3 * found.bound_s:.1f} ms" if found.bound_s else ""
        print(f"  {planner}: {spent_s:.1f} s of processor time, {most_gb:.2f} GB; forecast "
              f"{1e3 * found.forecast.step_s:.1f} ms{bound}", flush=True)  # fmt: skip
    ask = lambda: plan(
        workload.step, *workload.args, budget=problem.budget_bytes, device=DEVICE,
        planner="greedy", donate_argnums=workload.donate_argnums, confirm=False,
    )  # fmt: skip
    ask()
    start_s = time.perf_counter()
    ask()
    hit_s = time.perf_counter() - start_s
    start_s = time.perf_counter()
    fingerprint_step(workload.step, *workload.args)
    jax_s = time.perf_counter() - start_s
    print(f"  from the cache: {hit_s:.2f} s, of it {jax_s:.2f} s JAX's own tracing and hashing")


def _rate(problem: Problem) -> float:
    """Random plans per second of processor time."""
    rng = np.random.default_rng(0)
    genes = rng.integers(0, problem.options.is_allowed.shape[1], (BATCH, problem.num_candidates))
    genes = problem.allowed(genes)
    problem.evaluate(genes)  # the first to touch so much memory pays for it
    start_s = time.process_time()
    problem.evaluate(genes)
    return BATCH / (time.process_time() - start_s)


if __name__ == "__main__":
    main()
