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


def test_what_a_step_closes_over_has_its_derivative_too():
    def scaled(apply):
        def loss(scale):
            step = lambda w: unrolled(scale * w)
            return jnp.sum(apply(step)(W)[1] ** 2)

        return jax.jvp(loss, (jnp.float32(0.7),), (jnp.float32(1.0),))

    decisions = {v.name: OFFLOAD for v in name_values(unrolled, W) if v.primitive == "dot_general"}
    found = scaled(lambda step: apply_decisions(step, decisions, min_heavy_bytes=0))
    np.testing.assert_allclose(found, scaled(lambda step: step), rtol=1e-5)


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
