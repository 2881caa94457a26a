"""Trace: from a step to its program, on steps small enough to know by heart."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from jaxswap.apply.step import name_values
from jaxswap.model.presets import find_device
from jaxswap.model.simulate import simulate
from jaxswap.program.liveness import memory_curve
from jaxswap.program.text import format_program
from jaxswap.program.trace import trace_program
from jaxswap.verify.target import compile_for

WIDTH, ROWS, LAYERS = 512, 2048, 4


def shaped(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def loss(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.sum(x * x)


def scanned_loss(weights, x):
    return jnp.sum(jax.lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, weights)[0] ** 2)


def step(weights, x, fn=loss):
    grads = jax.grad(fn)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)


UNROLLED = ([shaped(WIDTH, WIDTH)] * LAYERS, shaped(ROWS, WIDTH))
STACKED = (shaped(LAYERS, WIDTH, WIDTH), shaped(ROWS, WIDTH))


def names(program, phase):
    return [op.name for op in program.ops if op.phase == phase]


def test_phases_follow_the_turn():
    program = trace_program(step, *UNROLLED)
    assert names(program, "forward").count("dot_general") == LAYERS
    # Each layer has the gradients of its weights and its input, but for the first's input.
    assert names(program, "backward").count("dot_general") == 2 * LAYERS - 1
    assert "dot_general" not in names(program, "update")
    order = [op.phase for op in program.ops if op.is_heavy]
    assert order == sorted(order, key=["forward", "backward", "update"].index)


def test_a_gradient_taken_where_another_has_led_to_has_a_forward_pass_too():
    """As in sharpness-aware minimisation: the second forward pass depends on the first gradient."""

    def ascend(w, x):
        up = jax.tree.map(lambda w, g: w + 0.1 * g, w, jax.grad(loss)(w, x))
        return jax.grad(loss)(up, x)

    once = trace_program(jax.grad(loss), *UNROLLED)
    twice = trace_program(ascend, *UNROLLED)
    for phase in ("forward", "backward"):
        count = names(once, phase).count("dot_general")
        assert names(twice, phase).count("dot_general") == 2 * count
    functions = [name.split("/")[0] for name in twice.candidate_names]
    assert functions.count("0") == functions.count("1") == len(once.candidates)


def test_a_step_without_a_gradient_is_all_update_and_has_nothing_to_decide():
    program = trace_program(lambda x: jnp.sum(jnp.tanh(x @ x)), shaped(WIDTH, WIDTH))
    assert {op.phase for op in program.ops} == {"update"}
    assert program.candidates == ()


def test_names_are_those_of_apply():
    program = trace_program(step, *UNROLLED)
    known = {v.name for v in name_values(step, *UNROLLED)}
    assert program.candidates
    assert set(program.candidate_names) <= known


def test_values_and_ops_point_at_each_other():
    program = trace_program(lambda w, x: step(w, x, scanned_loss), *STACKED)
    assert len({v.name for v in program.values}) == len(program.values)
    for position, op in enumerate(program.ops):
        for v in op.writes:
            assert program.values[v].producer == position
        for v in op.reads:
            assert position in program.values[v].readers
    for loop in program.loops:
        inside = range(loop.first_op, loop.last_op + 1)
        assert all(program.ops[i].loop is not None for i in inside)


def test_a_loop_stands_once_and_stacks_what_its_backward_pass_reads():
    program = trace_program(lambda w, x: step(w, x, scanned_loss), *STACKED)
    assert [loop.trips for loop in program.loops] == [LAYERS, LAYERS]
    dots = [op for op in program.ops if op.name == "dot_general"]
    assert [op.trips for op in dots] == [LAYERS] * 3
    stacked = [program.values[c.value] for c in program.candidates]
    assert stacked
    assert all(v.is_stacked and v.trips == LAYERS for v in stacked)
    peak = memory_curve(program).peak_bytes
    # At least the carry and its tanh of every trip, at most a few more.
    one = LAYERS * ROWS * WIDTH * 4
    assert 2 * one <= peak - program.base_bytes <= 5 * one


def test_a_checkpoint_region_is_computed_twice():
    def checkpointed(weights, x):
        for w in weights:
            x = jax.checkpoint(lambda y, w=w: jnp.tanh(y @ w) @ w)(x)
        return jnp.sum(x)

    program = trace_program(lambda w, x: step(w, x, checkpointed), *UNROLLED)
    # Nothing reads what the last region returns: its gradient is that of a sum.
    assert names(program, "forward").count("dot_general") == 2 * (LAYERS - 1)
    gradients = 2 * (2 * LAYERS) - 1
    assert names(program, "backward").count("dot_general") == gradients + LAYERS


def test_equal_equations_are_one_and_swapped_operands_are_not():
    def fn(x, y):
        return jnp.tanh(x - y) @ jnp.tanh(x - y), jnp.tanh(y - x) @ jnp.tanh(1.0 - x), x - 1.0

    program = trace_program(fn, shaped(WIDTH, WIDTH), shaped(WIDTH, WIDTH))
    assert sum(v.primitive == "tanh" for v in program.values) == 3


def test_base_bytes_are_arguments_and_outputs_without_what_is_donated():
    weights = LAYERS * WIDTH * WIDTH * 4
    x = ROWS * WIDTH * 4
    assert trace_program(step, *UNROLLED).base_bytes == 2 * weights + x
    assert trace_program(step, *UNROLLED, donate_argnums=0).base_bytes == weights + x
    assert trace_program(step, *UNROLLED, donate_argnums=(0, 1)).base_bytes == weights + x


def test_an_elementwise_chain_of_the_forward_pass_takes_no_memory():
    def smooth(w, x):
        y = x @ w
        for _ in range(20):
            y = y * jax.nn.sigmoid(y)
        return jnp.sum(y)

    program = trace_program(jax.grad(smooth), shaped(WIDTH, WIDTH), shaped(ROWS, WIDTH))
    peak = memory_curve(program).peak_bytes - program.base_bytes
    assert peak < 12 * ROWS * WIDTH * 4  # 20 layers of three values each would be 60


def test_branches_and_open_loops_are_one_op_each():
    def fn(w, x):
        y = jax.lax.cond(x[0, 0] > 0, lambda v: v @ w, lambda v: v, x)
        z = jax.lax.while_loop(lambda v: v[0, 0] > 1, lambda v: v @ v.T @ v, x)
        return jnp.sum(y * jax.lax.stop_gradient(z))

    program = trace_program(jax.grad(fn), shaped(WIDTH, WIDTH), shaped(ROWS, WIDTH))
    forward = names(program, "forward")
    assert "cond" in forward
    assert "while" in forward


def test_keys_and_static_arguments_pass():
    def noisy(w, key, *, rate):
        mask = jax.random.bernoulli(key, rate, w.shape)
        return jnp.sum(jnp.where(mask, w @ w, 0.0))

    key = jax.eval_shape(lambda: jax.random.key(0))
    program = trace_program(jax.grad(noisy), shaped(WIDTH, WIDTH), key, rate=0.5)
    assert any(op.is_heavy for op in program.ops)


def test_equal_steps_have_equal_fingerprints_and_others_do_not():
    first, second = trace_program(step, *UNROLLED), trace_program(step, *UNROLLED)
    other = trace_program(step, UNROLLED[0], shaped(2 * ROWS, WIDTH))
    assert first == second
    assert first.fingerprint != other.fingerprint


def test_text_has_a_line_per_op_candidate_and_refusal():
    program = trace_program(step, *UNROLLED)
    text = format_program(program)
    expected = 1 + len(program.ops) + len(program.candidates) + len(program.refused)
    assert len(text.splitlines()) == expected
    assert "!dot_general(" in text
    assert "/home" not in text
    moved = tuple(dataclasses.replace(op, source="elsewhere.py:1") for op in program.ops)
    assert format_program(dataclasses.replace(program, ops=moved)) == text


def test_user_names_are_kept():
    def named(w, x):
        y = checkpoint_name(x @ w, "hidden")
        return jnp.sum(jnp.tanh(y) @ w)

    program = trace_program(jax.grad(named), shaped(WIDTH, WIDTH), shaped(ROWS, WIDTH))
    assert "hidden" in {v.user_name for v in program.values}


def attention_loss(weights, x):
    for w in weights:
        y = x @ w
        x = x + jax.nn.softmax(y @ x.T / WIDTH**0.5) @ y
    return jnp.mean(x * x)


@pytest.mark.gpu_compile
@pytest.mark.parametrize(
    ("fn", "args"),
    [(attention_loss, UNROLLED), (scanned_loss, STACKED)],
    ids=["attention", "scan"],
)
def test_the_forecast_peak_is_near_the_compilers(fn, args):
    device = find_device("h100-sxm")
    run = lambda w, x: step(w, x, fn)
    forecast = simulate(trace_program(run, *args, donate_argnums=0), {}, device)
    compiled = compile_for(run, args, device, donate_argnums=(0,))
    assert forecast.peak_bytes == pytest.approx(compiled.device_bytes, rel=0.15)


def test_a_sum_over_one_element_makes_nothing():
    def step(x):
        return jnp.tanh(x) + jnp.sum(jnp.exp(x), axis=1, keepdims=True).sum(axis=1)[:, None]

    program = trace_program(step, jax.ShapeDtypeStruct((4096, 1024), jnp.float32))
    kinds = [op.name for op in program.ops]
    assert len([v for v in program.values if v.shape == (4096,)]) <= 1, kinds


@pytest.mark.parametrize(
    ("rows", "dtype", "device", "padded_bytes"),
    [
        (256, jnp.float16, "t4", 0),
        (250, jnp.float16, "t4", 2 * (250 + 256) * 512),
        (250, jnp.bfloat16, "t4", 0),
        (250, jnp.float32, "t4", 0),
        (250, jnp.float16, "h100-sxm", 0),  # XLA writes the dot itself
    ],
)
def test_dots_in_f16_are_padded_to_multiples_of_eight_on_old_gpus(
    rows, dtype, device, padded_bytes
):
    dot = lambda x, w: x @ w
    args = shaped(rows, 512, dtype=dtype), shaped(512, 512, dtype=dtype)
    (op,) = trace_program(dot, *args, device=find_device(device)).ops
    edge = (2 * rows * 512 + 512 * 512) * jnp.dtype(dtype).itemsize
    assert op.cost.size_bytes == edge + padded_bytes


@pytest.mark.parametrize(("levels", "kernels"), [(3, 1), (4, 2), (5, 2)])
def test_code_that_branches_and_is_written_out_twice_does_not_grow_without_end(levels, kernels):
    """Each level reads the one before as it is and shifted: 1, 3, 7, 15 branches; XLA takes 10.

    As many kernels as XLA:GPU of jaxlib 0.10.2 makes for an RTX 4090.
    """

    def shift_and_add(x):
        for _ in range(levels):
            x = jax.lax.pad(x[1:], 0.0, ((0, 1, 0), (0, 0, 0))) + x
        return x

    program = trace_program(shift_and_add, shaped(4096, 1024), device=find_device("rtx4090"))
    assert len(program.ops) == kernels


@pytest.mark.parametrize("shapes", [((1, 500), (500, 510)), ((510, 500), (500, 1))])
def test_a_product_with_a_vector_pads_neither(shapes):
    args = [shaped(*shape, dtype=jnp.float16) for shape in shapes]
    (op,) = trace_program(lambda x, w: x @ w, *args, device=find_device("t4")).ops
    assert op.cost.size_bytes == 2 * (500 + 500 * 510 + 510)


def test_what_two_dots_read_is_padded_once():
    x, w = shaped(250, 512, dtype=jnp.float16), shaped(512, 512, dtype=jnp.float16)
    both = lambda x, w, u: (x @ w, x @ u)
    first, second = trace_program(both, x, w, w, device=find_device("t4")).ops
    assert first.cost.size_bytes - second.cost.size_bytes == 2 * (250 + 256) * 512


@pytest.mark.parametrize(("is_scanned", "is_lean"), [(True, True), (False, False)])
def test_of_a_step_whose_loops_stack_values_the_lean_one_is_known(is_scanned, is_lean):
    def loss(ws, x):
        body = lambda c, w: (jnp.tanh(c @ w), None)
        if is_scanned:
            return jnp.sum(jax.lax.scan(body, x, ws)[0])
        for w in ws:
            x, _ = body(x, w)
        return jnp.sum(x)

    shape = lambda *dims: jax.ShapeDtypeStruct(dims, jnp.float32)
    program = trace_program(jax.grad(loss), shape(4, 512, 512), shape(2048, 512))
    assert bool(program.lean) == is_lean
    dots = sum(trips for cost, trips in program.lean if cost.matrix_flops)
    # In each of four trips: forward, again, and one for each gradient.
    assert dots == (16 if is_lean else 0)


def test_a_call_of_python_without_a_result_is_in_nobodys_way():
    def loss(ws, x):
        def body(c, w):
            h = jnp.tanh(c @ w)
            jax.debug.callback(lambda shown: None, h)
            return h, None

        return jnp.sum(jax.lax.scan(body, x, ws)[0])

    program = trace_program(jax.grad(loss), shaped(4, 512, 512), shaped(2048, 512))
    assert program.candidates
