"""The command line: `jaxswap plan | batch | bench | verify | devices | calibrate | demo`.

Output for people goes to the terminal, `--json` to standard output for programs. Exit codes:
0 done, 1 the step does not fit, 2 the request was wrong, 130 interrupted.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from jaxswap._batch_commands import add_batch
from jaxswap._bench_commands import add_bench
from jaxswap._errors import BudgetInfeasibleError, JaxswapError
from jaxswap._plan_commands import add_demo, add_plan
from jaxswap._terminal import add_command, add_target, progress_bar, start_on_cpu_without_gpu
from jaxswap._units import format_bytes, format_seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except JaxswapError as error:
        print(f"jaxswap: {error}", file=sys.stderr)
        return 1 if isinstance(error, BudgetInfeasibleError) else 2
    except OSError as error:
        print(f"jaxswap: cannot write or read {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("jaxswap: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxswap",
        description="Fit a JAX training step on its GPU, and prove it with the GPU's compiler.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_plan(commands)
    add_batch(commands)
    add_bench(commands)
    _add_verify(commands)
    _add_devices(commands)
    _add_calibrate(commands)
    add_demo(commands)
    return parser


# ---- devices ---------------------------------------------------------------------------

_DEVICES_EXAMPLE = """\
  $ jaxswap devices rtx4090
  rtx4090  NVIDIA GeForce RTX 4090, 24 GB GDDR6X
    memory_bytes  23.64 GiB ..."""


def _add_devices(commands: Any) -> None:
    text = "list the known GPUs, or show one with the source of every figure"
    command = add_command(commands, "devices", _run_devices, text, _DEVICES_EXAMPLE)
    command.add_argument("name", nargs="?", help="show this one in full")
    command.add_argument("--json", action="store_true", help="print JSON; one, as a device file")


def _run_devices(arguments: argparse.Namespace) -> int:
    from jaxswap.model.device_json import device_to_json, dump_device
    from jaxswap.model.presets import devices, find_device

    chosen = [find_device(arguments.name)] if arguments.name else list(devices().values())
    if arguments.json and arguments.name:
        print(dump_device(chosen[0]), end="")
    elif arguments.json:
        print(json.dumps([device_to_json(device) for device in chosen], indent=2))
    elif arguments.name is None:
        _print_device_table(chosen)
    else:
        _print_device(chosen[0])
    return 0


def _print_device_table(chosen: Sequence[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    headings = ("name", "memory", "half dot", "f32 dot", "memory", "to host", "to device")
    units = ("", "GiB", "TFLOP/s", "TFLOP/s", "GB/s", "GB/s", "GB/s")
    for heading, unit in zip(headings, units, strict=True):
        side = "left" if heading == "name" else "right"
        table.add_column(f"{heading}\n{unit}", justify=side, no_wrap=True)
    for device in chosen:
        half = max(device.dot_flops_per_s("bf16"), device.dot_flops_per_s("f16"))
        table.add_row(
            device.name,
            f"{device.memory_bytes / 2**30:.1f}",
            f"{half / 1e12:.0f}",
            f"{device.dot_flops_per_s('f32') / 1e12:.0f}",
            f"{device.memory_bandwidth_bytes_per_s / 1e9:.0f}",
            f"{device.to_host.bandwidth_bytes_per_s / 1e9:.1f}",
            f"{device.to_device.bandwidth_bytes_per_s / 1e9:.1f}",
        )
    Console().print(table)


def _print_device(device: Any) -> None:
    from jaxswap.model.device_json import device_to_json

    facts = device_to_json(device)
    sources = facts.pop("sources", {})
    print(f"{device.name}  {device.description}")
    for name, value in facts.items():
        if name not in ("name", "description") and value not in (None, {}, []):
            print(f"  {name}: {json.dumps(value)}")
    print("sources:")
    for name, source in sources.items():
        print(f"  {name}: {source}")


# ---- verify ----------------------------------------------------------------------------

_VERIFY_EXAMPLE = """\
  $ jaxswap verify examples/gpt.py:step --device rtx4090 --set batch=16
  NVIDIA GeForce RTX 4090, 24 GB GDDR6X: 16.88 GiB of 23.64 GiB (compiled), fits
    ..."""


def _add_verify(commands: Any) -> None:
    text = "compile a step for a GPU, attached or not: its bytes, its peak, its replayed time"
    command = add_command(commands, "verify", _run_verify, text, _VERIFY_EXAMPLE)
    add_target(command)
    command.add_argument("--device", help="a name from `jaxswap devices`, or a JSON file")
    command.add_argument("--plan", metavar="FILE",
                         help="a plan from `jaxswap plan --save`, to be followed")  # fmt: skip
    command.add_argument("--hlo", metavar="FILE", help="write the scheduled module to FILE")
    command.add_argument("--json", action="store_true", help="print JSON")


def _run_verify(arguments: argparse.Namespace) -> int:
    from jaxswap._files import write_whole
    from jaxswap.plan.plan import Plan
    from jaxswap.report.paths import check_writable

    if arguments.hlo:
        check_writable(arguments.hlo)
    plan = Plan.load(arguments.plan) if arguments.plan else None
    start_on_cpu_without_gpu()
    from jaxswap._api import apply
    from jaxswap._load import load_target, parse_settings
    from jaxswap.verify.verify import verify

    with progress_bar(f"tracing {arguments.target}", is_quiet=arguments.json) as show:
        target = load_target(arguments.target, parse_settings(arguments.set))
        show(0, 0, f"compiling {arguments.target} for {arguments.device or 'the attached GPU'}")
        found = verify(
            apply(target.step, plan) if plan else target.step, *target.args,
            device=arguments.device, donate_argnums=target.donate_argnums,
            options=plan.compiler_options() if plan else None,
        )  # fmt: skip
    if arguments.hlo:
        write_whole(arguments.hlo, found.hlo_text)
    print(json.dumps(found.to_json(), indent=2) if arguments.json else _describe(found))
    return 0 if found.fits else 1


def _describe(found: Any) -> str:
    """The summary, and what is alive at the peak."""
    curve = found.memory
    lines = [str(found), "  largest temporaries at the peak"]
    for buffer in curve.alive_at(curve.peak_index)[:8]:
        source = found.source_of(buffer.name)
        lines.append(f"    {format_bytes(buffer.size_bytes):>12}  {buffer.op_name}  {source}")
    return "\n".join(lines)


# ---- calibrate -------------------------------------------------------------------------

_CALIBRATE_EXAMPLE = """\
  $ jaxswap calibrate --quick --out mine.json
  $ jaxswap verify train.py:step --device mine.json"""


def _add_calibrate(commands: Any) -> None:
    text = "measure the device that JAX runs on and write it as a device file"
    command = add_command(commands, "calibrate", _run_calibrate, text, _CALIBRATE_EXAMPLE)
    command.add_argument("--out", metavar="FILE", help="write the device to FILE (JSON)")
    command.add_argument("--quick", action="store_true", help="seconds, and rougher figures")


def _run_calibrate(arguments: argparse.Namespace) -> int:
    from jaxswap.report.paths import check_writable

    if arguments.out:
        check_writable(arguments.out)
    start_on_cpu_without_gpu()
    from jaxswap.model.device import Device

    with progress_bar("measuring") as show:
        device = Device.calibrate(progress=show, quick=arguments.quick)
    _print_device(device)
    print(f"launch overhead {format_seconds(device.launch_overhead_s)} (measured)")
    if arguments.out:
        device.save(arguments.out)
        print(f"wrote {arguments.out}")
    return 0
