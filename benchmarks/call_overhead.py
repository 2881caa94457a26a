"""Call overhead: what does a call of a decorated step cost over a call of `jax.jit`?

    python -m benchmarks.call_overhead

Both are called on signatures they know, with a state of 2, 20 and 200 arrays. The step does next
to nothing, so that a call is dispatch and little else; calls of the two alternate in batches, and
the least time of a batch counts, since noise only adds. The overhead is said as a share of a step
of 1 ms, the shortest worth planning.
"""

import time

import jax
import jax.numpy as jnp

from jaxswap import swap_offload
from jaxswap.apply.decision import Decision
from jaxswap.model.simulate import Forecast
from jaxswap.plan.plan import Plan, PlannedValue

STEP_S = 1e-3
CALLS, ROUNDS = 200, 50
PLAN = Plan(
    decisions={"0/0": Decision(action="recompute")},
    values={"0/0": PlannedValue(size_bytes=4)},
    forecast=Forecast(peak_bytes=1, step_s=STEP_S),
    budget_bytes=1,
    device="t4",
)


def step(state):
    first = state["0"]
    return state | {"0": first - jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.sin(w))))(first)}


def time_calls(run, state) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        out = run(state)
    jax.block_until_ready(out)
    return (time.perf_counter() - start) / CALLS


def main() -> None:
    """Prints microseconds per call, measured on this machine."""
    print(f"least of {ROUNDS} batches of {CALLS} calls each, {jax.default_backend()} backend")
    for size in (2, 20, 200):
        state = {str(k): jnp.float32(k) for k in range(size)}
        plain, swapped = jax.jit(step), swap_offload(step, plan=PLAN)
        for run in (plain, swapped):
            time_calls(run, state)
        pairs = [(time_calls(plain, state), time_calls(swapped, state)) for _ in range(ROUNDS)]
        plain_s, swapped_s = (min(times) for times in zip(*pairs, strict=True))
        share = (swapped_s - plain_s) / STEP_S
        print(
            f"{size:4d} arrays: jax.jit {plain_s * 1e6:6.1f} us, swap_offload "
            f"{swapped_s * 1e6:6.1f} us, overhead {share:+.2%} of a step of 1 ms"
        )


if __name__ == "__main__":
    main()
