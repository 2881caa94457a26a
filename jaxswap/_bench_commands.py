"""The command that compares planners: `jaxswap bench`.

Input: a target, a device and budgets. Output: a row per budget and planner: jaxswap's own and
those of the papers, each on the same step. Everything is forecast; with `--confirm`, compiled
and replayed as well.
"""

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from jaxswap._terminal import add_command, add_target, progress_bar, start_on_cpu_without_gpu

if TYPE_CHECKING:
    from jaxswap._load import Target
    from jaxswap.plan.plan import Plan

_EXAMPLE = """\
  $ jaxswap bench examples/gpt.py:step --device rtx4090 --set batch=8 --set layers=4 \\
      --budgets 3GiB --planners chen,exact,genetic,lms
  examples/gpt.py:step on rtx4090
     budget  planner        device memory                step   offloaded  planned in
   3.00 GiB  chen     2.90 GiB (forecast)  70.4 ms (forecast)         0 B      2.69 s
   3.00 GiB  exact    3.00 GiB (forecast)  64.2 ms (forecast)  220.50 MiB      4.94 s
   3.00 GiB  genetic  3.00 GiB (forecast)    64 ms (forecast)  281.62 MiB      14.7 s
   3.00 GiB  lms      2.99 GiB (forecast)   186 ms (forecast)    1.73 GiB       3.1 s"""


def add_bench(commands: Any) -> None:
    """`jaxswap bench`."""
    text = "compare planners, jaxswap's and those of the papers, on one step"
    command = add_command(commands, "bench", run_bench, text, _EXAMPLE)
    add_target(command)
    command.add_argument("--device", help="a name from `jaxswap devices`, or a JSON file; the "
                         "attached GPU by default")  # fmt: skip
    command.add_argument("--budgets", default="0.75,0.5,0.35", metavar="LIST",
                         help="sizes (10GiB) or shares of the device, by comma "
                         "(default: %(default)s)")  # fmt: skip
    command.add_argument("--planners", metavar="LIST", help="by comma; all by default")
    command.add_argument(
        "--confirm",
        action="store_true",
        help="compile every plan, for its bytes and its replayed time",
    )
    command.add_argument("--seed", type=int, default=0, help="of everything random")
    command.add_argument("--json", action="store_true", help="print JSON")


def run_bench(arguments: argparse.Namespace) -> int:
    """Plans with every planner for every budget, and prints a table."""
    start_on_cpu_without_gpu()
    from jaxswap._load import load_target, parse_settings
    from jaxswap._plan_commands import read_budget
    from jaxswap.model.device import Device
    from jaxswap.model.presets import find_device
    from jaxswap.plan.base import find_planner, planners
    from jaxswap.plan.budget import parse_budget

    device = find_device(arguments.device) if arguments.device else Device.detect()
    asked = arguments.planners.split(",") if arguments.planners else sorted(planners())
    names = [find_planner(name).name for name in asked]
    texts = arguments.budgets.split(",")
    budgets = [parse_budget(read_budget(text) or text, device) for text in texts]
    rows: list[dict[str, Any]] = []
    with progress_bar(f"loading {arguments.target}", is_quiet=arguments.json) as show:
        target = load_target(arguments.target, parse_settings(arguments.set))
        for done, (budget, name) in enumerate((b, n) for b in budgets for n in names):
            show(done, len(budgets) * len(names), f"{name} within {texts[done // len(names)]}")
            rows.append(_measure(arguments, target, device, budget, name))
    if arguments.json:
        print(json.dumps({"target": target.name, "device": device.name, "rows": rows}))
    else:
        print(f"{target.name} on {device.name}")
        _print_rows(rows)
    return 0


def _measure(
    arguments: argparse.Namespace, target: "Target", device: Any, budget: int, name: str
) -> dict[str, Any]:
    from jaxswap._api import plan
    from jaxswap._errors import BudgetInfeasibleError

    start_s = time.perf_counter()
    try:
        found = plan(
            target.step, *target.args, budget=budget, device=device, planner=name,
            donate_argnums=target.donate_argnums, confirm=arguments.confirm, seed=arguments.seed,
            progress=lambda done, total, label: None,
        )  # fmt: skip
    except BudgetInfeasibleError as error:
        return {"budget_bytes": budget, "planner": name, "why_not": str(error)}
    return {"budget_bytes": budget, "planner": name} | _describe(found, start_s)


def _describe(found: "Plan", start_s: float) -> dict[str, Any]:
    is_compiled = found.compiled_bytes is not None
    forecast = found.forecast
    return {
        "device_bytes": found.compiled_bytes if is_compiled else forecast.peak_bytes,
        "bytes_are": "compiled" if is_compiled else "forecast",
        "step_s": found.replayed_s if is_compiled else forecast.step_s,
        "time_is": "replayed" if is_compiled else "forecast",
        "offload_bytes": forecast.offload_bytes,
        "recompute_s": forecast.recompute_s,
        "stall_s": forecast.stall_s,
        "planning_s": time.perf_counter() - start_s,
    }


def _print_rows(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from jaxswap._units import format_bytes, format_seconds

    table = Table(box=None)
    for heading in ("budget", "planner", "device memory", "step", "offloaded", "planned in"):
        table.add_column(heading, justify="left" if heading == "planner" else "right")
    for row in rows:
        budget = format_bytes(row["budget_bytes"])
        if "why_not" in row:
            table.add_row(budget, row["planner"], "does not fit")
            continue
        table.add_row(
            budget,
            row["planner"],
            f"{format_bytes(row['device_bytes'])} ({row['bytes_are']})",
            f"{format_seconds(row['step_s'])} ({row['time_is']})",
            format_bytes(row["offload_bytes"]),
            format_seconds(row["planning_s"]),
        )
    Console(width=120).print(table)
