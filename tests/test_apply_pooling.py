"""Pooling: its gradient, place by place, against JAX's own, bit by bit."""

import functools

import hypothesis as hp
import hypothesis.strategies as hps
import jax
import jax.numpy as jnp
import numpy as np
import op_by_op
import pytest
from flax import linen

from jaxswap.apply import apply_decisions, jaxprs
from jaxswap.apply.decision import Decision
from jaxswap.apply.jaxprs import jx
from jaxswap.apply.unscatter import unscatter
from jaxswap.model.presets import find_device
from jaxswap.verify import target

RNG = np.random.default_rng(0)
OWN = jx.primitives.select_and_scatter_add_p
# Windows, strides, paddings, and the shape of what is pooled.
POOLINGS = {
    "1d": ((3,), (3,), "VALID", (9,)),
    "1d-overlapping": ((3,), (1,), "SAME", (8,)),
    "1d-left-over": ((3,), (3,), "VALID", (11,)),
    "2d": ((2, 2), (2, 2), "VALID", (4, 6)),
    "2d-overlapping": ((3, 3), (2, 2), "SAME", (7, 8)),
    "2d-unequal": ((3, 2), (1, 2), [(2, 0), (0, 1)], (5, 6)),
    "2d-gaps": ((2, 1), (3, 4), [(1, 0), (0, 2)], (8, 9)),
    "2d-padding-only": ((2, 2), (1, 1), [(3, 0), (0, 4)], (3, 2)),
    "3d": ((2, 3, 2), (1, 2, 3), "SAME", (4, 5, 6)),
    "3d-overlapping": ((2, 2, 3), (1, 1, 1), "VALID", (3, 4, 5)),
}


def pool(x, window, strides, padding, *, is_max=True):
    start, reduce = (-np.inf, jax.lax.max) if is_max else (np.inf, jax.lax.min)
    return jax.lax.reduce_window(x, np.array(start, x.dtype), reduce, window, strides, padding)


def pull_back(fn):
    """A function of an operand and a gradient of the result: that of the operand."""
    return lambda x, gradient: jax.vjp(fn, x)[1](gradient)[0]


def draw(shape, dtype=jnp.float32, change=lambda x: x):
    return jnp.asarray(change(RNG.standard_normal(shape)), dtype)


def draw_for(fn, shape, dtype=jnp.float32, change=lambda x: x):
    """An operand, and a gradient of what it is pooled to."""
    x = draw(shape, dtype, change)
    return x, draw(jax.eval_shape(fn, x).shape, dtype)


def is_own(eqn):
    return eqn.primitive is OWN


def as_function(closed):
    return lambda *args: jx.eval_jaxpr(closed.jaxpr, closed.consts, *args)[0]


def assert_same_bits(expected, found):
    """Signs of zeros too, of which no test asks more than XLA keeps: no gradient is -0."""
    expected, found = np.asarray(expected), np.asarray(found)
    assert (expected.dtype, expected.shape) == (found.dtype, found.shape)
    bits = f"u{expected.dtype.itemsize}"
    np.testing.assert_array_equal(expected.view(bits), found.view(bits))


def rewrite(fn, *args):
    """A pooling's gradient as written, and rewritten."""
    written = jax.make_jaxpr(fn)(*args)
    assert jaxprs.any_equation(written.jaxpr, is_own)
    rewritten = unscatter(written)
    jx.check_jaxpr(rewritten.jaxpr)
    assert not jaxprs.any_equation(rewritten.jaxpr, is_own)
    return written, rewritten


def check(fn, x, gradient):
    written, rewritten = rewrite(pull_back(fn), x, gradient)
    expected = jax.jit(as_function(written))(x, gradient)
    assert_same_bits(expected, jax.jit(as_function(rewritten))(x, gradient))
    return expected


def sprinkle(value, share):
    """Some elements replaced."""

    def change(x):
        x = np.round(x)
        x[RNG.random(x.shape) < share] = value
        return x

    return change


CHANGES = {
    "distinct": lambda x: x,
    "ties": np.round,
    "equal": np.zeros_like,
    "nans": sprinkle(np.nan, 0.3),
    "lowest": sprinkle(-np.inf, 0.8),
    "highest": sprinkle(np.inf, 0.5),
    "all-lowest": lambda x: np.full_like(x, -np.inf),
}


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_max", [True, False], ids=["max", "min"])
def test_the_gradient_is_jaxs_own_bit_for_bit(name, change, is_max):
    *settings, shape = POOLINGS[name]
    fn = lambda x: pool(x, *settings, is_max=is_max)
    sign = 1.0 if is_max else -1.0
    x, gradient = draw_for(fn, shape, change=lambda x: sign * CHANGES[change](x))
    check(fn, x, gradient)


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_halves_are_rounded_after_every_addition_as_jax_does(name, dtype):
    """Op by op: jitted, XLA adds halves up in f32."""
    *settings, shape = POOLINGS[name]
    fn = lambda x: pool(x, *settings)
    args = draw_for(fn, shape, dtype, np.round)
    written, rewritten = rewrite(pull_back(fn), *args)
    (expected,), (found,) = (op_by_op.run_op_by_op(each, *args) for each in (written, rewritten))
    assert expected.dtype == dtype
    assert_same_bits(expected, found)


@hps.composite
def poolings(draw):
    rank = draw(hps.integers(1, 3))
    per_axis = lambda low, high: tuple(draw(hps.integers(low, high)) for _ in range(rank))
    shape, window, strides = per_axis(1, 5), per_axis(1, 3), per_axis(1, 4)
    padding = draw(hps.sampled_from(["SAME", "VALID", None]))
    if padding is None:
        padding = tuple(zip(per_axis(0, 3), per_axis(0, 3), strict=True))
    return shape, window, strides, padding, draw(hps.booleans())


