"""Numbers: an applied step computes what the original computes, in every style of step.

What "the same" means. Offloads alone change no bit, jitted with XLA's default options: on the CPU
the applied step is the original's graph. XLA:CPU rounds one program in several ways, depending on
what it fuses and simplifies, and what is recomputed stands between other neighbours. So plans that
recompute are asked for equal bits op by op (`op_by_op.py`), where XLA has no such freedom; where it
has, errors are relative to the largest number of an array: an element that is zero in exact
arithmetic is all rounding.
"""

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from apply_steps import MODELS, STYLES, chain
from op_by_op import run_op_by_op

from benchmarks.models import build
from jaxswap.apply import Decision, apply_decisions, name_values, order, rewrite_step

ALL = MODELS | STYLES
# The numbers are what is tested: this compiles in half the time.
COMPILE_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
NUM_PLANS = 3


def draw_decisions(values, seed):
    rng = random.Random(seed)
    return {
        v.name: Decision(
            action=rng.choice(v.actions),
            window_ops=rng.choice((1, 3)),
            reload_ahead_ops=rng.choice((0, 2)),
        )
        for v in values
        if rng.random() < 0.7
    }


def to_numpy(tree):
    is_key = lambda x: jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in jax.tree.leaves(tree)]


def assert_close(expected, found, rtol):
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for a, b in zip(to_numpy(expected), to_numpy(found), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        scale = np.max(np.abs(a), initial=1e-30)
        np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=rtol)


def draw_offloads(values, seed):
    rng = random.Random(seed)
    offload = Decision(action="offload")
    return {v.name: offload for v in values if "offload" in v.actions and rng.random() < 0.6}


def jit(fn):
    return jax.jit(fn, compiler_options=COMPILE_FAST)


@pytest.mark.parametrize("name", MODELS)
def test_random_plans_three_steps_in_a_row(name):
    step, args = MODELS[name]()
    values = name_values(step, *args)
    expected = chain(jit(step), args, 3)
    for seed in range(NUM_PLANS):
        default = ("keep", "recompute")[seed % 2]
        decisions = draw_decisions(values, seed)
        applied = apply_decisions(step, decisions, default=default, min_heavy_bytes=0)
        assert_close(expected, chain(jit(applied), args, 3), 1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_offloads_alone_change_no_bit_after_three_steps(name):
    step, args = MODELS[name]()
    decisions = draw_offloads(name_values(step, *args), 7)
    applied = apply_decisions(step, decisions, default="keep", min_heavy_bytes=0)
    expected, found = chain(jax.jit(step), args, 3), chain(jax.jit(applied), args, 3)
    assert_close(expected, found, 0)


@pytest.mark.parametrize("name", STYLES)
def test_every_style_of_step(name):
    step, args = STYLES[name]()
    values = name_values(step, *args)
    expected = jax.jit(step)(*args)
    applied = apply_decisions(step, draw_offloads(values, 7), default="keep", min_heavy_bytes=0)
    assert_close(expected, jax.jit(applied)(*args), 0)
    applied = apply_decisions(step, draw_decisions(values, 0), min_heavy_bytes=0)
    assert_close(expected, jax.jit(applied)(*args), 1e-6)


@pytest.mark.parametrize("name", ALL)
def test_offloads_are_in_the_program(name):
    step, args = ALL[name]()
    rewritten = rewrite_step(step, {}, args, default="offload", min_heavy_bytes=0)
    assert rewritten.offloaded
    assert "<host>" in str(rewritten.closed)
    assert "jaxswap:" not in str(rewritten.closed)


@pytest.mark.parametrize("name", ALL)
def test_nothing_decided_is_nothing_changed(name):
    step, args = ALL[name]()
    rewritten = rewrite_step(step, {}, args, default="keep")
    leaves, tree = jax.tree.flatten(args)
    flat = lambda *xs: jax.tree.leaves(step(*jax.tree.unflatten(tree, xs)))
    assert str(rewritten.closed.jaxpr) == str(jax.make_jaxpr(flat)(*leaves).jaxpr)


# ---- the models that memory is measured on ----

_TRANSFORMER = {"layers": 2, "d_model": 24, "heads": 2, "seq": 12, "vocab": 40, "batch": 3}
_IMAGES = {"image": 21, "classes": 7, "batch": 3}
ZOO = {
    "gpt": ("gpt2-small", _TRANSFORMER),
    "scanned gpt": ("gpt2-small", {**_TRANSFORMER, "scan": True}),
    "resnet": ("resnet50", {**_IMAGES, "stages": (1, 1), "width": 4}),
    "vgg": ("vgg16", {**_IMAGES, "stages": (1, 2), "width": 4, "d_head": 8}),
    "lstm": ("lstm", {"layers": 1, "d_model": 8, "seq": 12, "vocab": 40, "batch": 3}),
    "unet": ("unet", {"depth": 1, "width": 4, "image": 24, "batch": 2}),
    "moe": ("moe", {**_TRANSFORMER, "layers": 1, "experts": 4}),
    "vit": (
        "vit-b16",
        {**_IMAGES, "layers": 1, "d_model": 24, "heads": 2, "patch": 4, "image": 12},
    ),
}
NUM_ZOO_PLANS = 10


@functools.cache
def load(name):
    """A model's step, arguments made without compiling anything, and the names of its values."""
    workload, settings = ZOO[name]
    step, shapes = (built := build(workload, dtype="f32", **settings)).step, built.args
    rng = np.random.default_rng(0)

    def draw(path, shape):
        if jnp.issubdtype(shape.dtype, jnp.integer):
            return jnp.asarray(rng.integers(0, 2, shape.shape), shape.dtype)
        if "batch_stats" in jax.tree_util.keystr(path):
            return jnp.asarray(rng.uniform(0.5, 1.5, shape.shape), shape.dtype)
        return jnp.asarray(0.2 * rng.standard_normal(shape.shape), shape.dtype)

    variables, optimizer_state, *batch = shapes
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), optimizer_state)
    variables, batch = jax.tree.map_with_path(draw, (variables, batch))
    args = (variables, zeros, *batch)
    return step, args, name_values(step, *args)


