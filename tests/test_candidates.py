"""Candidates: what can be decided about, and that `apply` understands the decisions."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.models import build
from jaxswap.apply.decision import Decision
from jaxswap.apply.step import apply_decisions, name_values, rewrite_step
from jaxswap.model.device import Device
from jaxswap.program.repeats import number_repeats
from jaxswap.program.trace import trace_program

WIDTH, ROWS, LAYERS = 256, 4096, 5


def shaped(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def normalise(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)


def block(x, w):
    hidden = jax.nn.gelu(normalise(x) @ w["up"])
    return x + hidden @ w["down"]


def loss(weights, x):
    for w in weights:
        x = block(x, w)
    return jnp.mean(normalise(x) ** 2)


def scanned_loss(weights, x):
    return jnp.mean(jax.lax.scan(lambda y, w: (block(y, w), None), x, weights)[0] ** 2)


def layer(*stack):
    return {"up": shaped(*stack, WIDTH, 4 * WIDTH), "down": shaped(*stack, 4 * WIDTH, WIDTH)}


UNROLLED = ([layer() for _ in range(LAYERS)], shaped(ROWS, WIDTH))
STACKED = (layer(LAYERS), shaped(ROWS, WIDTH))
STEPS = {"unrolled": (jax.grad(loss), UNROLLED), "scan": (jax.grad(scanned_loss), STACKED)}


@pytest.fixture(scope="module", params=STEPS)
def traced(request):
    fn, args = STEPS[request.param]
    return fn, args, trace_program(fn, *args)


def test_candidates_are_made_forward_and_read_backward(traced):
    _, _, program = traced
    assert program.candidates
    for candidate in program.candidates:
        value = program.values[candidate.value]
        assert program.ops[value.producer].phase == "forward"
        backward = [r for r in value.readers if program.ops[r].phase == "backward"]
        assert (candidate.first_backward, candidate.last_backward) == (backward[0], backward[-1])
        assert value.producer <= candidate.last_forward < candidate.first_backward
        assert not value.is_argument
        assert not value.is_output


def test_every_offload_reaches_its_value(traced):
    fn, args, program = traced
    can = [program.values[c.value].name for c in program.candidates if c.can_offload]
    applied = rewrite_step(fn, {name: Decision(action="offload") for name in can}, args)
    assert set(can) == set(applied.offloaded) | applied.demoted.keys()
    assert len(applied.offloaded) >= len(can) / 2


def test_deciding_about_candidates_leaves_the_numbers_alone(traced):
    fn, args, program = traced
    key = iter(jax.random.split(jax.random.key(0), 100))
    real = jax.tree.map(lambda s: 0.1 * jax.random.normal(next(key), s.shape), args)
    actions = ["keep", "recompute"]
    decisions = {
        name: Decision(action=actions[k % 2]) for k, name in enumerate(program.candidate_names)
    }
    expected = jax.jit(fn)(*real)
    actual = jax.jit(apply_decisions(fn, decisions))(*real)
    for left, right in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        assert jnp.allclose(left, right, rtol=1e-4, atol=1e-6)


def test_recomputation_starts_from_earlier_candidates(traced):
    _, _, program = traced
    for position, candidate in enumerate(program.candidates):
        assert all(parent < position for parent in candidate.parents)
        if candidate.recompute is not None:
            assert candidate.recompute
            assert candidate.recompute_bytes >= 0
            assert len(candidate.recompute_ops) == len(candidate.recompute)
            assert all(program.ops[op].phase == "forward" for op in candidate.recompute_ops)
        else:
            assert candidate.parents == ()


def test_a_recomputed_dot_costs_a_dot():
    _, args = STEPS["unrolled"]
    program = trace_program(STEPS["unrolled"][0], *args)
    by_primitive = {}
    for candidate in program.candidates:
        value = program.values[candidate.value]
        by_primitive.setdefault((value.primitive, value.shape), candidate)
    dot = by_primitive["dot_general", (ROWS, 4 * WIDTH)]
    assert sum(k.matrix_flops for k in dot.recompute) == 2 * ROWS * WIDTH * 4 * WIDTH
    assert dot.recompute_bytes < ROWS * WIDTH * 4


def test_what_a_loop_starts_from_can_be_offloaded_but_not_made_again():
    fn = lambda w, x: jnp.sum(jax.lax.scan(lambda y, v: (jnp.tanh(y @ v), None), x, w)[0])
    program = trace_program(jax.grad(fn), shaped(4, 512, 512), shaped(ROWS, 512))
    carried = [c for c in program.candidates if program.values[c.value].name.endswith(".body/in0")]
    assert len(carried) == 1
    assert carried[0].can_offload
    assert carried[0].recompute is None


def test_equal_blocks_share_numbers():
    # Of sums along the blocks, XLA keeps one in two, and the blocks would differ.
    def loss_of_chain(weights, x):
        for w in weights:
            x = jax.nn.gelu(x @ w["up"]) @ w["down"]
        return jnp.mean(x**2)

    program = trace_program(jax.grad(loss_of_chain), *UNROLLED)
    wide = [
        c.repeat for c in program.candidates
        if program.values[c.value].primitive == "dot_general"
        and program.values[c.value].shape == (ROWS, 4 * WIDTH)
    ]  # fmt: skip
    assert len(wide) == LAYERS
    assert len(set(wide[1:-1])) == 1


def test_refusals_say_why():
    def fn(w, x):
        y = jnp.tanh(x @ w)
        return jnp.sum(y @ w), y

    step = lambda w, x: jax.grad(fn, has_aux=True)(w, x)
    program = trace_program(step, shaped(1024, 1024), shaped(ROWS, 1024))
    reasons = set(program.refused.values())
    assert "an argument, whose memory is the caller's" in reasons
    assert "a result of the step" in reasons

    small = trace_program(jax.grad(lambda w: jnp.sum(jnp.tanh(w @ w) @ w)), shaped(8, 8))
    assert not small.candidates
    assert any(r.startswith("too small to matter: below") for r in small.refused.values())


def test_sums_of_a_softmax_are_made_again_with_their_rows():
    """To keep them would cost the forward pass a kernel of its own; those of norms are kept."""
    workload = build("gpt2-small", layers=2)
    shapes = {v.name: v.shape for v in name_values(workload.step, *workload.args)}
    h100 = Device.named("h100-sxm")
    program = trace_program(workload.step, *workload.args, donate_argnums=0, device=h100)
    again = "made again with the larger values that it sums up"
    made_again = {shapes[name] for name, why in program.refused.items() if why == again}
    assert made_again == {(16, 12, 1024)}
    kept = {shapes[name] for name in program.kept_names}
    assert (16, 1024) in kept
    assert (16, 12, 1024) not in kept


def test_sums_of_a_softmax_are_kept_where_its_steps_are_kernels_of_their_own():
    """Before 8.0 XLA has no kernel for whole rows: to make the sums again takes two more."""
    workload = build("gpt2-small", layers=2, dtype="f16")
    shapes = {v.name: v.shape for v in name_values(workload.step, *workload.args)}
    turing = Device.named("rtx2080ti")
    program = trace_program(workload.step, *workload.args, donate_argnums=0, device=turing)
    assert (16, 12, 1024) in {shapes[name] for name in program.kept_names}
    assert "made again with the larger values that it sums up" not in program.refused.values()


def test_a_value_wanted_again_at_once_is_refused():
    fn = lambda w, x: jnp.sum(jax.nn.gelu(x @ w))
    program = trace_program(jax.grad(fn), shaped(1024, 1024), shaped(ROWS, 1024))
    assert any(r.startswith("read again at once") for r in program.refused.values())


def test_a_value_without_a_name_follows_one_that_has_one():
    fn = lambda w, x: jnp.sum(jax.lax.scan(
        lambda y, v: (jnp.sin(y @ v), None), x, w)[0])  # fmt: skip
    program = trace_program(jax.grad(fn), shaped(4, 512, 512), shaped(ROWS, 512))
    # The derivative of a sine is a cosine, which no line of the step computes.
    known = set(program.candidate_names)
    assert known
    assert all("%" not in name for name in known)


@pytest.mark.parametrize(
    ("keys", "numbers"),
    [
        ("", []),
        ("abc", [0, 1, 2]),
        ("aaa", [0, 0, 0]),
        ("xabababy", [0, 1, 2, 1, 2, 1, 2, 3]),
        ("abcabcab", [0, 1, 2, 0, 1, 2, 3, 4]),
        ("aabaab", [0, 1, 2, 0, 1, 2]),
    ],
)
def test_repeats(keys, numbers):
    assert number_repeats(list(keys)) == numbers
