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