def train_op_by_op(closed, args, times):
    flat, num_state = jax.tree.leaves(args), len(jax.tree.leaves(args[:2]))
    for _ in range(times):
        out = run_op_by_op(closed, *flat)
        flat = [*out[:num_state], *flat[num_state:]]
    return out


def train(step, args, times):
    for _ in range(times):
        out = step(*args)
        args = (*out[:2], *args[2:])
    return out


def assert_same_bits(expected, found):
    pairs = list(zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True))
    assert all(np.isfinite(a).all() for a, _ in pairs)
    for a, b in pairs:
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ZOO)
def test_ten_random_plans_per_model_give_the_same_bits_op_by_op(name, monkeypatch):
    # Ties as they are at real sizes.
    monkeypatch.setattr(order, "_SMALL_BYTES", 0)
    step, args, values = load(name)
    expected = train_op_by_op(jax.make_jaxpr(step)(*args), args, 3)
    start = jax.tree.leaves(args)
    assert not all((a == b).all() for a, b in zip(start, expected, strict=False))
    for seed in range(NUM_ZOO_PLANS):
        default = ("recompute", "keep", "offload")[seed % 3]
        decisions = draw_decisions(values, seed)
        rewritten = rewrite_step(step, decisions, args, default=default, min_heavy_bytes=0)
        assert_same_bits(expected, train_op_by_op(rewritten.closed, args, 3))


@pytest.mark.parametrize("name", ZOO)
def test_offload_only_plans_change_no_bit_of_a_jitted_model(name):
    step, args, values = load(name)
    expected = train(jax.jit(step), args, 3)
    for seed in range(NUM_ZOO_PLANS):
        offloads = draw_offloads(values, seed)
        applied = apply_decisions(step, offloads, default="keep", min_heavy_bytes=0)
        assert_same_bits(expected, train(jax.jit(applied), args, 3))
