"""Largest table: how much larger a batch, and how much deeper a model, does a GPU hold planned?

    python -m benchmarks.largest_table [--only gpt2-small,...] [--table] [--write]

Per row two sizes whose *compiled* steps are within 95 % of an RTX 4090: as written (XLA may
rematerialise), and planned. The forecast says where to look: as written, from there up and down;
planned, from one size less downwards, since a plan that fails takes many compiles. So the first is
the largest of its sizes, which are a quarter of an octave apart, and the second is one that fits.
Rows are kept (`kept.py`): a run that is stopped goes on where it was, and what changed is run
again. `--table` shows what there is, older rows too, and `--write` puts it into docs/largest.md.
"""

import argparse
import pathlib
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jaxswap
from benchmarks import kept
from benchmarks.headlines import SHARE, find_largest, fits_planned, pose
from benchmarks.models import build
from benchmarks.sources import digest_jaxswap, digest_model
from jaxswap import BudgetInfeasibleError, Device

DEVICE = "rtx4090"
RATIO = 2**0.25
ASKED = 3.0  # that the batch grows by where activations dominate
PLANNER = "greedy"  # near the floor there is little to choose
DOC = pathlib.Path("docs") / "largest.md"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What grows.

    Attributes:
        name: on the command line.
        model: a workload.
        start: a size that fits as written.
        multiple: sizes are multiples of it.
        grown: the settings for a size.
        what: the word for a size.
    """

    name: str
    model: str
    start: int
    multiple: int = 1
    grown: Callable[[int], dict[str, Any]] = field(default=lambda size: {"batch": size})
    what: str = "batch"


QUESTIONS = (
    Question(name="gpt2-small", model="gpt2-small", start=2),
    Question(name="bert-base", model="bert-base", start=16, multiple=8),
    Question(name="vit-b16", model="vit-b16", start=16, multiple=8),
    Question(name="resnet50", model="resnet50", start=32, multiple=8),
    Question(name="vgg16", model="vgg16", start=16, multiple=8),
    Question(name="unet", model="unet", start=2),
    Question(name="lstm", model="lstm", start=16, multiple=8),
    Question(name="moe", model="moe", start=4),
    Question(
        name="deep-gpt", model="gpt2-small", start=2, what="layers",
        grown=lambda size: {"layers": size, "batch": 16, "scan": True},
    ),
    Question(
        name="deep-resnet", model="resnet50", start=4, what="blocks",
        grown=lambda size: {"stages": (3, 4, size, 3), "batch": 256},
    ),
)  # fmt: skip

_HEADER = """# How large a step does a GPU hold?

Made by `python -m benchmarks.largest_table --write`: the largest batch, and the deepest model,
whose step is within 95 % of an RTX 4090 (23.64 GiB), as written and planned. Bytes are *compiled*,
samples per second *replayed*; nothing is measured. Sizes are a quarter of an octave apart. As
written, XLA rematerialises by itself where it can. A planned size is one that fits, found from a
quarter of an octave below what is forecast to fit: larger ones may. Plans are those of `greedy`,
which near the floor has little to choose. A batch this large is possible, and often not the
fastest ([batch size](batch.md)). `deep-gpt` is GPT-2-small in a `scan`, with a batch of 16.

