"""Planner table: how far is each planner from the best plan there is, by the forecast?

    python -m benchmarks.planner_table [--models gpt2-small,...] [--devices ...] [--write]

For every model, GPU and budget of the grid, without compiling anything: the forecast step time of
`genetic`, of `exact` with its bound, and of the fastest paper's strategy that fits. Rows are kept
(`kept.py`): a run that is stopped goes on where it was, and what changed is run again. `--table`
shows what there is, older rows too, and `--write` puts it into docs/planners.md.
"""

import argparse
import math
import pathlib
import sys
import time
from typing import Any

from benchmarks import kept
from benchmarks.bench import GRID_DEVICES, GRID_MODELS, GRID_SHARES
from benchmarks.contenders import AMPLE_BYTES, PAPERS
from benchmarks.panels import MODELS, Panel
from benchmarks.sources import digest_jaxswap, digest_model
from jaxswap._errors import BudgetInfeasibleError
from jaxswap.plan.base import Solution, run_planner
from jaxswap.plan.problem import Problem
from jaxswap.program.trace import trace_program

DOC = pathlib.Path("docs") / "planners.md"
ALLOWED = 0.02  # that `genetic` may be slower than the better of `exact` and its closed bound
CLOSED = 0.02  # a bound is closed where `exact` itself is this near to it
Row = dict[str, Any]

_HEADER = """# How good are the planners?

Made by `python -m benchmarks.planner_table --write`. Nothing is compiled here: times are the
*forecast* of one simulator, for one problem per row, so that planners are compared and nothing
else. Budgets are shares of the unplanned forecast. *bound* is what `exact` (HiGHS) proves that
no plan beats, under its linear model of the copies; *best paper* is the fastest of the papers'
strategies ([papers.md](papers.md)) that fits.
"""


def measure(panel: Panel, shares: list[float]) -> list[Row]:
    """One row per budget; the step is traced once."""
    workload, device = panel.build(), panel.gpu(AMPLE_BYTES)
    program = trace_program(
        workload.step, *workload.args, donate_argnums=workload.donate_argnums, device=device
    )
    whole = Problem(program=program, device=device, budget_bytes=0)
    return [
        _measure_share(panel, whole.at_budget(int(share * whole.baseline.peak_bytes)), share)
        for share in shares
    ]


def _measure_share(panel: Panel, problem: Problem, share: float) -> Row:
    start_s = time.perf_counter()
    found = {name: _solve(problem, name) for name in ("genetic", "exact", *PAPERS)}
    seconds = {name: s.forecast.step_s for name, s in found.items() if s is not None}
    papers = [name for name in PAPERS if name in seconds]
    best_paper = min(papers, key=seconds.__getitem__, default=None)
    exact = found["exact"]
    return {
        "model": panel.model,
        "device": panel.device,
        "share": share,
        "unplanned_s": problem.baseline.step_s,
        "seconds": seconds,
        "bound_s": exact.bound_s if exact is not None else None,
        "best_paper": best_paper,
        "spent_s": time.perf_counter() - start_s,
    }


def _solve(problem: Problem, planner: str) -> Solution | None:
    try:
        return run_planner(problem, planner)
    except BudgetInfeasibleError:
        return None


def excess(row: Row) -> float | None:
    """By how much `genetic` is slower than the better of `exact` and its closed bound."""
    seconds, bound_s = row["seconds"], row["bound_s"]
    if "genetic" not in seconds:
        return math.inf if seconds else None
    if "exact" not in seconds:
        return None
    is_closed = bound_s and seconds["exact"] <= (1 + CLOSED) * bound_s
    target = min(seconds["exact"], bound_s) if is_closed else seconds["exact"]
    return seconds["genetic"] / target - 1


def is_beaten(row: Row) -> bool:
    """Whether a paper's strategy is faster than `genetic`, or fits where that does not."""
    best = row["best_paper"]
    seconds = row["seconds"]
    return best is not None and seconds.get("genetic", math.inf) > seconds[best] * (1 + 1e-9)


def format_table(rows: list[Row]) -> str:
    """The table in Markdown, and what it comes to."""
    lines = [
        "| model | GPU | budget | unplanned ms | genetic ms | exact ms | bound ms | best paper |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    ms = lambda seconds: "none fits" if seconds is None else f"{1e3 * seconds:.1f}"
    for row in rows:
        seconds, best = row["seconds"], row["best_paper"]
        paper = f"`{best}` {ms(seconds[best])}" if best else "none fits"
        bound = ms(row["bound_s"]) if row["bound_s"] else ""
        lines.append(
            f"| {row['model']} | {row['device']} | {row['share']:.0%} | {ms(row['unplanned_s'])} "
            f"| {ms(seconds.get('genetic'))} | {ms(seconds.get('exact'))} | {bound} | {paper} |"
        )
    judged = [e for e in map(excess, rows) if e is not None]
    near, worst = sum(e <= ALLOWED for e in judged), max(judged, default=0.0)
    feasible = [row for row in rows if row["seconds"]]
    lines += [
        "",
        f"- {len(rows)} problems; {len(rows) - len(feasible)} have no plan that fits.",
        f"- `genetic` within {ALLOWED:.0%} of the better of `exact` and its closed bound: "
        f"{near} of {len(judged)}; worst {worst:+.1%}.",
        f"- A paper's strategy is faster than `genetic`: {sum(map(is_beaten, rows))}.",
    ]
    if older := sum(row.get("is_older", False) for row in rows):
        lines.append(f"- {older} rows are of older sources.")
    return "\n".join(lines)


def _read_or_measure(panel: Panel, shares: list[float], *, is_shown: bool) -> list[Row]:
    name = f"planners/{panel.model}-{panel.device}"
    sources = f"{digest_jaxswap()}-{digest_model(MODELS[panel.model][0])}"
    found = (kept.read_newest if is_shown else kept.read_kept)(name, sources) or {"rows": []}
    known = {row["share"]: row for row in found["rows"]}
    missing = [share for share in shares if share not in known]
    if missing and not is_shown:
        print(f"{panel.model} on {panel.device}", flush=True)
        known |= {row["share"]: row for row in measure(panel, missing)}
        kept.write_kept(name, sources, {"rows": list(known.values())})
    is_older = found.get("is_older", False)
    return [{**known[share], "is_older": is_older} for share in shares if share in known]


def main(argv: list[str] | None = None) -> int:
    """Prints the table; 1 if a row misses what is asked of it."""
    listed = lambda text: [part for part in text.split(",") if part]
    parser = argparse.ArgumentParser(description="How far planners are from the best plan.")
    parser.add_argument("--models", type=listed, default=list(GRID_MODELS), help="comma-separated")
    parser.add_argument("--devices", type=listed, default=list(GRID_DEVICES), help="likewise")
    parser.add_argument("--shares", type=listed, default=list(map(str, GRID_SHARES)),
                        help="budgets, of the unplanned forecast")  # fmt: skip
    parser.add_argument("--table", action="store_true", help="print what there is, run nothing")
    parser.add_argument("--write", action="store_true", help=f"write {DOC} as well")
    arguments = parser.parse_args(argv)
    shares = list(map(float, arguments.shares))
    rows: list[Row] = []
    for model in arguments.models:
        for device in arguments.devices:
            panel = Panel(model=model, device=device)
            rows += _read_or_measure(panel, shares, is_shown=arguments.table)
    table = format_table(rows)
    print(table)
    if arguments.write:
        DOC.write_text(f"{_HEADER}\n{table}\n")
    missed = any(is_beaten(row) or (excess(row) or 0.0) > ALLOWED for row in rows)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