@hp.settings(max_examples=20)
@hp.given(poolings(), hps.sampled_from(["distinct", "ties", "nans", "lowest"]))
def test_any_window_stride_and_padding_will_do(pooling, change):
    shape, window, strides, padding, is_max = pooling
    fn = lambda x: pool(x, window, strides, padding, is_max=is_max)
    x, gradient = draw_for(fn, shape, change=CHANGES[change])
    hp.assume(gradient.size)
    check(fn, x, gradient)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_that_of_flax_is_one(padding):
    fn = lambda x: linen.max_pool(x, (3, 3), (2, 2), padding)
    check(fn, *draw_for(fn, (2, 7, 6, 3), change=np.round))


def test_an_element_adds_up_its_windows_in_their_order():
    """In any other order 1 is lost."""
    fn = lambda x: pool(x, (3,), (1,), "VALID")
    x, gradient = jnp.array([0.0, 0.0, 9.0, 0.0, 0.0]), jnp.array([1e8, -1e8, 1.0])
    np.testing.assert_array_equal(check(fn, x, gradient), [0, 0, 1, 0, 0])


def test_the_first_of_equals_gets_it():
    fn = lambda x: pool(x, (3,), (3,), "VALID")
    expected = check(fn, jnp.array([1.0, 2, 2, 3, 3, 3]), jnp.array([5.0, 7.0]))
    np.testing.assert_array_equal(expected, [0, 5, 0, 7, 0, 0])


@pytest.mark.parametrize("stride", [1, 2])
def test_a_window_larger_than_all_there_is_breaks_nothing(stride):
    """There is no window then, and JAX's own is zeros."""
    args = draw((2, 2)), draw((1, 0))
    written = jax.make_jaxpr(pull_back(lambda x: pool(x, (2, 3), (1, stride), "VALID")))(*args)
    assert not np.any(as_function(unscatter(written))(*args))


@pytest.mark.parametrize(("size", "is_rewritten"), [(32, True), (33, False)])
def test_large_windows_stay_as_written(size, is_rewritten):
    args = draw((2, 40)), draw((2, 41 - size))
    closed = jax.make_jaxpr(pull_back(lambda x: pool(x, (1, size), (1, 1), "VALID")))(*args)
    assert (unscatter(closed) is not closed) == is_rewritten


def scatter_own(select, x, gradient):
    return OWN.bind(
        gradient, x, select_prim=select, window_dimensions=(2,), window_strides=(2,),
        padding=((0, 0),),
    )  # fmt: skip


@pytest.mark.parametrize("select", [jx.primitives.ge_p, jx.primitives.le_p])
@pytest.mark.parametrize(("dtype", "is_rewritten"), [(jnp.float32, True), (jnp.int32, False)])
def test_integers_stay_as_written(select, dtype, is_rewritten):
    args = jnp.arange(6, dtype=dtype), jnp.arange(3, dtype=dtype)
    closed = jax.make_jaxpr(functools.partial(scatter_own, select))(*args)
    assert (unscatter(closed) is not closed) == is_rewritten


def test_what_selects_in_another_way_stays_as_written():
    args = jnp.arange(6.0), jnp.arange(3.0)
    closed = jax.make_jaxpr(functools.partial(scatter_own, jx.primitives.gt_p))(*args)
    assert unscatter(closed) is closed


def compile_rewritten():
    """A gradient of an overlapping pooling, as written and rewritten, and arguments."""
    fn = lambda x: pool(x, (3, 2), (2, 1), "SAME")
    args = draw_for(fn, (5, 4))
    return *map(as_function, rewrite(pull_back(fn), *args)), args


def test_derivatives_are_those_of_the_original():
    written, rewritten, args = compile_rewritten()
    tangents = jax.tree.map(lambda x: draw(x.shape), args)
    same = functools.partial(jax.tree.map, functools.partial(np.testing.assert_allclose, rtol=1e-6))
    same(*(jax.jvp(f, args, tangents) for f in (written, rewritten)))
    pull = lambda f: jax.grad(lambda *xs: jnp.sum(jnp.sin(f(*xs))), (0, 1))(*args)
    expected, found = pull(written), pull(rewritten)
    assert np.abs(expected[1]).max() > 0
    same(expected, found)


@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (0, None), (2, 1)])
def test_it_is_mapped_like_the_original(axes):
    written, rewritten, args = compile_rewritten()
    grown = [
        x if axis is None else jnp.stack([x, draw(x.shape), -x], axis)
        for x, axis in zip(args, axes, strict=True)
    ]
    expected, found = (jax.vmap(f, axes)(*grown) for f in (written, rewritten))
    assert expected.shape == (3, *args[0].shape)
    assert_same_bits(expected, found)


@pytest.mark.gpu_compile
def test_on_a_gpu_nothing_is_scattered_any_more():
    def step(w, x):
        def loss(w):
            y = jax.lax.conv_general_dilated(
                x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            return jnp.sum(linen.max_pool(jnp.sin(y), (3, 3), (2, 2), "SAME") ** 2)

        return jax.value_and_grad(loss)(w)

    args = (
        jax.ShapeDtypeStruct((3, 3, 8, 64), jnp.float32),
        jax.ShapeDtypeStruct((16, 64, 64, 8), jnp.float32),
    )
    device = find_device("h100-sxm")
    before = target.compile_for(step, args, device)
    after = target.compile_for(
        apply_decisions(step, {"0/0": Decision(action="keep")}), args, device
    )
    assert "scatter(" in before.hlo_text
    assert "scatter(" not in after.hlo_text
    assert after.device_bytes < before.device_bytes
