"""Headlines: what the papers claim, and what jaxswap is forecast to do on the same question.

    python -m benchmarks.headlines [--only vdnn,...] [--write]

Each paper's headline, asked of jaxswap on the same kind of model, a card of that size, and the
papers' own unit: how much larger a batch, how much deeper a model, how much slower a step. All
figures of jaxswap are *forecast*, by the simulator, none is compiled or measured; cards, kernels
and frameworks differ from the papers', so that the two columns are neighbours, not rivals.
`--write` puts the table into docs/headlines.md.
"""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from benchmarks.models import build
from jaxswap import Device
from jaxswap._errors import BudgetInfeasibleError
from jaxswap.plan.base import run_planner
from jaxswap.plan.improve import find_floor
from jaxswap.plan.problem import Problem
from jaxswap.program.trace import trace_program

DOC = pathlib.Path("docs") / "headlines.md"
SHARE = 0.95  # of the card, as by default in `jaxswap.plan`
# A headline is a factor of 1.2 to 14: sizes are looked for in steps of an eighth.
STEPS_PER_OCTAVE, MAX_OCTAVES = 8, 6
Sized = Callable[[int], Problem]


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One row.

    Attributes:
        name: on the command line.
        paper: whose claim it is, and what it is.
        claim: the figure.
        ours: finds jaxswap's; returns the setting and the figure.
    """

    name: str
    paper: str
    claim: str
    ours: Callable[[], tuple[str, str]]


def card(base: str, memory_gb: float | None = None) -> Device:
    """A preset, with another size of memory if need be, of which a plan may have `SHARE`."""
    device = Device.named(base)
    memory_bytes = device.memory_bytes if memory_gb is None else int(memory_gb * 2**30)
    return dataclasses.replace(device, memory_bytes=memory_bytes)


def pose(model: str, device: Device, **settings) -> Problem:
    """A model's step on a card, to be planned for what the card has."""
    workload = build(model, **settings)
    program = trace_program(
        workload.step, *workload.args, donate_argnums=workload.donate_argnums, device=device
    )
    return Problem(program=program, device=device, budget_bytes=int(SHARE * device.memory_bytes))


def fits_planned(problem: Problem) -> bool:
    """Whether any plan is forecast to fit."""
    return problem.fits_unplanned or find_floor(problem).peak_bytes <= problem.budget_bytes


