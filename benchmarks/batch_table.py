"""Batch table: how much throughput does the chosen batch size gain over the largest that fits?

    python -m benchmarks.batch_table [--models resnet50] [--devices rtx4090] [--planner exact]

The table of pommDNN's kind: per model and device, samples per second at the largest batch that
fits as it is written, and at the chosen one, planned; both compiled and replayed, not measured.
Cards without bf16 train in f16.
"""

import argparse
import time

from benchmarks.models import build
from jaxswap import BatchChoice, Device, choose_batch_size

MODELS = "gpt2-small,resnet50,resnet152,vgg16,vit-b16,bert-base"
DEVICES = "rtx2080ti,v100-16gb,rtx4090,a100-40gb"


def main() -> None:
    """Prints a line per model and device as it is found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--devices", default=DEVICES)
    parser.add_argument("--planner", default="exact")
    parser.add_argument("--full", action="store_true", help="print every size looked at")
    arguments = parser.parse_args()
    headings = ("model", "device", "largest that fits", "samples/s", "chosen", "samples/s")
    print("| " + " | ".join((*headings, "gain", "found in")) + " |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for model in arguments.models.split(","):
        for device in arguments.devices.split(","):
            _measure(model, device, arguments)


def _measure(model: str, name: str, arguments: argparse.Namespace) -> None:
    device = Device.named(name)
    has_bf16 = device.compute_capability >= (8, 0)
    settings = {} if has_bf16 else {"dtype": "f16"}
    workload = build(model, **settings)
    start_s = time.perf_counter()
    choice = choose_batch_size(
        workload.step, lambda size: build(model, batch=size, **settings).args, device=device,
        planner=arguments.planner, donate_argnums=workload.donate_argnums,
    )  # fmt: skip
    spent_s = time.perf_counter() - start_s
    print(f"| {model} | {name} | {_row(choice)} | {spent_s:.0f} s |", flush=True)
    if arguments.full:
        print(choice, flush=True)


def _row(choice: BatchChoice) -> str:
    chosen = next(row for row in choice.table if row.batch_size == choice.batch_size)
    rate = chosen.replayed or 0.0
    compiled = [row for row in choice.table if row.fits and row.replayed]
    if not compiled:
        return f"none compiled | | {choice.batch_size} | {rate:.1f} | "
    before = max(compiled, key=lambda row: row.batch_size)
    gain = rate / before.replayed - 1
    return (f"{before.batch_size} | {before.replayed:.1f} | {choice.batch_size} | {rate:.1f} | "
            f"{gain:+.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
