"""Twice: derivatives of applied steps are those of the steps as written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxswap.apply import Decision, apply_decisions, name_values
from jaxswap.apply.check import count_offloads

W = jnp.asarray(np.random.default_rng(0).standard_normal((4, 4)), jnp.float32) / 2
OFFLOAD = Decision(action="offload")


def unrolled(w):
    return jax.value_and_grad(lambda w: jnp.sum(jnp.sin(jnp.sin(w @ w) @ w) @ w))(w)


def looped(w):
    def loss(w):
        body = lambda c, _: (jnp.tanh(jnp.sin(c @ w) @ w), None)
        return jnp.sum(jax.lax.scan(body, w, None, length=3)[0] ** 2)

    return jax.value_and_grad(loss)(w)


def sized(step):
    """A number to differentiate: the square of the gradient that a step returns."""
    return lambda w: jnp.sum(step(w)[1] ** 2)


DERIVATIVES = {
    "grad": lambda step: jax.grad(sized(step)),
    "jit of grad": lambda step: jax.jit(jax.grad(sized(step))),
    "grad of jit": lambda step: jax.grad(jax.jit(sized(step))),
    "grad of checkpoint": lambda step: jax.grad(jax.checkpoint(sized(step))),
    "grad of grad": lambda step: jax.grad(lambda w: jnp.sum(jax.grad(sized(step))(w) ** 2)),
    "jvp": lambda step: lambda w: jax.jvp(sized(step), (w,), (w,)),
    "jvp of grad": lambda step: lambda w: jax.jvp(jax.grad(sized(step)), (w,), (w,)),
    "vmap of grad": lambda step: lambda w: jax.vmap(jax.grad(sized(step)))(jnp.stack([w, 2 * w])),
}


@pytest.mark.parametrize(("step", "default"), [(unrolled, "keep"), (looped, "offload")])
@pytest.mark.parametrize("derive", DERIVATIVES.values(), ids=DERIVATIVES)
def test_derivatives_are_the_same(derive, step, default):
    decisions = {v.name: OFFLOAD for v in name_values(step, W) if "offload" in v.actions}
    applied = apply_decisions(step, decisions, default=default, min_heavy_bytes=0)
    assert count_offloads(jax.make_jaxpr(applied)(W))
    expected, found = (jax.tree.leaves(derive(f)(W)) for f in (step, applied))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.max(np.abs(a)))


def offload_all(step, *args):
    decisions = {v.name: OFFLOAD for v in name_values(step, *args) if "offload" in v.actions}
    return apply_decisions(step, decisions, default="keep", min_heavy_bytes=0)


CAPTURING = {
    "jvp": lambda f: jax.jvp(f, (0.7,), (1.0,)),
    "grad": lambda f: jax.grad(f)(0.7),
    "grad of jit": lambda f: jax.grad(jax.jit(f))(0.7),
    "jit in grad": lambda f: jax.grad(lambda scale: jax.jit(lambda one: f(scale * one))(1.0))(0.7),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f))(jnp.array([0.7, 0.8])),
}


@pytest.mark.parametrize("derive", CAPTURING.values(), ids=CAPTURING)
def test_what_a_step_closes_over_has_its_derivative_too(derive):
    def scaled(apply):
        def loss(scale):
            step = lambda w: unrolled(scale * w)
            return jnp.sum(apply(step)(W)[1] ** 2)

        return derive(loss)

    expected, found = scaled(lambda step: step), scaled(lambda step: offload_all(step, W))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_what_a_step_closes_over_and_passes_on_has_its_derivative():
    step = lambda scale: lambda w: (unrolled(w), scale)
    loss = lambda scale: offload_all(step(scale), W)(W)[1] ** 2
    assert jax.grad(loss)(3.0) == 6


def has_zeros(w, x):
    loss, grad = unrolled(w)
    return loss * jnp.sum(jnp.sqrt(x)), grad, x + 0.0


FORWARD = {
    "jvp": lambda f: jax.jvp(f, (W,), (W,))[1],
    "linearize": lambda f: jax.linearize(f, W)[1](W),
    "jvp of jit": lambda f: jax.jvp(jax.jit(f), (W,), (W,))[1],
    "vmap of jvp": lambda f: jax.vmap(lambda t: jax.jvp(f, (W,), (t,))[1])(jnp.stack([W, W])),
    "jvp of vmap": lambda f: jax.jvp(jax.vmap(f), (jnp.stack([W, W]),), (jnp.stack([W, W]),))[1],
}


@pytest.mark.parametrize("derive", FORWARD.values(), ids=FORWARD)
@pytest.mark.parametrize("after", [lambda out: out[0], lambda out: jnp.sum(jnp.sqrt(out[2]))])
def test_what_has_no_tangent_is_not_differentiated(derive, after):
    zeros = jnp.zeros(3)  # where the derivative of the root is infinite
    applied = offload_all(has_zeros, W, zeros)
    assert count_offloads(jax.make_jaxpr(applied)(W, zeros))
    # A second term that moves: what has no tangent at all never gets to the step's rule.
    sized = lambda step: lambda w: after(out := step(w, zeros)) + jnp.sum(out[1])
    expected, found = derive(sized(has_zeros)), derive(sized(applied))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_arguments_that_have_no_tangents_are_no_hindrance():
    def step(w, key, n):
        noise = jax.random.normal(key, (4, 4))
        return jax.value_and_grad(lambda w: jnp.sum(jnp.sin(jnp.sin(w @ w) @ w) * noise) * n)(w), n

    args = (W, jax.random.key(0), jnp.int32(3))
    sized = lambda f: lambda w: jnp.sum(f(w, *args[1:])[0][1] ** 2)
    for derive in (jax.grad, lambda f: lambda w: jax.jvp(jax.jit(f), (w,), (w,))[1]):
        expected, found = (derive(sized(f))(W) for f in (step, offload_all(step, *args)))
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_rule_that_runs_late_knows_the_names_of_axes():
    def step(w):
        def loss(w):
            body = lambda c, _: (jnp.sin(jax.lax.pmean(c, "b") @ w), None)
            return jnp.sum(jnp.sin(jax.lax.scan(body, w, None, length=2)[0] @ w))

        loss, grad = jax.value_and_grad(loss)(w)
        return loss, jax.lax.pmean(grad, "b")

    batch = jnp.stack([W, 2 * W])
    applied = lambda w: offload_all(step, w)(w)

    def derive(f):
        mapped = jax.jit(jax.vmap(f, axis_name="b"))
        return jax.grad(lambda w: jnp.sum(mapped(w)[1] ** 2))(batch)

    np.testing.assert_allclose(derive(applied), derive(step), rtol=1e-4, atol=1e-4)


def test_a_step_is_traced_once_for_both():
    runs = []

    def step(w):
        runs.append(w)
        return unrolled(w)

    applied = offload_all(step, W)
    runs.clear()
    jax.grad(sized(applied))(W)
    assert len(runs) == 1


@jax.custom_jvp
def own_forward(x):
    return jnp.sin(x)


own_forward.defjvp(lambda xs, ts: (own_forward(*xs), 7 * ts[0] * own_forward(*xs)))


@jax.custom_vjp
def own_backward(x):
    return x


own_backward.defvjp(lambda x: (x, x), lambda x, cotangent: (5 * cotangent * jnp.sin(x),))


@pytest.mark.parametrize("default", ["keep", "recompute"])
@pytest.mark.parametrize("action", ["offload", "recompute"])
@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_custom_derivatives_stay(action, default, jit):
    def step(w):
        loss, grad = jax.value_and_grad(lambda w: jnp.sum(own_forward(jnp.sin(w @ w) @ w) @ w))(w)
        return own_forward(loss), own_backward(grad)

    decision = Decision(action=action)
    decisions = {v.name: decision for v in name_values(step, W) if action in v.actions}
    applied = apply_decisions(step, decisions, default=default, min_heavy_bytes=0)
    derive = lambda f: jax.grad(lambda w: (out := jit(f)(w))[0] + jnp.sum(out[1]))(W)
    np.testing.assert_allclose(derive(applied), derive(step), rtol=1e-4)


def test_a_step_with_references_in_it_is_applied():
    def step(w):
        def loss(w):
            state = jax.new_ref(w)
            for _ in range(2):
                state[...] = jnp.tanh(jnp.sin(state[...] @ w) @ w)
            return jnp.sum(state[...] ** 2)

        return jax.value_and_grad(loss)(w)

    decisions = {v.name: OFFLOAD for v in name_values(step, W) if "offload" in v.actions}
    applied = apply_decisions(step, decisions, default="keep", min_heavy_bytes=0)
    for a, b in zip(jax.jit(step)(W), jax.jit(applied)(W), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_a_step_does_not_read_or_passes_on_is_seen_by_jit():
    step = lambda unread, w, passed: (unrolled(w), passed, 1.0)
    args = (jnp.ones(3), W, jnp.ones(5))
    decisions = {v.name: OFFLOAD for v in name_values(step, *args) if "offload" in v.actions}
    applied = apply_decisions(step, decisions, default="keep", min_heavy_bytes=0)
    assert count_offloads(jax.make_jaxpr(applied)(*args))
    plain, found = (jax.jit(f).lower(*args).as_text() for f in (step, applied))
    main = lambda text: next(line for line in text.splitlines() if "@main" in line)
    assert main(plain).count("tensor<3xf32>") == main(found).count("tensor<3xf32>") == 0
    assert main(plain).count("tensor<5xf32>") == main(found).count("tensor<5xf32>")
    sized = lambda f: jax.grad(lambda w: jnp.sum(f(args[0], w, args[2])[0][1] ** 2))
    np.testing.assert_allclose(sized(applied)(W), sized(step)(W), rtol=1e-5)
