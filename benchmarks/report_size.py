"""Report size: how long does the report of a large step take, and how big is its page?

    python -m benchmarks.report_size --ops 20000

Makes a program of that many ops with its plan, and compiled modules that are as long, builds the
report with its front, writes every form of it, and prints seconds, how many of them were spent on
a processor (a busy machine takes longer), and bytes. Compiling is not part of it.
"""

import argparse
import pathlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from jaxswap._units import format_bytes
from jaxswap.apply.decision import Decision
from jaxswap.model.device import Device
from jaxswap.model.kernel import KernelCost
from jaxswap.model.simulate import simulate
from jaxswap.plan.plan import Plan, PlannedValue
from jaxswap.program.ir import Candidate, Op, Program, Value
from jaxswap.report import Report
from jaxswap.report.front import find_front
from jaxswap.verify.hlo import parse_module
from jaxswap.verify.replay import replay
from jaxswap.verify.target import Compiled
from jaxswap.verify.verify import Verified

SIZE = 2**20
WORK = KernelCost(vector_flops=1e8, size_bytes=2.0 * SIZE)


def main() -> None:
    """Prints a row per form of the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", type=int, default=20_000)
    num_ops = parser.parse_args().ops
    device = Device.named("rtx4090")
    program = _make_program(num_ops // 2)
    plan = _make_plan(program, device)
    before, after = (_compile(num_ops, device) for _ in range(2))
    print(f"{len(program.ops)} ops, {len(program.candidates)} candidates, "
          f"{len(before.memory.names)} instructions")  # fmt: skip
    with _row("front"):
        fronts = find_front(program, device, plan)
    with _row("build"):
        report = Report.of(
            program=program, plan=plan, before=before, after=after, fronts=fronts, title="large"
        )
    with _row("forecast"):
        Report.of(program=program, plan=plan, device=device)
    with _row("text"):
        report.to_text()
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".html", ".json", ".csv", ".trace.json", ".svg"):
            path = pathlib.Path(folder, "report" + suffix)
            with _row(suffix, path):
                report.save(path)


@contextmanager
def _row(name: str, path: pathlib.Path | None = None) -> Iterator[None]:
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    yield
    cpu_s, wall_s = time.process_time() - start_cpu_s, time.perf_counter() - start_s
    size = format_bytes(path.stat().st_size) if path else ""
    print(f"{name:12} {wall_s:6.2f} s, {cpu_s:5.2f} s of CPU  {size}", flush=True)


def _make_program(num_layers: int) -> Program:
    """A chain: every layer's value is read by the next one and by its backward op."""
    ops, values, candidates = [], [], []
    for i in range(2 * num_layers):
        is_forward = i < num_layers
        reads = ((i - 1,) if i else ()) if is_forward else (2 * num_layers - 1 - i,)
        ops.append(
            Op(
                name="dot_general", phase="forward" if is_forward else "backward", reads=reads,
                writes=(i,) if is_forward else (), cost=WORK, is_heavy=True,
                label=f"Net/Block_{i}/Dense_0", source=f"models/net.py:{i % 97}",
            )
        )  # fmt: skip
    for i in range(num_layers):
        back = 2 * num_layers - 1 - i
        readers = (i + 1, back) if i < num_layers - 1 else (back,)
        values.append(Value(name=f"0/{i}", size_bytes=SIZE, producer=i, readers=readers,
                            primitive="dot_general", label=f"Net/Block_{i}/Dense_0"))  # fmt: skip
        if i % 4 == 0:
            candidates.append(
                Candidate(value=i, last_forward=readers[0] if len(readers) > 1 else i,
                          first_backward=back, last_backward=back, recompute=(WORK,))
            )  # fmt: skip
    return Program(ops=tuple(ops), values=tuple(values), candidates=tuple(candidates))


def _make_plan(program: Program, device: Device) -> Plan:
    names = program.candidate_names
    actions = ("offload", "recompute", "keep")
    decisions = {name: Decision(action=actions[k % 3]) for k, name in enumerate(names)}
    values = {
        name: PlannedValue(size_bytes=SIZE, label=f"Net/Block_{k}/Dense_0", primitive="dot_general",
                           source=f"models/net.py:{k % 97}", shape=(512, 512), dtype="float32")
        for k, name in enumerate(names)
    }  # fmt: skip
    forecast = simulate(program, decisions, device)
    return Plan(decisions=decisions, values=values, forecast=forecast,
                budget_bytes=forecast.peak_bytes, device=device.name)  # fmt: skip


def _compile(num_ops: int, device: Device) -> Verified:
    """A module of one kernel per op, as if the compiler had made it."""
    lines, last = [f"%p = s8[{SIZE}]{{0}} parameter(0)"], "p"
    for i in range(num_ops):
        kind = "jvp(Net)" if i < num_ops // 2 else "transpose(jvp(Net))"
        operands = f"%{last}" if i < num_ops // 2 else f"%{last}, %k{num_ops - 1 - i}"
        lines.append(
            f"{'ROOT ' if i == num_ops - 1 else ''}%k{i} = "
            f"s8[{SIZE}]{{0}} custom-call({operands}), "
            f'custom_call_target="k", metadata={{op_name="jit(step)/{kind}/Block_{i}/dot"}}'
        )
        last = f"k{i}"
    body = "\n".join(f"  {line}" for line in lines)
    text = f"HloModule m\n\nENTRY %main (p: s8[{SIZE}]) -> s8[{SIZE}] {{\n{body}\n}}\n"
    module = parse_module(text)
    timeline = replay(module, device)
    compiled = Compiled(
        hlo_text=text, argument_bytes=SIZE, output_bytes=SIZE, alias_bytes=0, temp_bytes=SIZE,
        host_argument_bytes=0, host_output_bytes=0, host_alias_bytes=0, host_temp_bytes=0,
    )  # fmt: skip
    return Verified(device=device, compiled=compiled, module=module, step_s=timeline.step_s,
                    time_is="replayed", timeline=timeline)  # fmt: skip


if __name__ == "__main__":
    main()
