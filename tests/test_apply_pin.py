"""Pins: barriers where they can do something, and nothing on the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxswap.apply.jaxprs import jx
from jaxswap.apply.pin import new_twin, open_twin, pin_p, twin_p

X, Y = jnp.arange(3.0), jnp.ones(2)


def pin(*values):
    return pin_p.bind(*values)


@pytest.mark.parametrize(("platform", "count"), [("cpu", 0), ("cuda", 1)])
def test_a_pin_is_a_barrier_but_on_the_cpu(platform, count):
    lowered = jax.jit(pin).trace(X, Y).lower(lowering_platforms=(platform,))
    assert lowered.as_text().count("optimization_barrier") == count


def test_a_pin_changes_nothing_jitted_or_not():
    for run in (pin, jax.jit(pin)):
        for given, found in zip((X, Y), run(X, Y), strict=True):
            np.testing.assert_array_equal(given, found)


def test_a_pin_can_be_differentiated_and_mapped():
    double = lambda x: 2 * pin(x * x)[0]
    np.testing.assert_array_equal(jax.grad(lambda x: double(x).sum())(X), 4 * X)
    np.testing.assert_array_equal(jax.vmap(double)(X), 2 * X * X)
    mapped = jax.vmap(lambda x, y: pin(x, y), in_axes=(0, None))
    assert [each.shape for each in mapped(X, Y)] == [(3,), (3, 2)]


def twin(first, x):
    """`2 x`, made again where `first` is it already."""
    (eqn,) = jax.make_jaxpr(lambda x: 2.0 * x)(x).jaxpr.eqns
    made = new_twin(jx.Var(eqn.outvars[0].aval), eqn)
    number = made.invars[1].val
    return twin_p.bind(first, jnp.full(x.shape, number), x, **made.params)


@pytest.mark.parametrize(("platform", "count"), [("cpu", 0), ("cuda", 1)])
def test_a_twin_is_made_again_but_on_the_cpu(platform, count):
    lowered = jax.jit(twin).trace(X, X).lower(lowering_platforms=(platform,))
    assert lowered.as_text().count("stablehlo.multiply") == count


def test_a_twin_is_differentiated_by_the_rule_of_its_op():
    """That of `clamp` wants to see that nothing comes through its bounds."""
    (eqn,) = jax.make_jaxpr(lambda x: jax.lax.clamp(0.0, x, 1.0))(X).jaxpr.eqns
    params = new_twin(jx.Var(eqn.outvars[0].aval), eqn).params
    clamped = lambda x: twin_p.bind(jnp.clip(x, 0.0, 1.0), 0.0, x, 1.0, **params)
    np.testing.assert_array_equal(jax.grad(lambda x: clamped(x).sum())(X + 0.5), [1.0, 0.0, 0.0])


def test_a_twin_can_be_opened():
    (eqn,) = jax.make_jaxpr(lambda x: 2.0 * x)(X).jaxpr.eqns
    opened = open_twin(new_twin(jx.Var(eqn.outvars[0].aval), eqn))
    assert (opened.primitive, opened.params) == (eqn.primitive, dict(eqn.params))
    assert opened.invars == eqn.invars
    assert open_twin(eqn) is eqn


def test_a_twin_is_what_it_is_the_twin_of():
    double = lambda x: twin(2 * x, x)
    for run in (double, jax.jit(double)):
        np.testing.assert_array_equal(run(X), 2 * X)
    np.testing.assert_array_equal(jax.grad(lambda x: double(x).sum())(X), jnp.full(3, 2.0))
    rows = jnp.stack([X, X + 1])
    for axis in (0, 1):
        mapped = jax.vmap(double, in_axes=axis, out_axes=axis)
        np.testing.assert_array_equal(mapped(rows), 2 * rows)
