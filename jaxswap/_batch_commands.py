"""The command that chooses a batch size: `jaxswap batch`.

Input: a target whose function takes the batch size by keyword. Output: a table of throughputs,
the choice and its reason; the curve and the plan as a report, where a file is named.
"""

import argparse
from typing import TYPE_CHECKING, Any

from jaxswap._terminal import add_command, add_target, progress_bar

if TYPE_CHECKING:
    from jaxswap._batch_choice import BatchChoice

_EXAMPLE = """\
  $ jaxswap batch examples/gpt.py:step --device rtx2080ti --set layers=4 --sizes 4,8,16,32 \\
      --planner exact
  Batch 8: 24.2 samples/s as it is written; no larger batch gains more than 1% for what it
  would have to offload or recompute.
   batch    unplanned  fits  as written  ...   planned  replayed   samples/s
       4     2.85 GiB   yes        27.9              –      23.5
  →    8     4.72 GiB   yes        28.8              –      24.2
      16     8.48 GiB   yes        29.2              –      24.2
      32    15.97 GiB    no        29.5           28.2      22.4"""


def add_batch(commands: Any) -> None:
    """`jaxswap batch`."""
    text = "choose the batch size with the best throughput on a device, planned where it has to be"
    command = add_command(commands, "batch", run_batch, text, _EXAMPLE)
    add_target(command)
    say = " (default: %(default)s)"
    command.add_argument("--device", help="a name from `jaxswap devices`, or a JSON file; the "
                         "attached GPU by default")  # fmt: skip
    command.add_argument("--budget", help="device memory for the step: 10GiB, 10GB, or a share "
                         "such as 0.8; 0.95 by default")  # fmt: skip
    command.add_argument("--sizes", metavar="LIST", help="the sizes to choose from: 8,16,32; "
                         "those that suit the hardware by default")  # fmt: skip
    command.add_argument(
        "--argument",
        default="batch",
        metavar="NAME",
        help="the keyword of the target's function that is the batch size" + say,
    )
    command.add_argument("--planner", default="genetic", help="who decides" + say)
    command.add_argument("--seed", type=int, default=0, help="of everything random" + say)
    command.add_argument("--report", metavar="FILE", help="write the report of the chosen size, "
                         "with the throughput curve in it: .html, .json, .csv or .svg")  # fmt: skip
    command.add_argument("--json", action="store_true", help="print JSON")


def run_batch(arguments: argparse.Namespace) -> int:
    """Chooses, prints the table, writes what was asked for."""
    from jaxswap._plan_commands import read_budget
    from jaxswap._terminal import start_on_cpu_without_gpu
    from jaxswap.report.save import check_saveable

    if arguments.report:
        check_saveable(arguments.report)
    sizes = _read_sizes(arguments.sizes)
    start_on_cpu_without_gpu()
    import json

    from jaxswap._batch import choose_batch_size
    from jaxswap._batch_choice import as_rows
    from jaxswap._load import load_target, parse_settings
    from jaxswap.report.make import make_report

    settings = parse_settings(arguments.set)

    def load(size: int) -> Any:
        return load_target(arguments.target, settings | {arguments.argument: size})

    with progress_bar(f"loading {arguments.target}", is_quiet=arguments.json) as show:
        target = load(sizes[0] if sizes else 8)
        choice = choose_batch_size(
            target.step, lambda size: load(size).args, device=arguments.device,
            budget=read_budget(arguments.budget), batch_sizes=sizes, planner=arguments.planner,
            donate_argnums=target.donate_argnums, seed=arguments.seed, progress=show,
        )  # fmt: skip
        if arguments.report:
            chosen = load(choice.batch_size)
            report = make_report(
                chosen.step, *chosen.args, plan=choice.plan, device=arguments.device,
                donate_argnums=chosen.donate_argnums, batches=_as_report_rows(choice),
                title=f"{arguments.target}, batch {choice.batch_size}", progress=show,
            )  # fmt: skip
            report.save(arguments.report)
    if arguments.json:
        print(json.dumps({"batch_size": choice.batch_size, "reason": choice.reason,
                          "table": as_rows(choice)}))  # fmt: skip
    else:
        print(choice)
        if arguments.report:
            print(f"wrote {arguments.report}")
    return 0


def _read_sizes(text: str | None) -> list[int] | None:
    from jaxswap._errors import BadArgumentError

    if text is None:
        return None
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise BadArgumentError(
            f"`--sizes {text}` is no list of batch sizes: write whole numbers, such as 8,16,32."
        ) from None


def _as_report_rows(choice: "BatchChoice") -> list[Any]:
    from jaxswap.report.rows import BatchRow

    return [
        BatchRow(
            batch_size=row.batch_size,
            size_bytes=row.unplanned_bytes,
            unplanned_per_s=row.unplanned if row.fits else None,
            planned_per_s=row.replayed or row.planned,
            ideal_per_s=row.ideal,
            how="replayed" if row.replayed else "forecast",
            is_chosen=row.batch_size == choice.batch_size,
        )
        for row in choice.table
    ]
