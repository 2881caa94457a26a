"""Side by side: does a step train the same with jaxswap as without?

Input: a training step `step(state, batch) -> (state, loss)`, the same step under `swap_offload`,
a state and a function that makes the k-th batch. Output: an `Outcome`, lines in the terminal, and
a picture of the loss curves.
All runs start from copies of one state and see the same batches, on the CPU unless
`JAX_PLATFORMS` says otherwise: a CPU has no second memory, so that it shows that the numbers are
right, and what is said of a GPU is forecast.
"""

import argparse
import dataclasses
import html
import logging
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxswap
from jaxswap import Plan, swap_offload
from jaxswap.apply import name_values

if "JAX_PLATFORMS" not in os.environ:
    jax.config.update("jax_platforms", "cpu")

COMPARED_AT = 20  # steps
# A value that is made again stands between other neighbours, and XLA:CPU rounds by neighbours.
# Adam's first step is as long for a gradient that is all rounding as for any other.
TOLERANCE = 1e-3
_SHOWN_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Three runs of one step. Differences are those of `find_difference`.

    Attributes:
        plain_losses: of the step as written.
        swapped_losses: of the step under `swap_offload`.
        plan: the plan that it followed.
        difference: between the states of these two after 20 steps, or fewer if there are fewer.
        offload_plan: a plan that offloads, and makes nothing again.
        offload_difference: between the step as written and that plan, likewise.
    """

    plain_losses: tuple[float, ...]
    swapped_losses: tuple[float, ...]
    plan: Plan
    difference: float
    offload_plan: Plan
    offload_difference: float


def forecast_bytes(step: Callable, state: Any, batch: Any, device: str) -> int:
    """What the step as written needs on the device (forecast)."""
    plan = jaxswap.plan(
        step, state, batch, budget="1TiB", device=device, donate_argnums=0, confirm=False
    )
    return plan.forecast.peak_bytes


def plan_offloads_only(step: Callable, state: Any, batch: Any, *, budget: int, device: str) -> Plan:
    """A plan that offloads, and keeps all the rest.

    Other plans decide about large values alone; what lives inside of kernels is made again
    where it is wanted. Here it is kept as well, so that every number is computed once.
    """
    plan = jaxswap.plan(
        step, state, batch, budget=budget, device=device, planner="autotm", donate_argnums=0,
        confirm=False,
    )  # fmt: skip
    names = [value.name for value in name_values(step, state, batch)]
    kept = tuple(name for name in names if name not in plan.decisions)
    return dataclasses.replace(plan, always_kept=kept)


def train_all(
    step: Callable, swapped: Any, state: Any, make_batch: Callable[[int], Any], steps: int
) -> Outcome:
    """Trains as written, under `swap_offload`, and with offloads alone; compares the states."""
    # What a step with offloads returns is committed to its device. With a state that is so from
    # the start, `jit` compiles once.
    state = jax.device_put(state, jax.devices()[0])
    plan = swapped.plan_for(state, make_batch(0))
    tell("\n".join(str(plan).splitlines()[:3]))
    plain = jax.jit(step, donate_argnums=0)
    plain_losses, expected = _train("as written", plain, state, make_batch, steps)
    swapped_losses, found = _train("with jaxswap", swapped, state, make_batch, steps)
    offload_plan = plan_offloads_only(
        step, state, make_batch(0), budget=plan.budget_bytes, device=plan.device
    )
    offloading = swap_offload(step, plan=offload_plan, donate_argnums=0)
    num_compared = min(COMPARED_AT, steps)
    _, offloaded = _train("offload only", offloading, state, make_batch, num_compared)
    return Outcome(
        plain_losses=plain_losses,
        swapped_losses=swapped_losses,
        plan=plan,
        difference=find_difference(expected, found),
        offload_plan=offload_plan,
        offload_difference=find_difference(expected, offloaded),
    )


def _train(
    name: str, step: Callable, state: Any, make_batch: Callable[[int], Any], steps: int
) -> tuple[tuple[float, ...], list[np.ndarray]]:
    """The losses, and the state after 20 steps."""
    state = jax.tree.map(jnp.copy, state)  # its own copy: the step overwrites it
    losses, compared, start = [], [], time.perf_counter()
    for k in range(steps):
        state, loss = step(state, make_batch(k))
        losses.append(float(loss))
        if k + 1 == min(COMPARED_AT, steps):
            compared = [np.array(leaf) for leaf in jax.tree.leaves(state)]
        if k == 0 or (k + 1) % _SHOWN_EVERY == 0 or k + 1 == steps:
            spent = time.perf_counter() - start
            tell(f"{name:>12}: step {k + 1:3}, loss {losses[-1]:.4f} ({spent:.0f} s)")
    return tuple(losses), compared


def find_difference(expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    """The largest difference, relative to the largest number of its array; 0 for equal bits."""
    worst = 0.0
    for a, b in zip(expected, found, strict=True):
        if not np.array_equal(a, b):
            scale = np.max(np.abs(a), initial=1e-30)
            worst = max(worst, float(np.max(np.abs(a - b)) / scale))
    return worst


def tell(text: str) -> None:
    """Says how far it is, at once."""
    print(text, flush=True)


# ---- the command line ----


def main(run: Callable[..., Outcome], script: str, question: str | None) -> None:
    """Runs an example from the command line, and ends with an error where the runs differ."""
    arguments = _read_arguments(script, question)
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("jaxswap").setLevel(logging.INFO)
    outcome = run(steps=arguments.steps, device=arguments.device, planner=arguments.planner)
    tell_differences(outcome, arguments.steps)
    title = f"{pathlib.Path(script).resolve().parent.name}: as written and with jaxswap"
    draw(outcome, arguments.picture, title)
    tell(f"wrote {arguments.picture}")
    if not is_same(outcome):
        raise SystemExit("the runs differ by more than they may")


def is_same(outcome: Outcome) -> bool:
    """Whether the runs differ by no more than they may: offloads alone by nothing."""
    return outcome.difference <= TOLERANCE and outcome.offload_difference == 0


def tell_differences(outcome: Outcome, steps: int) -> None:
    """Says how far the states are apart."""
    tell(f"parameters and optimizer state after {min(COMPARED_AT, steps)} steps:")
    tell(f"  with jaxswap: {_describe(outcome.plan, outcome.difference, TOLERANCE)}")
    tell(f"  offload only: {_describe(outcome.offload_plan, outcome.offload_difference, 0)}")


def _describe(plan: Plan, difference: float, allowed: float) -> str:
    counts = f"{len(plan.names('offload'))} offloaded, {len(plan.names('recompute'))} recomputed"
    if difference == 0:
        return f"the same bits ({counts})"
    return f"off by {difference:.1e}, where {allowed:.0e} is allowed ({counts})"


def _read_arguments(script: str, question: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(question or "").partition("\n")[0])
    say = " (default: %(default)s)"
    parser.add_argument("--steps", type=int, default=60, help="of each run" + say)
    parser.add_argument("--device", default="rtx4090", help="the GPU to plan for" + say)
    parser.add_argument("--planner", default="genetic", help="who decides" + say)
    picture = os.path.relpath(pathlib.Path(script).parent / "loss.svg")
    parser.add_argument("--picture", default=picture, help="the loss curves" + say)
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps {arguments.steps}: there is nothing to compare; take at least 1")
    return arguments


# ---- the picture ----

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 40, 44


def draw(outcome: Outcome, path: str | os.PathLike[str], title: str) -> None:
    """Writes both loss curves into one SVG file: the plain one wide, the other dashed on it."""
    curves = (outcome.plain_losses, outcome.swapped_losses)
    low, high = min(map(min, curves)), max(map(max, curves))
    low, high = (low, high) if high > low else (low - 1, high + 1)
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    steps = len(curves[0])

    def place(k: int, loss: float) -> tuple[float, float]:
        across = k / max(steps - 1, 1)
        up = (loss - low) / (high - low)
        return _LEFT + across * (right - _LEFT), bottom - up * (bottom - _TOP)

    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="14" fill="#222">{html.escape(title)}</text>',
        *_draw_ticks(low, high, steps, place, right),
        *_draw_curve(curves[0], place, 'stroke="#c9b8e8" stroke-width="7"'),
        *_draw_curve(curves[1], place, 'stroke="#00786f" stroke-width="2" stroke-dasharray="7 4"'),
        *_draw_legend(right),
        "</svg>",
    ]
    pathlib.Path(path).write_text("\n".join(text) + "\n", "utf-8")


def _draw_ticks(low: float, high: float, steps: int, place: Callable, right: float) -> list[str]:
    lines = []
    for loss in np.linspace(low, high, 5):
        _, y = place(0, loss)
        lines.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#e5e5e5"/>')
        lines.append(
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{loss:.2f}</text>'
        )
    bottom = _HEIGHT - _BOTTOM
    for k in sorted({round(x) for x in np.linspace(0, steps - 1, 5)}):
        x, _ = place(k, low)
        lines.append(
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#555">{k + 1}</text>'
        )
    middle = (_LEFT + right) / 2
    lines.append(
        f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle" fill="#555">step</text>'
    )
    lines.append(f'<text x="{_LEFT - 8}" y="{_TOP - 10}" text-anchor="end" fill="#555">loss</text>')
    return lines


def _draw_curve(losses: Sequence[float], place: Callable, style: str) -> list[str]:
    points = " ".join("{:.1f},{:.1f}".format(*place(k, loss)) for k, loss in enumerate(losses))
    return [f'<polyline points="{points}" fill="none" stroke-linejoin="round" {style}/>']


def _draw_legend(right: float) -> list[str]:
    x, y = right - 130, _TOP + 10
    return [
        f'<path d="M{x} {y}h28" stroke="#c9b8e8" stroke-width="7"/>',
        f'<text x="{x + 36}" y="{y + 4}" fill="#222">as written</text>',
        f'<path d="M{x} {y + 20}h28" stroke="#00786f" stroke-width="2" stroke-dasharray="7 4"/>',
        f'<text x="{x + 36}" y="{y + 24}" fill="#222">with jaxswap</text>',
    ]
