"""The commands that plan: `jaxswap plan` and `jaxswap demo`.

Input: a target, a device and a budget. Output: the report, in the terminal or in a file, and
the plan. Paths are tried before the work starts; files appear whole or not at all.
"""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from jaxswap._terminal import add_command, add_settings, add_target, progress_bar

if TYPE_CHECKING:
    from jaxswap._load import Target
    from jaxswap.plan.plan import Plan
    from jaxswap.report import Report

_PLAN_EXAMPLE = """\
  $ jaxswap plan jaxswap.demo:step --device rtx3090 --budget 16GiB --planner greedy \\
      --report step.html
  jaxswap.demo:step on rtx3090, planned by greedy, seed 0
  fits its budget: 14.98 GiB of 16.00 GiB (compiled)

                            as written    planned   change
  device memory (compiled)   21.55 GiB  14.98 GiB  −30.5 %
  step time (replayed)          810 ms     822 ms   +1.5 %
    ...
  wrote step.html"""
_DEMO_EXAMPLE = """\
  $ jaxswap demo
  jaxswap.demo:step on rtx3090, planned by greedy, seed 0
  fits its budget: 14.98 GiB of 16.00 GiB (compiled)
    ...
  wrote jaxswap-demo.html"""


def add_plan(commands: Any) -> None:
    """`jaxswap plan`."""
    text = "decide for every value of a step: keep, offload or recompute, and show the report"
    command = add_command(commands, "plan", run_plan, text, _PLAN_EXAMPLE)
    add_target(command)
    _add_search(command, device=None, budget=None)
    command.add_argument("--report", metavar="FILE",
                         help="write the report: .html, .json, .csv, .trace.json, .svg or .png; "
                         "the step is compiled as written and as planned for it")  # fmt: skip
    command.add_argument("--json", action="store_true", help="print JSON")


def add_demo(commands: Any) -> None:
    """`jaxswap demo`."""
    text = "plan a built-in step for a GPU it does not fit, confirm it, and write the report"
    command = add_command(commands, "demo", run_demo, text, _DEMO_EXAMPLE)
    add_settings(command)
    _add_search(command, device="rtx3090", budget="16GiB")
    command.add_argument("--report", metavar="FILE", default="jaxswap-demo.html",
                         help="where to write the report (default: %(default)s)")  # fmt: skip
    command.set_defaults(target="jaxswap.demo:step", json=False, planner="greedy")


def _add_search(command: Any, *, device: str | None, budget: str | None) -> None:
    say = " (default: %(default)s)"
    command.add_argument("--device", default=device,
                         help="a name from `jaxswap devices`, or a JSON file"
                         + (say if device else "; the attached GPU by default"))  # fmt: skip
    command.add_argument("--budget", default=budget,
                         help="device memory for the step: 10GiB, 10GB, or a share such as 0.8"
                         + (say if budget else "; 0.95 by default"))  # fmt: skip
    command.add_argument("--host-budget", metavar="SIZE", help="likewise for pinned host memory")
    command.add_argument("--planner", default="genetic", help="who decides" + say)
    command.add_argument("--seed", type=int, default=0, help="of everything random" + say)
    command.add_argument("--no-confirm", action="store_true",
                         help="compile nothing: every figure is forecast")  # fmt: skip
    command.add_argument("--save", metavar="FILE", help="write the plan to FILE (JSON)")


def run_plan(arguments: argparse.Namespace) -> int:
    """Plans, prints the report, writes what was asked for."""
    from jaxswap._files import write_whole
    from jaxswap._terminal import start_on_cpu_without_gpu
    from jaxswap.report.paths import check_writable
    from jaxswap.report.save import check_saveable

    if arguments.report:
        check_saveable(arguments.report)
    if arguments.save:
        check_writable(arguments.save)
    start_on_cpu_without_gpu()
    from jaxswap._load import load_target, parse_settings
    from jaxswap.plan.plan_json import dump_plan
    from jaxswap.report.tables import to_json

    with progress_bar(f"loading {arguments.target}", is_quiet=arguments.json) as show:
        target = load_target(arguments.target, parse_settings(arguments.set))
        found = _search(arguments, target, show)
        if arguments.save:
            write_whole(arguments.save, dump_plan(found))
        report = _report(arguments, target, found, show)
        if arguments.report:
            show(1, 1, f"writing {arguments.report}")
            report.save(arguments.report)
    print(to_json(report, with_ops=False) if arguments.json else report)
    for path in (arguments.save, arguments.report):
        if path:
            print(f"wrote {path}", file=sys.stderr if arguments.json else sys.stdout)
    return 0 if report.fits else 1


def run_demo(arguments: argparse.Namespace) -> int:
    """`plan` on the built-in step."""
    return run_plan(arguments)


def read_budget(text: str | None) -> str | float | None:
    """A share of the device (`0.8`) as a number, anything else as it is."""
    if text is None:
        return None
    try:
        share = float(text)
    except ValueError:
        return text
    return share if 0 < share <= 1 else text


def _search(arguments: argparse.Namespace, target: "Target", show: Any) -> "Plan":
    from jaxswap._api import plan
    from jaxswap.plan.budget import DEFAULT_SHARE

    show(0, 0, f"planning {target.name}")
    budget = read_budget(arguments.budget)
    return plan(
        target.step,
        *target.args,
        budget=DEFAULT_SHARE if budget is None else budget,
        device=arguments.device,
        planner=arguments.planner,
        donate_argnums=target.donate_argnums,
        host_budget=read_budget(arguments.host_budget),
        confirm=not arguments.no_confirm,
        seed=arguments.seed,
        progress=show,
    )


def _report(arguments: argparse.Namespace, target: "Target", found: "Plan", show: Any) -> "Report":
    from jaxswap.report.make import NUM_BUDGETS, make_report

    is_wanted = bool(arguments.report)
    return make_report(
        target.step,
        *target.args,
        plan=found,
        device=arguments.device,
        donate_argnums=target.donate_argnums,
        verify=is_wanted and not arguments.no_confirm,
        # The text has no picture of the front.
        num_budgets=NUM_BUDGETS if is_wanted or arguments.json else 0,
        title=target.name,
        progress=show,
    )
