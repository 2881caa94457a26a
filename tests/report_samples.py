"""Reports for tests: a program, its plan, and compiled modules written by hand."""

from jaxswap.apply.decision import Decision
from jaxswap.model.device import Device
from jaxswap.model.kernel import KernelCost
from jaxswap.model.simulate import Forecast
from jaxswap.plan.plan import Plan, PlannedValue
from jaxswap.program.ir import Candidate, Op, Program, Value
from jaxswap.report import BatchRow, FrontPoint, Report
from jaxswap.verify.hlo import parse_module
from jaxswap.verify.replay import replay
from jaxswap.verify.target import Compiled
from jaxswap.verify.verify import Verified

DEVICE = Device.named("rtx4090")
SIZE = 2**24
WORK = KernelCost(vector_flops=1e9, size_bytes=2.0 * SIZE)
# What a hostile or merely unlucky program may call its layers.
NASTY = "</script><script>throw 1</script><img src=x onerror=alert(1)>&amp;\u2028'\""


def kernel(name, operands, op_name):
    operands = ", ".join(f"%{o}" for o in operands)
    text = f"%{name} = s8[{SIZE}]{{0}} custom-call({operands}), "
    return text + f'custom_call_target="kernel", metadata={{op_name="{op_name}"}}'


def module_text(num_layers, *, is_planned):
    """A forward and a backward kernel per layer; planned, even layers offload, others redo."""
    host, device = f"s8[{SIZE}]{{0:S(5)}}", f"s8[{SIZE}]{{0}}"
    lines, last = [f"%p = {device} parameter(0)"], "p"
    for i in range(num_layers):
        lines.append(kernel(f"f{i}", [last], f"jit(step)/jvp(Net)/Block_{i}/dot_general"))
        last = f"f{i}"
        if is_planned and i % 2 == 0:
            lines.append(f"%out{i} = ({host}, {device}, u32[]) copy-start(%f{i})")
            lines.append(f"%away{i} = {host} copy-done(%out{i})")
    for i in reversed(range(num_layers)):
        saved = f"f{i}"
        if is_planned and i % 2 == 0:
            lines.append(f"%in{i} = ({device}, {host}, u32[]) copy-start(%away{i})")
            lines.append(f"%back{i} = {device} copy-done(%in{i})")
            saved = f"back{i}"
        elif is_planned:
            again = kernel(f"r{i}", ["p"], f"jit(step)/jvp(Net)/Block_{i}/dot_general")
            lines.append(again)
            saved = f"r{i}"
        name = f"jit(step)/transpose(jvp(Net))/Block_{i}/dot_general"
        lines.append(kernel(f"b{i}", [last, saved], name))
        last = f"b{i}"
    lines.append("ROOT " + kernel("update", [last, "p"], "jit(step)/add"))
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule m\n\nENTRY %main (p: s8[{SIZE}]) -> s8[{SIZE}] {{\n{body}\n}}\n"


def verified_of(text, *, time_is="replayed"):
    """What the compiler would have said of a module."""
    module = parse_module(text)
    timeline = replay(module, DEVICE)
    compiled = Compiled(
        hlo_text=text, argument_bytes=SIZE, output_bytes=SIZE, alias_bytes=0, temp_bytes=4 * SIZE,
        host_argument_bytes=0, host_output_bytes=0, host_alias_bytes=0, host_temp_bytes=SIZE,
    )  # fmt: skip
    return Verified(
        device=DEVICE, compiled=compiled, module=module, step_s=timeline.step_s,
        time_is=time_is, timeline=timeline,
    )  # fmt: skip


def make_program(num_layers=6):
    """Layer `i` makes `a{i}` from the one before; the backward pass reads them in reverse."""
    ops, values = [], []
    for i in range(num_layers):
        reads = (i - 1,) if i else ()
        ops.append(Op(name=f"f{i}", phase="forward", reads=reads, writes=(i,), cost=WORK,
                      is_heavy=True, source=f"net.py:{i}"))  # fmt: skip
        back = 2 * num_layers - 1 - i
        readers = (i + 1, back) if i < num_layers - 1 else (back,)
        values.append(Value(name=f"a{i}", size_bytes=SIZE, producer=i, readers=readers))
    for i in reversed(range(num_layers)):
        ops.append(Op(name=f"b{i}", phase="backward", reads=(i,), writes=(), cost=WORK,
                      is_heavy=True, source=f"net.py:{i}"))  # fmt: skip
    candidates = [
        Candidate(
            value=i, last_forward=value.readers[0] if len(value.readers) > 1 else i,
            first_backward=value.readers[-1], last_backward=value.readers[-1],
            parents=(i - 1,) if i else (), recompute=(WORK,),
        )
        for i, value in enumerate(values)
    ]  # fmt: skip
    return Program(
        ops=tuple(ops), values=tuple(values), candidates=tuple(candidates), base_bytes=2 * SIZE,
        fingerprint="sample",
    )  # fmt: skip


def make_plan(num_layers=6, *, label="Net/Block_{}/Dense_0", budget_bytes=6 * SIZE):
    """Offloads even layers, makes the others again, keeps the last."""
    names = [f"a{i}" for i in range(num_layers)]
    actions = ["offload" if i % 2 == 0 else "recompute" for i in range(num_layers)]
    actions[-1] = "keep"
    windows = {"offload": 2, "recompute": 1, "keep": 1}
    baseline = Forecast(peak_bytes=9 * SIZE, step_s=0.02, bytes_at=(SIZE,) * 2 * num_layers)
    return Plan(
        decisions={
            n: Decision(action=a, window_ops=windows[a])
            for n, a in zip(names, actions, strict=True)
        },
        values={
            n: PlannedValue(
                size_bytes=SIZE + i, label=label.format(i),
                source=f"/home/ada/nets/net.py:{40 + i}", primitive="dot_general",
                shape=(16, 1024), dtype="bfloat16",
            )
            for i, n in enumerate(names)
        },
        forecast=Forecast(
            peak_bytes=5 * SIZE, step_s=0.03, host_bytes=2 * SIZE, offload_bytes=2 * SIZE,
            recompute_s=0.004, stall_s=0.001, bytes_at=(SIZE,) * 2 * num_layers,
            baseline=baseline,
        ),
        budget_bytes=budget_bytes, device="rtx4090", planner="greedy", seed=3,
    )  # fmt: skip


FRONT = (
    FrontPoint(label="as written", size_bytes=9 * SIZE, step_s=0.02, kind="written"),
    FrontPoint(label="plan", size_bytes=7 * SIZE, step_s=0.024),
    FrontPoint(label="dots_saveable", size_bytes=8 * SIZE, step_s=0.03, kind="policy"),
    FrontPoint(label="this plan", size_bytes=5 * SIZE, step_s=0.03, kind="chosen"),
)
BATCHES = (
    BatchRow(batch_size=8, unplanned_per_s=100.0, planned_per_s=100.0, ideal_per_s=100.0),
    BatchRow(batch_size=16, planned_per_s=140.0, ideal_per_s=150.0, is_chosen=True),
    BatchRow(batch_size=32, planned_per_s=120.0, ideal_per_s=160.0),
)


def make_sample(num_layers=6, *, is_verified=True, title="a step", **settings):
    """A full report."""
    if is_verified:
        settings["before"] = verified_of(module_text(num_layers, is_planned=False))
        settings["after"] = verified_of(module_text(num_layers, is_planned=True))
    settings = {"fronts": FRONT, "batches": BATCHES} | settings
    settings.setdefault("plan", make_plan(num_layers))
    return Report.of(program=make_program(num_layers), title=title, **settings)
