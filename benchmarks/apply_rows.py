"""Apply rows: what does one step need, and how long does it take, once it is rewritten?

    python -m benchmarks.apply_rows memory 0

Input: a kind of measurement and a row's number. Output: one line of JSON. A process of its
own for each row; `benchmarks.apply_table` runs them all and prints the tables.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from benchmarks.compiled import compile_workload
from benchmarks.models import Workload, build
from benchmarks.models._remat import NAMES
from jaxswap import Verified, verify
from jaxswap._hinted import compile_with_hints
from jaxswap.apply import Decision, apply_decisions, name_values, place, schedule
from jaxswap.apply.jaxprs import jx
from jaxswap.apply.program import Ledger
from jaxswap.apply.step import MIN_HEAVY_BYTES
from jaxswap.model.presets import find_device
from jaxswap.plan.base import make_solution
from jaxswap.plan.plan import Plan, make_plan
from jaxswap.plan.problem import FIRST_OFFLOAD_GENE, Genes, Problem
from jaxswap.program.trace import trace_program
from jaxswap.verify.hlo import parse_module
from jaxswap.verify.replay import Timeline, replay

DEVICE = "h100-sxm"
LINK_SHARE = 0.6  # of the compute time that copies in one direction may take
SPREADS = (2.0, 4.0, 1.0)  # windows and reload distances, in multiples of the copy's own time
MAX_FORECAST_STALL = 0.005  # of the step
MIN_WAIT_S = 1e-6
MAX_MEMORY_SHARE = 0.8  # of the device: a step that does not fit is compiled to wait for copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A step and its bound: GB of the whole step, or a share of the temporaries as written."""

    label: str
    model: str
    settings: dict[str, Any]
    max_gb: float | None = None
    max_share: float | None = None
    user_names: tuple[str, ...] = ()  # offload these alone, instead of every candidate


SCAN = {"scan": True}
RESNET = {"batch": 256, "dtype": "bf16"}
VGG = {"batch": 256, "dtype": "f32"}
LSTM = {"vocab": 1000}
MEMORY_ROWS = [
    Row(label="GPT-2-small, unrolled", model="gpt2-small", settings={}, max_gb=5.1),
    Row(label="GPT-2-small, scan", model="gpt2-small", settings=SCAN, max_gb=5.1),
    Row(label="GPT-2-small, unrolled, 4 names per block", model="gpt2-small", settings={},
        max_gb=5.1, user_names=NAMES),
    Row(label="ResNet-50, batch 256, bf16", model="resnet50", settings=RESNET, max_gb=3.5),
    Row(label="VGG-16, batch 256, f32", model="vgg16", settings=VGG, max_gb=15.0),
    Row(label="LSTM, 1024 time steps, vocabulary 1000", model="lstm", settings=LSTM,
        max_share=0.4),
    Row(label="U-Net", model="unet", settings={}, max_share=0.4),
    Row(label="MoE", model="moe", settings={}, max_share=0.4),
    Row(label="ViT-B/16", model="vit-b16", settings={}, max_share=0.4),
]  # fmt: skip
PIN_ROWS = [row for row in MEMORY_ROWS if not row.user_names]
STALL_ROWS = [(row, device) for row in PIN_ROWS for device in ("rtx4090", DEVICE)]


def measure_memory(row: Row) -> dict[str, Any]:
    """Compiles a step as written and with everything offloaded that may be."""
    workload = _build(row)
    written = compile_workload(row.model, row.settings, DEVICE)
    offload = Decision(action="offload")
    decisions = dict.fromkeys(_choose_names(workload, row), offload)
    found = _compile(apply_decisions(workload.step, decisions), workload)
    share = found.compiled.temp_bytes / written.temp_bytes
    gb = found.device_bytes / 1e9
    is_ok = gb <= row.max_gb if row.max_gb is not None else share <= (row.max_share or 0)
    return {
        "written_gb": written.device_bytes / 1e9,
        "applied_gb": gb,
        "host_gb": found.host_bytes / 1e9,
        "temp_share": share,
        "ok": is_ok,
    }


def measure_pins(row: Row) -> dict[str, Any]:
    """Compiles a step as written and with its order pinned, everything kept."""
    workload = _build(row)
    written = compile_workload(row.model, row.settings, DEVICE)
    before = replay(parse_module(written.hlo_text), find_device(DEVICE))
    found = _compile(pin_alone(workload.step), workload)
    after = found.timeline
    return {
        "written_gb": written.device_bytes / 1e9,
        "pinned_gb": found.device_bytes / 1e9,
        "written_ms": before.compute_s * 1e3,
        "pinned_ms": after.compute_s * 1e3,
        "ok": after.compute_s <= 1.03 * before.compute_s,
    }


