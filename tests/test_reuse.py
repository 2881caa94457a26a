"""Reuse and scatters: which results take an operand's place, by hand and against the compiler."""

import jax
import jax.numpy as jnp
import pytest

from jaxswap.model.device import Device
from jaxswap.model.simulate import simulate
from jaxswap.model.timeline import build_timeline
from jaxswap.program.liveness import memory_curve
from jaxswap.program.trace import trace_program
from jaxswap.verify.target import compile_for

H100 = Device.named("h100-sxm")
WIDE = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
LONG = jax.ShapeDtypeStruct((4096, 1024), jnp.float32)
SIZE = 4096 * 1024 * 4


def reused(fn, *args) -> int:
    """The most bytes that any kernel of a function writes over an operand."""
    return max(op.reused_bytes for op in trace_program(fn, *args).ops)


def test_an_elementwise_kernel_writes_over_the_dot_it_reads_last():
    def fn(x, w):
        y = x @ w
        return (jnp.sin(y) + y) @ w

    assert reused(fn, LONG, WIDE) == SIZE


def test_an_operand_that_is_read_later_stays():
    def fn(x, w):
        y = x @ w
        return (jnp.sin(y) @ w) + y

    program = trace_program(fn, LONG, WIDE)
    assert all(op.reused_bytes == 0 for op in program.ops if op.name == "sin")


def test_a_transposing_kernel_needs_both():
    def fn(x, w):
        y = x @ w
        return w @ jnp.sin(y).T.reshape(1024, 4096)

    assert reused(fn, LONG, WIDE) == 0


def test_a_convolution_has_its_workspace_beside_it():
    def fn(x, k):
        conv = lambda v: jax.lax.conv(v, k, (1, 1), "SAME")
        return conv(jnp.sin(conv(x)))

    images = jax.ShapeDtypeStruct((8, 64, 64, 64), jnp.float32)
    kernel = jax.ShapeDtypeStruct((64, 64, 3, 3), jnp.float32)
    assert reused(fn, images, kernel) == 0


def test_two_reductions_of_a_result_keep_it_apart_and_one_does_not():
    def fn(x, w, how):
        y = jnp.tanh(x @ w) * 2.0
        return y @ w, *(reduce(y, axis=0) for reduce in how)

    one = trace_program(lambda x, w: fn(x, w, (jnp.sum,)), LONG, WIDE)
    two = trace_program(lambda x, w: fn(x, w, (jnp.sum, jnp.max)), LONG, WIDE)
    assert max(op.reused_bytes for op in one.ops) == SIZE
    assert max(op.reused_bytes for op in two.ops) == 0


def test_a_planned_step_writes_over_nothing():
    def loss(x, w):
        y = x @ w
        return jnp.sum(((jnp.sin(y) + y) @ w) ** 2)

    program = trace_program(jax.grad(loss, argnums=1), LONG, WIDE)
    timeline = build_timeline(program, H100)
    reuse = [op.reused_bytes for op in program.ops]
    assert max(reuse) == SIZE
    # What comes to a planned step's bytes if nothing is planned: no implicit values here.
    assert timeline.implicit_bytes.tolist() == [-each for each in reuse]
    assert simulate(program, {}, H100).bytes_at == memory_curve(program).bytes_at


def scattered(logits, labels):
    rows = jnp.take_along_axis(logits, labels[:, None], axis=1)
    return jnp.sum(jax.nn.logsumexp(logits, axis=1) - rows[:, 0])


LABELS = jax.ShapeDtypeStruct((4096,), jnp.int32)


def test_what_is_scattered_into_zeros_and_added_is_scattered_into_the_other():
    def step(x, w, labels):
        return jax.grad(lambda w: scattered(x @ w, labels))(w)

    program = trace_program(step, LONG, WIDE, LABELS).written
    (scatter,) = (op for op in program.ops if op.name.startswith("scatter") and op.reads)
    assert scatter.scratch_bytes == -SIZE
    zeros = [v for v in program.values if v.primitive == "broadcast_in_dim"]
    assert all(v.size_bytes < SIZE for v in zeros)


def test_what_is_scattered_into_ones_is_not():
    def fn(x, labels):
        ones = jnp.ones((4096, 1024)).at[labels].add(2.0)
        return (jnp.sin(x) + ones) @ x.T

    program = trace_program(fn, LONG, LABELS)
    assert any(v.primitive == "broadcast_in_dim" and v.size_bytes == SIZE for v in program.values)


@pytest.mark.gpu_compile
def test_the_compiler_needs_what_is_forecast():
    def step(x, w, labels):
        def loss(w):
            y = x @ w
            return scattered((jnp.sin(y) + y) @ w, labels)

        return jax.grad(loss)(w)

    # So many rows that what XLA needs for the weights' gradients, in parts, hardly counts.
    x = jax.ShapeDtypeStruct((32768, 1024), jnp.float32)
    labels = jax.ShapeDtypeStruct((32768,), jnp.int32)
    forecast = simulate(trace_program(step, x, WIDE, labels, device=H100), {}, H100)
    compiled = compile_for(step, (x, WIDE, labels), H100)
    assert forecast.peak_bytes == pytest.approx(compiled.device_bytes, rel=0.05)
