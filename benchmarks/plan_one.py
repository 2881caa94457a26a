"""Plan one: what does a plan make of one workload, by the compiler's own figures?

    python -m benchmarks.plan_one gpt2-small --device rtx4090 --share 0.5 --planner greedy

Compiles the step as it is, plans it for a share of the bytes it needs, compiles the planned
step, and prints both: bytes compiled, times forecast and replayed.
"""

import argparse
import time

from benchmarks.models import build
from jaxswap import Device, Plan, Verified, plan, verify


def main() -> None:
    """Prints a row for the step as it is and one for the planned step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a name from benchmarks/models")
    parser.add_argument("--device", default="rtx4090")
    parser.add_argument("--share", type=float, default=0.5, help="of the unplanned bytes")
    parser.add_argument("--planner", default="genetic")
    parser.add_argument("--scan", action="store_true", help="the layers in a scan")
    arguments = parser.parse_args()
    workload = build(arguments.model, **({"scan": True} if arguments.scan else {}))
    device = Device.named(arguments.device)

    def compile_step(found: Plan | None = None) -> Verified:
        return verify(workload.step, *workload.args, device=device, plan=found,
                      donate_argnums=workload.donate_argnums)  # fmt: skip

    before = compile_step()
    _print_row("as it is", before)
    budget_bytes = int(arguments.share * before.device_bytes)
    start = time.perf_counter()
    found = plan(
        workload.step, *workload.args, budget=budget_bytes, device=device,
        planner=arguments.planner, donate_argnums=workload.donate_argnums,
    )  # fmt: skip
    planned_s = time.perf_counter() - start
    print(str(found).split("\n", 1)[0])
    forecast = found.forecast
    print(f"{'forecast':12} {forecast.peak_bytes / 1e9:6.2f} GB {1e3 * forecast.step_s:7.1f} ms")
    after = compile_step(found)
    _print_row("planned", after)
    print(f"budget {budget_bytes / 1e9:.2f} GB, planned and confirmed in {planned_s:.0f} s")


def _print_row(label: str, found: Verified) -> None:
    print(
        f"{label:12} {found.device_bytes / 1e9:6.2f} GB compiled, host "
        f"{found.host_bytes / 1e9:5.2f} GB, {1e3 * found.step_s:7.1f} ms replayed, of it "
        f"{1e3 * found.timeline.stall_s:.1f} ms stalls",
        flush=True,
    )


if __name__ == "__main__":
    main()