def find_largest(start: int, fits: Callable[[int], bool], multiple: int = 1) -> int:
    """The largest size that fits, of a geometric row of multiples; 0 if `start` does not."""
    sizes = []
    for k in range(STEPS_PER_OCTAVE * MAX_OCTAVES + 1):
        size = max(int(start * 2 ** (k / STEPS_PER_OCTAVE)) // multiple, 1) * multiple
        if size not in sizes:
            sizes.append(size)
    low, high = -1, len(sizes)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(sizes[middle]) else (low, middle)
    return sizes[low] if low >= 0 else 0


def _grow(of_size: Sized, start: int, multiple: int, what: str) -> tuple[int, int, str]:
    """The largest size as written and planned, and a phrase that says so."""
    of_size = cache(of_size)
    before = find_largest(start, lambda n: of_size(n).fits_unplanned, multiple)
    after = find_largest(max(before, start), lambda n: fits_planned(of_size(n)), multiple)
    factor = f"{after / before:.1f}x" if before else "none fits as written"
    return before, after, f"{factor} ({what} {before} → {after})"


def _grow_batch(model: str, device: Device, start: int, multiple: int = 8, **settings):
    of_size = lambda batch: pose(model, device, batch=batch, **settings)
    return _grow(of_size, start, multiple, "batch")


def _loss(problem: Problem) -> str:
    """By how much a plan for the card is slower than the step on a card that holds it."""
    try:
        found = run_planner(problem, "genetic")
    except BudgetInfeasibleError as error:
        return f"does not fit: needs {(error.floor_bytes or 0) / 2**30:.1f} GiB"
    return f"{found.forecast.step_s / problem.baseline.step_s - 1:+.1%}"


def _vdnn() -> tuple[str, str]:
    problem = pose("vgg16", card("v100-16gb"), batch=256, dtype="f32")
    return "VGG-16, batch 256, f32, V100 16 GB (12 GB do not hold it)", _loss(problem)


def _capuchin_batch() -> tuple[str, str]:
    *_, said = _grow_batch("bert-base", card("v100-16gb"), 8, dtype="f16")
    return "BERT-base, f16, V100 16 GB", said


def _capuchin_speed() -> tuple[str, str]:
    device = card("v100-16gb")
    before = find_largest(8, lambda n: pose("bert-base", device, batch=n, dtype="f16")
                          .fits_unplanned, 8)  # fmt: skip
    problem = pose("bert-base", device, batch=2 * before, dtype="f16")
    again = run_planner(problem.with_slower_link(float("inf")), "genetic").forecast.step_s
    mixed = run_planner(problem, "genetic").forecast.step_s
    setting = f"BERT-base, batch {2 * before}, twice what fits, f16, V100 16 GB"
    return setting, f"{again / mixed - 1:+.1%}"


def _superneurons() -> tuple[str, str]:
    device = card("v100-16gb", 12)
    # Of the four stages the third grows, as in the paper, which has a batch of 16 and thousands
    # of layers: those would take hours to trace.
    of_size = lambda n: pose("resnet50", device, batch=64, dtype="f32", stages=(6, 32, n, 6))
    before, after, _ = _grow(of_size, 1, 1, "blocks")
    depth = lambda n: 3 * (6 + 32 + n + 6) + 2
    factor = depth(after) / depth(before)
    said = f"{factor:.2f}x (depth {depth(before)} → {depth(after)})"
    return "ResNet, batch 64, f32, a card of 12 GB", said


def _lms() -> tuple[str, str]:
    *_, said = _grow_batch("resnet50", card("v100-16gb"), 32, dtype="f16")
    return "ResNet-50, f16, V100 16 GB", said


def _flashneuron() -> tuple[str, str]:
    *_, said = _grow_batch("resnet152", card("v100-16gb"), 16, dtype="f16")
    return "ResNet-152, f16, V100 16 GB, host memory instead of an SSD", said


def _accudnn() -> tuple[str, str]:
    large, small = card("rtx4090", 24), card("rtx4090", 8)
    batch = find_largest(16, lambda n: pose("resnet152", large, batch=n).fits_unplanned, 8)
    problem = pose("resnet152", small, batch=batch)
    return f"ResNet-152, batch {batch} (fills 24 GB), bf16, RTX 4090 with 8 GB", _loss(problem)


HEADLINES = (
    Headline(name="vdnn", paper="vDNN: loss of VGG-16, batch 256, on 12 GB", claim="18 %",
             ours=_vdnn),
    Headline(name="capuchin-batch", paper="Capuchin: largest batch of BERT", claim="7x",
             ours=_capuchin_batch),
    Headline(name="capuchin-speed", paper="Capuchin: BERT, faster than by recomputation alone",
             claim="+55 %", ours=_capuchin_speed),
    Headline(name="superneurons", paper="SuperNeurons: deepest ResNet on 12 GB", claim="3.24x",
             ours=_superneurons),
    Headline(name="lms", paper="LMS: largest batch of ResNet-50", claim="4.7x", ours=_lms),
    Headline(name="flashneuron", paper="FlashNeuron: largest batch", claim="12–14x",
             ours=_flashneuron),
    Headline(name="accudnn", paper="AccUDNN: ResNet-152 from 24 to 8 GB", claim="fits",
             ours=_accudnn),
)  # fmt: skip

_HEADER = """# The papers' headlines

Made by `python -m benchmarks.headlines --write`. Every figure of jaxswap here is **forecast**:
nothing is compiled, nothing is measured. The papers ran other cards, other kernels and other
frameworks, and their unplanned steps kept what XLA fuses away: the columns are neighbours, not
rivals. "Largest" is the largest of sizes an eighth of an octave apart.
"""


def main(argv: list[str] | None = None) -> int:
    """Prints a line per headline as it is found."""
    parser = argparse.ArgumentParser(description="The papers' headlines, and jaxswap's forecasts.")
    names = [headline.name for headline in HEADLINES]
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(names)}")
    parser.add_argument("--write", action="store_true", help=f"write {DOC} as well")
    arguments = parser.parse_args(argv)
    wanted = arguments.only.split(",") if arguments.only else names
    if unknown := set(wanted) - set(names):
        parser.error(f"--only {sorted(unknown)[0]}: it is none of {', '.join(names)}")
    lines = ["| paper | theirs | jaxswap on | jaxswap, forecast |", "| --- | --- | --- | --- |"]
    print("\n".join(lines), flush=True)
    for headline in HEADLINES:
        if headline.name in wanted:
            setting, said = headline.ours()
            lines.append(f"| {headline.paper} | {headline.claim} | {setting} | {said} |")
            print(lines[-1], flush=True)
    if arguments.write:
        DOC.write_text(f"{_HEADER}\n" + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
