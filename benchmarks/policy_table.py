"""Policy table: are JAX's policies, as a report forecasts them, what XLA makes of them?

    python -m benchmarks.policy_table

Prints, for the demo's step with `jax.checkpoint` and a policy around its loss, what the report of
the plain step forecasts for that policy, and what the compiled step takes (bytes) and replays to.
"""

import argparse
from functools import partial
from typing import Any
from unittest import mock

import jax

from jaxswap import demo, verify
from jaxswap._units import format_bytes, format_seconds
from jaxswap.model.device import Device
from jaxswap.model.simulate import simulate
from jaxswap.model.timeline import build_timeline
from jaxswap.program.trace import trace_program
from jaxswap.report.policies import POLICIES, forecast_policies


def main() -> None:
    """Prints a row per policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="rtx3090")
    parser.add_argument("--layers", type=int, default=2)
    arguments = parser.parse_args()
    device = Device.named(arguments.device)
    step, args, donated = demo.step(layers=arguments.layers)
    program = trace_program(step, *args, donate_argnums=donated)
    written = simulate(program, {}, device)
    points = forecast_policies(program, build_timeline(program, device))
    print("| | forecast, at best | compiled, replayed |\n| --- | --- | --- |")
    _print_row("as written", written.peak_bytes, written.step_s, None, arguments.layers, device)
    for policy, point in zip(POLICIES, points, strict=True):
        found = getattr(jax.checkpoint_policies, policy.name)
        if policy.action == "offload":
            found = found("device", "pinned_host")
        label = f"`{policy.name}`"
        _print_row(label, point.size_bytes, point.step_s, found, arguments.layers, device)


def _print_row(
    label: str, size_bytes: int, step_s: float, policy: Any, layers: int, device: Device
) -> None:
    loss = demo._loss

    def checkpointed(heads: int, params: Any, tokens: jax.Array) -> jax.Array:
        whole = partial(loss, heads)
        return (jax.checkpoint(whole, policy=policy) if policy else whole)(params, tokens)

    with mock.patch.object(demo, "_loss", checkpointed):
        step, args, donated = demo.step(layers=layers)
        found = verify(step, *args, device=device, donate_argnums=donated)
    forecast = f"{format_bytes(size_bytes)}, {format_seconds(step_s)}"
    compiled = f"{format_bytes(found.device_bytes)}, {format_seconds(found.timeline.step_s)}"
    print(f"| {label} | {forecast} | {compiled} |", flush=True)


if __name__ == "__main__":
    main()
