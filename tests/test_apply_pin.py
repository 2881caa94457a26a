"""Pins: barriers where they can do something, and nothing on the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxswap.apply.pin import pin_p

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