def measure_stalls(row: Row, device: str) -> dict[str, Any]:
    """Compiles an offload-only plan whose copies can hide, with hints where they help."""
    workload, plan = _plan_to_fit(row, device)
    compile_plans = lambda plans: [
        _compile(workload.step, workload, device, plan=each) for each in plans
    ]
    _, found = compile_with_hints(plan, *compile_plans([plan]), compile_plans)
    timeline = found.timeline
    late_s = [
        w.duration_s
        for w in timeline.waits
        if w.stream == "to_device" and w.duration_s > MIN_WAIT_S
    ]
    share = timeline.stall_s / timeline.step_s
    return {
        "batch": workload.samples,
        "offloads": len(plan.names("offload")),
        "copied_gb": timeline.to_host_bytes / 1e9,
        "copies_ms": 1e3 * max(_copy_s(timeline, "to_host"), _copy_s(timeline, "to_device")),
        "step_ms": timeline.step_s * 1e3,
        "stall_share": share,
        "late_reloads": len(late_s),
        "late_ms": 1e3 * sum(late_s),
        "ok": share < 0.05 and not late_s,
    }


def _plan_to_fit(row: Row, device: str) -> tuple[Workload, Plan]:
    """Fills the link, at half the batch and half of that if the plan does not fit the device."""
    workload = _build(row)
    target = find_device(device)
    while True:
        donated = workload.donate_argnums
        program = trace_program(
            workload.step, *workload.args, donate_argnums=donated, device=target
        )
        problem = Problem(program=program, device=target, budget_bytes=10**15, spreads=SPREADS)
        plan = make_plan(problem, make_solution(problem, fill_link(problem), "link"))
        if plan.forecast.peak_bytes <= MAX_MEMORY_SHARE * target.memory_bytes:
            return workload, plan
        workload = build(row.model, **row.settings | {"batch": workload.samples // 2})


def pin_alone(step: Callable) -> Callable:
    """A step with its heavy ops in program order, and nothing else changed."""

    def pinned(*args):
        traced = place.trace_step(step, args, {})
        keep = Decision(action="keep")
        ledger = Ledger(decide=lambda name: keep, min_heavy_bytes=MIN_HEAVY_BYTES)
        closed = schedule.schedule_step(place.keep_names(traced.closed, lambda name: False), ledger)
        out = jx.eval_jaxpr(closed.jaxpr, closed.consts, *jax.tree.leaves(args))
        return jax.tree.unflatten(traced.out_tree, out)

    return pinned


def fill_link(problem: Problem) -> Genes:
    """Offloads the largest candidates first, while the forecast is that their copies hide.

    The link is filled to `LINK_SHARE` of the compute time in either direction, and a candidate
    that would make the forecast step wait for a copy is passed over.
    """
    timeline, count = problem.timeline, len(problem.spreads)
    room_s = {"forward": 0.0, "backward": 0.0, "update": 0.0}
    for op, op_s in zip(problem.program.ops, timeline.op_s, strict=True):
        room_s[op.phase] += LINK_SHARE * float(op_s)
    out_s, in_s = room_s["forward"], room_s["backward"]
    max_stall_s = MAX_FORECAST_STALL * problem.baseline.step_s
    genes = problem.empty_genes()
    for index in np.argsort([-t.kept_bytes for t in timeline.tracks], kind="stable"):
        track = timeline.tracks[index]
        if track.out_s > out_s or track.in_s > in_s:
            continue
        choices = [FIRST_OFFLOAD_GENE + s * count + s for s in range(count)]
        trials = np.repeat(genes[None], count, axis=0)
        trials[:, index] = choices
        stall_s = problem.evaluate(trials).stall_s
        is_good = problem.options.is_allowed[index, choices] & (stall_s <= max_stall_s)
        if is_good.any():
            genes = trials[int(is_good.argmax())]
            out_s, in_s = out_s - track.out_s, in_s - track.in_s
    return genes


def _build(row: Row) -> Workload:
    return build(row.model, **row.settings)


def _choose_names(workload: Workload, row: Row) -> list[str]:
    if row.user_names:
        values = name_values(workload.step, *workload.args)
        return [v.name for v in values if v.user_name in row.user_names]
    program = trace_program(workload.step, *workload.args, donate_argnums=workload.donate_argnums)
    can_offload = {program.values[c.value].name: c.can_offload for c in program.candidates}
    return [name for name, can in can_offload.items() if can]


def _compile(
    step: Callable, workload: Workload, device: str = DEVICE, plan: Plan | None = None
) -> Verified:
    donated = workload.donate_argnums
    return verify(step, *workload.args, device=device, plan=plan, donate_argnums=donated)


def _copy_s(timeline: Timeline, stream: str) -> float:
    return sum(e.duration_s for e in timeline.events if e.stream == stream)


def main() -> None:
    """Measures one row."""
    kind, number = sys.argv[1], int(sys.argv[2])
    if kind == "memory":
        result = measure_memory(MEMORY_ROWS[number])
    elif kind == "pins":
        result = measure_pins(PIN_ROWS[number])
    else:
        result = measure_stalls(*STALL_ROWS[number])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
