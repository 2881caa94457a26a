"""The demo: what does jaxswap do with a GPT that does not fit a consumer GPU?

python examples/demo.py --device rtx4090 --out build/demo

Plans the step of `gpt.py` for that GPU, confirms the plan with the GPU's own compiler (no GPU is
needed), writes the report, and trains the small version on the CPU, with and without jaxswap.
"""

import argparse
import pathlib
import sys
import time

import gpt
import side_by_side

import jaxswap
from jaxswap.report.make import make_report

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "char_gpt"))
import train

SIZES = {"batch": 64, "layers": 6}
SHARE = 0.95  # of the GPU's memory


def make_progress():
    """Says what is being done, once, with the seconds since the start."""
    start, said = time.perf_counter(), set()

    def show(done, total, label):
        if label not in said and label != "done":  # that is one part of many
            said.add(label)
            side_by_side.tell(f"[{time.perf_counter() - start:4.0f} s] {label}")

    return show


def main():
    """Runs the demo."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    say = " (default: %(default)s)"
    parser.add_argument("--device", default="rtx4090", help="the GPU to plan for" + say)
    parser.add_argument("--planner", default="greedy", help="who decides" + say)
    parser.add_argument("--out", default="build/demo", help="folder for what is written" + say)
    parser.add_argument("--steps", type=int, default=20, help="of the small version" + say)
    arguments = parser.parse_args()
    out = pathlib.Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    show = make_progress()

    step, args, donated = gpt.step(**SIZES)
    show(0, 1, f"planning a GPT ({SIZES['layers']} layers, batch {SIZES['batch']}) for "
               f"{arguments.device}")  # fmt: skip
    plan = jaxswap.plan(
        step, *args, budget=SHARE, device=arguments.device, planner=arguments.planner,
        donate_argnums=donated, progress=show,
    )  # fmt: skip
    show(0, 1, "making the report")
    report = make_report(
        step, *args, plan=plan, donate_argnums=donated, num_budgets=6, title="GPT", progress=show
    )
    report.save(out / "report.html")
    plan.save(out / "plan.json")
    summary, _, _ = str(report).partition("\n\nPeak")
    side_by_side.tell(f"\n{summary}\n")

    show(0, 1, "training the small version on the CPU, with and without jaxswap")
    outcome = train.run(steps=arguments.steps, device=arguments.device, planner="greedy")
    side_by_side.draw(outcome, out / "loss.svg", "char_gpt: as written and with jaxswap")
    side_by_side.tell_differences(outcome, arguments.steps)
    print(f"\nreport: {(out / 'report.html').resolve()}")
    print(f"plan:   {(out / 'plan.json').resolve()}")
    print(f"curves: {(out / 'loss.svg').resolve()}")
    return 0 if report.fits and side_by_side.is_same(outcome) else 1


if __name__ == "__main__":
    sys.exit(main())