Where a batch grows by less than 3, one op sets the floor: in VGG-16 and U-Net what the first layers
make in their full resolution, with its gradient and what that is made of, in the LSTM and the MoE
the logits and their gradient.
"""


def measure(question: Question) -> Row:
    """Compiles a model at sizes around those that are forecast to be the largest."""
    device, start_s = Device.named(DEVICE), time.perf_counter()
    budget = int(SHARE * device.memory_bytes)
    problem = cache(lambda size: pose(question.model, device, **question.grown(size)))

    def compile_step(size: int, *, is_planned: bool) -> Row | None:
        workload = build(question.model, **question.grown(size))
        common = {"device": device, "donate_argnums": workload.donate_argnums}
        if not is_planned:
            found = jaxswap.verify(workload.step, *workload.args, **common)
            needed, step_s = found.device_bytes, found.timeline.step_s
        else:
            try:
                plan = jaxswap.plan(
                    workload.step, *workload.args, budget=budget, planner=PLANNER, **common
                )
            except BudgetInfeasibleError:
                return None
            needed, step_s = plan.compiled_bytes, plan.replayed_s
        fits = needed is not None and needed <= budget
        return {"size": size, "bytes": needed, "step_s": step_s} if fits else None

    found = find_sizes(
        question,
        lambda size: problem(size).fits_unplanned,
        lambda size: fits_planned(problem(size)),
        compile_step,
    )
    return {
        "name": question.name,
        "what": question.what,
        **found,
        "spent_s": time.perf_counter() - start_s,
    }


def find_sizes(
    question: Question,
    fits_as_written: Callable[[int], bool],
    fits_with_plan: Callable[[int], bool],
    compile_step: Callable[..., Row | None],
) -> Row:
    """The sizes that are forecast to fit, and from there those that do."""
    multiple = question.multiple
    forecast = max(find_largest(question.start, fits_as_written, multiple), question.start)
    written = walk(
        forecast, multiple, lambda size: compile_step(size, is_planned=False), goes_up=True
    )
    planned_forecast = find_largest(forecast, fits_with_plan, multiple)
    # What XLA rematerialises by itself may be more than is forecast to fit with a plan.
    start = max(round_to(planned_forecast / RATIO, multiple), written["size"] if written else 0)
    planned = walk(start, multiple, lambda size: compile_step(size, is_planned=True), goes_up=False)
    return {"written": written, "planned": planned, "forecast": [forecast, planned_forecast]}


def round_to(size: float, multiple: int) -> int:
    """The next multiple below, and at least one."""
    return max(int(size) // multiple, 1) * multiple


def walk(
    start: int, multiple: int, compile_at: Callable[[int], Row | None], *, goes_up: bool
) -> Row | None:
    """From a size downwards to the first that fits; or upwards while sizes do."""
    size, best = start, compile_at(start)
    while best is None and size > multiple:
        size = min(round_to(size / RATIO, multiple), size - multiple)
        best = compile_at(size)
    while goes_up and best is not None and size >= start:
        size = max(round_to(size * RATIO, multiple), size + multiple)
        if (larger := compile_at(size)) is None:
            break
        best = larger
    return best


def is_good(row: Row) -> bool:
    """Whether the size grows as asked; depths have nothing asked of them."""
    return row["what"] != "batch" or grows_by(row) >= ASKED


def grows_by(row: Row) -> float:
    """The planned size over the written one; 0 where either is missing."""
    written, planned = row["written"], row["planned"]
    return planned["size"] / written["size"] if written and planned else 0.0


def format_table(rows: Iterable[Row]) -> str:
    """In Markdown."""
    lines = [
        "| step | as written | GB | per second | planned | GB | per second | grows by |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = [f"{row['name']}, {row['what']}"]
        for found in (row["written"], row["planned"]):
            rate = found["size"] / found["step_s"] if found and row["what"] == "batch" else None
            shown = "" if rate is None else f"{rate:.1f}"
            cells += [str(found["size"]), f"{found['bytes'] / 1e9:.2f}", shown] if found else "---"
        growth = f"{grows_by(row):.1f}x" if row["written"] and row["planned"] else "-"
        lines.append(f"| {' | '.join(cells)} | {growth} |")
    return "\n".join(lines)


def _read_or_measure(question: Question, jaxswap_is: str, *, runs: bool) -> Row | None:
    name = f"largest/{question.name}"
    sources = f"{jaxswap_is}-{digest_model(question.model)}"
    if not runs or kept.read_kept(name, sources):
        return kept.read_newest(name, sources)
    print(question.name, flush=True)
    return kept.write_kept(name, sources, measure(question))


def main(argv: list[str] | None = None) -> int:
    """Prints the table; 1 if a batch grows by less than is asked for."""
    names = [question.name for question in QUESTIONS]
    parser = argparse.ArgumentParser(description="The largest sizes, as written and planned.")
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(names)}")
    parser.add_argument("--table", action="store_true", help="print what there is, run nothing")
    parser.add_argument("--write", action="store_true", help=f"write it into {DOC}")
    arguments = parser.parse_args(argv)
    wanted = arguments.only.split(",") if arguments.only else names
    if unknown := set(wanted) - set(names):
        parser.error(f"--only {sorted(unknown)[0]}: it is none of {', '.join(names)}")
    sources = digest_jaxswap()  # those that run, whatever is edited meanwhile
    rows = {}
    for question in QUESTIONS:
        is_asked = question.name in wanted and not arguments.table
        if row := _read_or_measure(question, sources, runs=is_asked):
            rows[question.name] = row
    shown = [rows[name] for name in names if name in rows and name in wanted]
    print(format_table(shown))
    if arguments.write:
        if not rows:
            parser.error("--write: no row was run yet")
        missing = [name for name in names if name not in rows]
        older = [name for name, row in rows.items() if row.get("is_older")]
        note = f"\nNot run: {', '.join(missing)}.\n" if missing else ""
        note += f"\nOf older sources: {', '.join(older)}.\n" if older else ""
        DOC.write_text(f"{_HEADER}\n{format_table(rows.values())}\n{note}")
    return 0 if all(map(is_good, shown)) else 1


if __name__ == "__main__":
    sys.exit(main())
