"""Random programs × random decisions: the gradients are always the same."""

import random

import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_by_op import run_op_by_op
from random_programs import build_loss, programs

from jaxswap.apply import Decision, apply_decisions, check_applied, name_values, rewrite_step

RNG = np.random.default_rng(0)
WEIGHTS = jnp.asarray(RNG.standard_normal((3, 4, 4)), jnp.float32)
X = jnp.asarray(RNG.standard_normal((3, 4)), jnp.float32)


def draw_decisions(values, seed: int, share: float = 0.6) -> dict[str, Decision]:
    rng = random.Random(seed)
    return {
        v.name: Decision(
            action=rng.choice(v.actions),
            window_ops=rng.choice((1, 2, 3)),
            reload_ahead_ops=rng.choice((0, 1, 2)),
        )
        for v in values
        if rng.random() < share
    }


@hp.given(
    program=programs(),
    seed=st.integers(0, 1000),
    default=st.sampled_from(("keep", "recompute", "offload")),
)
@hp.settings(max_examples=20, deadline=None, derandomize=True)
def test_gradients_are_the_same(program, seed, default):
    step = jax.value_and_grad(build_loss(program), argnums=(0, 1))
    decisions = draw_decisions(name_values(step, WEIGHTS, X), seed)
    applied = apply_decisions(step, decisions, default=default, min_heavy_bytes=0)
    fast = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    expected, found = (jax.jit(f, compiler_options=fast)(WEIGHTS, X) for f in (step, applied))
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@hp.given(
    program=programs(),
    seed=st.integers(0, 1000),
    default=st.sampled_from(("keep", "recompute", "offload")),
)
@hp.settings(max_examples=30, deadline=None, derandomize=True)
def test_gradients_are_the_same_op_by_op(program, seed, default):
    # Not to the bit: the user's inner `jit`s are inlined, and a gradient with several parts
    # may be summed in another order.
    step = jax.value_and_grad(build_loss(program), argnums=(0, 1))
    decisions = draw_decisions(name_values(step, WEIGHTS, X), seed)
    rewritten = rewrite_step(step, decisions, (WEIGHTS, X), default=default, min_heavy_bytes=0)
    expected = run_op_by_op(jax.make_jaxpr(step)(WEIGHTS, X), WEIGHTS, X)
    for a, b in zip(expected, run_op_by_op(rewritten.closed, WEIGHTS, X), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6 * np.max(np.abs(a)))


@hp.given(program=programs(), seed=st.integers(0, 1000))
@hp.settings(max_examples=10, deadline=None, derandomize=True)
def test_program_is_what_was_decided(program, seed):
    step = jax.value_and_grad(build_loss(program), argnums=(0, 1))
    decisions = draw_decisions(name_values(step, WEIGHTS, X), seed)
    rewritten = rewrite_step(step, decisions, (WEIGHTS, X), min_heavy_bytes=0)
    check_applied(rewritten, decisions, jax.make_jaxpr(step)(WEIGHTS, X))
    again = rewrite_step(step, decisions, (WEIGHTS, X), min_heavy_bytes=0)
    assert str(rewritten.closed) == str(again.closed)


@hp.given(program=programs())
@hp.settings(max_examples=10, deadline=None, derandomize=True)
def test_nothing_decided_is_nothing_changed(program):
    step = jax.value_and_grad(build_loss(program), argnums=(0, 1))
    rewritten = rewrite_step(step, {}, (WEIGHTS, X), default="keep")
    original = jax.make_jaxpr(lambda *xs: jax.tree.leaves(step(*xs)))(WEIGHTS, X)
    assert str(rewritten.closed) == str(original)


@pytest.mark.parametrize("seed", range(3))
def test_offloads_alone_change_no_bit(seed):
    program = [("dense", 0, 0), ("gelu", 0, 0), ("scan", 0, 0), ("add", 0, 2), ("nested", 0, 0)]
    step = jax.value_and_grad(build_loss(program), argnums=(0, 1))
    values = name_values(step, WEIGHTS, X)
    rng = random.Random(seed)
    offload = Decision(action="offload")
    decisions = {v.name: offload for v in values if "offload" in v.actions and rng.random() < 0.5}
    applied = apply_decisions(step, decisions, default="keep", min_heavy_bytes=0)
    expected, found = jax.jit(step)(WEIGHTS, X), jax.jit(applied)(WEIGHTS, X)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(a, b)
