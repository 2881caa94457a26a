"""Loops, by the GPU compiler: do copies from one iteration to the next run beside kernels?"""

import jax
import jax.numpy as jnp
import pytest

from jaxswap import verify
from jaxswap.apply import Decision, apply_decisions, name_values
from jaxswap.apply.overlap import overlap_options

pytestmark = pytest.mark.gpu_compile

LAYERS, BATCH, WIDTH = 3, 4096, 16384


def step(params, x):
    def loss(params):
        body = lambda c, w: (jnp.tanh(c @ w[0]) @ w[1], None)
        out, _ = jax.lax.scan(body, x, params)
        return jnp.mean(out.astype(jnp.float32) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - g, params, grads), value


SHAPE = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
ARGS = (SHAPE(LAYERS, 2, WIDTH, WIDTH), SHAPE(BATCH, WIDTH))


def compile_with(ahead):
    # The gradient of `tanh` is among the first things that an iteration computes.
    decision = Decision(action="offload", reload_ahead_ops=ahead)
    names = [v.name for v in name_values(step, *ARGS) if v.scope and v.primitive == "tanh"]
    applied = apply_decisions(step, dict.fromkeys(names, decision), default="keep")
    return verify(applied, *ARGS, device="h100-sxm", donate_argnums=0, options=overlap_options({}))


def test_an_iteration_reloads_for_the_next_beside_its_own_kernels():
    in_time, too_late = compile_with(2), compile_with(0)
    assert too_late.timeline.stall_s > 0.03 * too_late.timeline.step_s
    assert in_time.timeline.stall_s < 0.01 * in_time.timeline.step_s
    # One slice more (and some indices), and one reload whose result nothing reads.
    slice_bytes = BATCH * WIDTH * 2
    assert in_time.device_bytes <= too_late.device_bytes + slice_bytes + 2**12
    reloaded = in_time.timeline.to_device_bytes - too_late.timeline.to_device_bytes
    assert reloaded == slice_bytes


def test_a_body_may_have_as_many_copies_under_way_as_it_makes_values():
    """By default XLA has two, and waits for one of them to start a third."""

    def step(params, x):
        def body(c, w):
            for i in range(4):
                c = jnp.tanh(c @ w[i])
            return c, None

        loss = lambda params: jnp.mean(jax.lax.scan(body, x, params)[0] ** 2)
        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params))

    args = (SHAPE(8, 4, 2048, 2048), SHAPE(2048, 2048))
    decision = Decision(action="offload", window_ops=4, reload_ahead_ops=1)
    names = [v.name for v in name_values(step, *args) if v.scope and v.primitive == "tanh"]
    applied = apply_decisions(step, dict.fromkeys(names, decision), default="keep")
    compile_step = lambda options: verify(applied, *args, device="h100-sxm", options=options)
    assert count_under_way(compile_step(overlap_options({})).hlo_text) == 2
    assert count_under_way(compile_step(overlap_options({}, in_loops=True)).hlo_text) > 2


def count_under_way(hlo_text):
    """The most copies of slices that are under way at a time."""
    most = 0
    for body in hlo_text.split("\n}\n"):
        now = 0
        for line in body.splitlines():
            now += " = " in line and "slice-start" in line.split(" = ")[0]
            most = max(most, now)
            now -= " = " in line and "slice-done" in line.split(" = ")[0]
    return most
