"""FLOPs table: does the replay count what the model computes, and does its curve peak right?

    python -m benchmarks.flops_table

Compares the matrix FLOPs of the compiled schedule with the count derived from the model's sizes,
and the peak of the memory curve with XLA's buffer assignment, on an H100.
"""

import sys

from rich.console import Console
from rich.table import Table

from benchmarks.compiled import compile_workload
from benchmarks.models import build
from jaxswap.model.presets import find_device
from jaxswap.verify.hlo import parse_module
from jaxswap.verify.memory import memory_curve
from jaxswap.verify.replay import replay

DEVICE = "h100-sxm"
MODELS = {
    "gpt2-small": {},
    "resnet50": {"batch": 256},
    "vgg16": {"batch": 256, "dtype": "f32"},
    "lstm": {},
}
FLOPS_ALLOWED, PEAK_ALLOWED = 0.02, 0.05


def main() -> int:
    """Prints the table; 1 if a row is further off than allowed."""
    table = Table("model", "analytic TFLOP", "replayed TFLOP", "error", "XLA GB", "curve GB",
                  "error", box=None)  # fmt: skip
    is_good = True
    for model, settings in MODELS.items():
        compiled = compile_workload(model, settings, DEVICE)
        module = parse_module(compiled.hlo_text)
        counted = replay(module, find_device(DEVICE)).matrix_flops
        expected = build(model, **settings).analytic_flops
        peak_bytes = memory_curve(module).peak_bytes
        flops_error = counted / expected - 1
        peak_error = peak_bytes / compiled.device_bytes - 1
        is_good &= abs(flops_error) <= FLOPS_ALLOWED and abs(peak_error) <= PEAK_ALLOWED
        table.add_row(
            model, f"{expected / 1e12:.3f}", f"{counted / 1e12:.3f}", f"{flops_error:+.2%}",
            f"{compiled.device_bytes / 1e9:.2f}", f"{peak_bytes / 1e9:.2f}", f"{peak_error:+.2%}",
        )  # fmt: skip
    Console().print(table)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
