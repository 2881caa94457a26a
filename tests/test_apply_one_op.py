"""One op: a function as one equation, which means what the function means."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxswap.apply.one_op import make_op

RNG = np.random.default_rng(0)
X, Y = (jnp.asarray(RNG.standard_normal(shape), jnp.float32) for shape in ((3, 4), (4,)))
is_close = functools.partial(
    jax.tree.map, functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
)


def fold(x, y, *, times):
    return times * jnp.sin(x) @ y


FOLD = make_op("test_fold", fold)


def plain(x, y):
    return fold(x, y, times=3.0)


def bound(x, y):
    return FOLD.bind(x, y, times=3.0)


def test_it_is_one_equation_of_the_functions_type():
    (eqn,) = jax.make_jaxpr(bound)(X, Y).jaxpr.eqns
    assert (eqn.primitive, eqn.params) == (FOLD, {"times": 3.0})
    assert (eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype) == ((3,), jnp.float32)


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["called", "jitted"])
def test_it_computes_the_function(run):
    is_close(plain(X, Y), run(bound)(X, Y))


@pytest.mark.parametrize("argument", [0, 1])
def test_its_derivatives_are_the_functions(argument):
    """The other argument has no tangent."""
    grad = lambda f: jax.grad(lambda x, y: jnp.sum(f(x, y) ** 2), argument)
    is_close(grad(plain)(X, Y), grad(bound)(X, Y))
    along = lambda f, x: f(*((x, Y) if argument == 0 else (X, x)))
    at = (X, Y)[argument]
    push = lambda f: jax.jvp(functools.partial(along, f), (at,), (2 * at,))
    is_close(push(plain), push(bound))
    hessian = lambda f: jax.hessian(lambda x: jnp.sum(along(f, x) ** 2))(at)
    is_close(hessian(plain), hessian(bound))


def test_integers_have_no_derivative():
    pick = make_op("test_pick", lambda x, k: jnp.where(jnp.arange(4) == k, x, 0.0))
    grad = jax.grad(lambda y, k: jnp.sum(pick.bind(y, k) ** 2))(Y, jnp.int32(2))
    np.testing.assert_array_equal(grad, jnp.where(jnp.arange(4) == 2, 2 * Y, 0.0))
    find = make_op("test_find", lambda x: jnp.argmax(x, axis=-1))
    grad = jax.grad(lambda y: y[find.bind(y)])(Y)
    np.testing.assert_array_equal(grad, jnp.arange(4) == jnp.argmax(Y))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (2, 1)])
def test_it_is_mapped_like_the_function(axes):
    args = [
        a if axis is None else jnp.stack([a, 2 * a], axis)
        for a, axis in zip((X, Y), axes, strict=True)
    ]
    is_close(jax.vmap(plain, axes)(*args), jax.vmap(bound, axes)(*args))
    grads = [jax.vmap(jax.grad(lambda x, y, f=f: f(x, y).sum()), axes) for f in (plain, bound)]
    is_close(*(grad(*args) for grad in grads))


@pytest.mark.parametrize(("platform", "is_as_written"), [("cpu", True), ("cuda", False)])
def test_on_the_cpu_alone_it_is_the_step_as_written(platform, is_as_written):
    op = make_op("test_twice", lambda x: x + x, on_cpu=lambda x: 2.0 * x)
    lowered = jax.jit(op.bind).trace(jnp.ones(3)).lower(lowering_platforms=(platform,))
    assert ("stablehlo.multiply" in lowered.as_text()) == is_as_written
    assert ("stablehlo.add" in lowered.as_text()) != is_as_written
