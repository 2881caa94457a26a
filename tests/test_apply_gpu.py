"""Memory: what the GPU compiler makes of an applied step, with no GPU needed."""

import re

import jax
import jax.numpy as jnp
import pytest

from jaxswap.apply import Decision, apply_decisions, name_values
from jaxswap.model.presets import find_device
from jaxswap.verify import target

pytestmark = pytest.mark.gpu_compile

OFFLOAD = Decision(action="offload")
LAYERS, BATCH, WIDTH = 8, 4096, 512


def block(x, w):
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


def make_step(is_scanned: bool):
    def loss(params, x):
        if is_scanned:
            x, _ = jax.lax.scan(lambda c, w: (block(c, w), None), x, params)
        else:
            for i in range(LAYERS):
                x = block(x, jax.tree.map(lambda p, i=i: p[i], params))
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def step(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - g, params, grads), value

    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.bfloat16)
    params = {"up": shape(LAYERS, WIDTH, 4 * WIDTH), "down": shape(LAYERS, 4 * WIDTH, WIDTH)}
    return step, (params, shape(BATCH, WIDTH))


def compile_step(step, args):
    return target.compile_for(step, args, find_device("h100-sxm"), donate_argnums=(0,))


@pytest.mark.parametrize("is_scanned", [False, True], ids=["unrolled", "scanned"])
def test_offloads_leave_the_device(is_scanned):
    step, args = make_step(is_scanned)
    before = compile_step(step, args)
    decisions = {
        v.name: OFFLOAD
        for v in name_values(step, *args)
        if v.size_bytes >= BATCH * WIDTH and v.primitive in ("dot_general", "input", "add")
        and not (v.primitive == "input" and not v.scope)
    }  # fmt: skip
    after = compile_step(apply_decisions(step, decisions), args)
    assert after.temp_bytes < 0.5 * before.temp_bytes
    assert after.host_bytes >= LAYERS * BATCH * WIDTH * 2
    assert "S(5)" in after.hlo_text
    assert before.host_bytes == 0


def test_no_slice_of_host_memory_is_read_from_the_wrong_end():
    """openxla/xla #46231: the compiler must not work out where a reversed slice starts."""
    step, args = make_step(True)
    decisions = {v.name: OFFLOAD for v in name_values(step, *args) if v.scope}
    text = compile_step(apply_decisions(step, decisions), args).hlo_text
    stacked = rf"\[{LAYERS},{BATCH}(,\d+)*\]"
    reads = [
        line
        for line in text.splitlines()
        if " dynamic-slice(" in line and re.search(rf"\[1,{BATCH}(,\d+)*\]", line)
    ]
    assert re.search(stacked + r"\{[^}]*S\(5\)\}", text)
    assert reads
    assert not [line for line in reads if "dynamic_slice_config" in line]


def test_kept_and_offloaded_stacks_of_one_shape_compile():
    """openxla/xla #20373: stacks of the same shape, some on the device and some on the host."""
    step, args = make_step(True)
    values = [v for v in name_values(step, *args) if v.scope and v.size_bytes >= BATCH * WIDTH]
    wide = [v for v in values if v.shape == (BATCH, 4 * WIDTH)]
    decisions = {v.name: OFFLOAD if i % 2 else Decision(action="keep") for i, v in enumerate(wide)}
    assert compile_step(apply_decisions(step, decisions), args).host_bytes > 0
