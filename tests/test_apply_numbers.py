"""Numbers: an applied step computes what the original computes, in every style of step."""

import random

import jax
import numpy as np
import pytest
from apply_steps import MODELS, STYLES, chain

from jaxswap.apply import Decision, apply_decisions, name_values, rewrite_step

ALL = MODELS | STYLES
# The numbers are what is tested: this compiles in half the time.
COMPILE_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
# Without fusion, each op rounds by itself, whatever stands next to it.
WITHOUT_FUSION = COMPILE_FAST | {"xla_disable_hlo_passes": "fusion"}
NUM_PLANS = 3
# XLA writes a mapped matrix-vector product in one of two ways, depending on its neighbours.
INEXACT = ("equinox",)


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


def jit(fn, options=COMPILE_FAST):
    return jax.jit(fn, compiler_options=options)


@pytest.mark.parametrize("name", MODELS)
def test_random_plans_three_steps_in_a_row(name):
    step, args = MODELS[name]()
    values = name_values(step, *args)
    expected = chain(jit(step), args, 3)
    for seed in range(NUM_PLANS):
        default = ("keep", "recompute")[seed % 2]
        decisions = draw_decisions(values, seed)
        applied = apply_decisions(step, decisions, default=default, min_heavy_bytes=0)
        assert_close(expected, chain(jit(applied), args, 3), 2e-6)


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
    expected = jit(step, WITHOUT_FUSION)(*args)
    applied = apply_decisions(step, draw_offloads(values, 7), default="keep", min_heavy_bytes=0)
    assert_close(expected, jit(applied, WITHOUT_FUSION)(*args), 1e-6 if name in INEXACT else 0)
    applied = apply_decisions(step, draw_decisions(values, 0), min_heavy_bytes=0)
    assert_close(expected, jit(applied, WITHOUT_FUSION)(*args), 1e-6)


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
