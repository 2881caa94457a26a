"""Place: values get stable names, and interception leaves no trace."""

import concurrent.futures
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

from jaxswap import _compat
from jaxswap._errors import BadArgumentError
from jaxswap.apply import Decision, apply_decisions, name_values, place, rewrite_step
from jaxswap.apply.step import apply_traced

W = jax.random.normal(jax.random.key(0), (3, 4, 4))
X = jax.random.normal(jax.random.key(1), (2, 4))


def loss(w, x):
    with jax.named_scope("encoder"):
        h = checkpoint_name(jnp.tanh(x @ w[0]), "hidden")

    def body(c, layer):
        return jnp.sin(c @ layer), None

    h, _ = jax.lax.scan(body, h, w)
    return jnp.mean(h**2)


def test_names_say_what_and_where():
    values = {v.name: v for v in name_values(jax.grad(loss), W, X)}
    assert next(iter(values)) == "0/in0"
    hidden = next(v for v in values.values() if v.user_name == "hidden")
    assert hidden.primitive == "tanh"
    assert hidden.shape == (2, 4)
    assert hidden.dtype == "float32"
    assert hidden.size_bytes == 32
    assert hidden.module_path == "encoder"
    assert "test_apply_place.py:" in hidden.source
    assert hidden.actions == ("keep", "offload", "recompute")
    (carry,) = [v for v in values.values() if v.name.endswith(".body/in0")]
    assert carry.length == 3
    assert carry.scope == (carry.name.removesuffix("/in0"),)
    assert carry.actions == ("keep", "offload")
    (product,) = [v for v in values.values() if v.scope and v.primitive == "dot_general"]
    assert product.name.startswith(carry.scope[0])
    loop = next(v for v in values.values() if v.primitive == "scan")
    assert "recompute" not in loop.actions


def test_names_are_the_same_every_time():
    first, second = (name_values(jax.grad(loss), W, X) for _ in range(2))
    assert first == second
    shapes = jax.ShapeDtypeStruct(W.shape, W.dtype), jax.ShapeDtypeStruct(X.shape, X.dtype)
    assert name_values(jax.grad(loss), *shapes) == first


def test_every_differentiation_has_its_number():
    def step(w, x):
        return jax.grad(loss)(w, x) + jax.vjp(lambda w: loss(w, 2 * x), w)[1](1.0)[0]

    names = {v.name.split("/")[0] for v in name_values(step, W, X)}
    assert names == {"0", "1"}


def test_only_the_outermost_of_nested_differentiations_is_named():
    inner = lambda w: jnp.sum(jax.grad(loss)(w, X) ** 2)
    names = {v.name.split("/")[0] for v in name_values(jax.grad(inner), W)}
    assert names == {"0"}


def test_forward_mode_is_left_alone():
    step = lambda w: jax.jvp(lambda w: loss(w, X), (w,), (w,))
    assert name_values(step, W) == []
    assert name_values(lambda w: jax.linearize(lambda w: loss(w, X), w)[1](w), W) == []


def test_interception_ends_with_the_trace():
    name_values(jax.grad(loss), W, X)
    assert not _compat.is_interception_installed()

    def fails(w):
        raise RuntimeError("in the loss")

    with pytest.raises(RuntimeError, match="in the loss"):
        name_values(jax.grad(fails), W)
    assert not _compat.is_interception_installed()


def test_another_thread_sees_nothing_of_it():
    entered, leave = threading.Event(), threading.Event()

    def slow_loss(w):
        entered.set()
        assert leave.wait(30)
        return loss(w, X)

    def differentiate_meanwhile():
        assert entered.wait(30)
        try:
            assert _compat.is_interception_installed()
            return str(jax.make_jaxpr(jax.grad(lambda w: loss(w, X)))(W))
        finally:
            leave.set()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        planned = pool.submit(name_values, jax.grad(slow_loss), W)
        other = pool.submit(differentiate_meanwhile)
        assert "jaxswap" not in other.result()
        assert planned.result()
    assert not _compat.is_interception_installed()


def test_two_threads_at_once():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: name_values(jax.grad(loss), W, X), range(8)))
    assert all(f == found[0] for f in found)
    assert not _compat.is_interception_installed()


def test_a_jitted_loss_that_ran_before_is_seen():
    jitted = jax.jit(jax.grad(loss))
    jitted(W, X)
    decisions = {"0/0": Decision(action="offload")}
    rewritten = rewrite_step(lambda w, x: jitted(w, x), {}, (W, X), default="offload")
    assert rewritten.offloaded or rewritten.demoted
    assert [v.name for v in rewritten.values] == [v.name for v in name_values(jitted, W, X)]
    found = jax.jit(apply_decisions(jitted, decisions, min_heavy_bytes=0))(W, X)
    np.testing.assert_allclose(found, jitted(W, X), rtol=1e-6)


def test_static_arguments_and_keywords():
    def step(w, x, scale, *, power):
        factor = 2.0 if scale == "large" else 1.0
        return jax.grad(lambda w: factor * loss(w, x) ** power)(w)

    applied = jax.jit(apply_decisions(step, {}), static_argnums=2, static_argnames="power")
    expected = jax.jit(step, static_argnums=2, static_argnames="power")
    found = applied(W, X, "large", power=2)
    np.testing.assert_allclose(found, expected(W, X, "large", power=2), rtol=1e-5)


def test_side_effects_happen_once():
    seen = []

    def noisy(w):
        h = jnp.tanh(X @ w[0])
        jax.debug.callback(lambda v: seen.append(float(v)), h.sum())
        return jnp.sum(jnp.sin(h) @ w[1])

    applied = jax.jit(apply_decisions(jax.grad(noisy), {}, min_heavy_bytes=0))
    jax.block_until_ready(applied(W))
    jax.effects_barrier()
    assert len(seen) == 1


def test_unknown_names_are_an_error():
    with pytest.raises(BadArgumentError, match=r"1 of 1 decisions .* such as '0/999'"):
        rewrite_step(jax.grad(loss), {"0/999": Decision(action="keep")}, (W, X))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Decision(action="burn"), "`action='burn'` is not something that can be done"),
        (lambda: Decision(action="keep", window_ops=0), "`window_ops=0`"),
        (lambda: Decision(action="keep", reload_ahead_ops=-1), "`reload_ahead_ops=-1`"),
        (lambda: apply_decisions(loss, {}, default="burn"), "`default='burn'`"),
    ],
)
def test_bad_arguments_are_errors(make, message):
    with pytest.raises(BadArgumentError, match=message):
        make()


def test_jaxs_next_checkpoint_works():
    """With `JAX_REMAT3=1` each of the user's regions is a differentiated function of its own."""
    dense = lambda h, w: jnp.sin(jnp.tanh(h @ w))

    def step(w):
        def loss(w):
            h = X
            for layer in w:
                h = jax.checkpoint(dense)(h, layer)
            return jnp.sum(jnp.tanh(h @ w[0]) @ w[1])

        return jax.value_and_grad(loss)(w)

    expected = jax.jit(step)(W)
    jax.config.update("jax_remat3", True)
    try:
        rewritten = rewrite_step(step, {}, (W,), default="offload", min_heavy_bytes=0)
        found = jax.jit(apply_decisions(step, {}, default="offload", min_heavy_bytes=0))(W)
    finally:
        jax.config.update("jax_remat3", False)
    assert rewritten.offloaded
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6 * np.max(np.abs(a)))


def test_names_that_are_not_wanted_leave_no_trace():
    fn = jax.grad(lambda w, x: jnp.sum(jax.lax.scan(lambda c, v: (c @ v, c), x, w)[0]))
    traced = place.trace_step(fn, (jnp.ones((3, 4, 4)), jnp.ones((4, 4))), {})
    inside = [v.name for v in traced.values if v.scope]
    wanted = inside[0]
    text = str(place.keep_names(traced.closed, lambda name: name == wanted))
    assert inside[1:]
    assert [name for name in inside if f"{place.VALUE}{name}]" in text] == [wanted]
    assert place.VALUE not in str(place.keep_names(traced.closed, lambda name: False))


def test_a_step_that_was_traced_before_is_rewritten_to_the_same_program():
    step = jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.sin(w @ W) @ w)))
    decisions = {"0/0": Decision(action="offload"), "0/1": Decision(action="keep")}
    traced = place.trace_step(step, (W,), {})
    expected, found = (
        jax.jit(fn).lower(W).as_text()
        for fn in (apply_decisions(step, decisions), apply_traced(step, traced, decisions))
    )
    assert expected == found


@pytest.mark.parametrize(
    ("step", "args", "message"),
    [
        (lambda x: (x, "text"), (jnp.ones(2),), r"returns 'text', of type `str`"),
        (lambda x, mode: x, (jnp.ones(2), "text"), r"gets 'text', of type `str`.* close over it"),
    ],
)
def test_what_is_no_array_is_an_error_that_says_so(step, args, message):
    with pytest.raises(BadArgumentError, match=message):
        name_values(step, *args)


def test_a_custom_derivative_may_index_a_constant_that_it_saved():
    @jax.custom_vjp
    def scale(x, factors):
        return x * factors[0]

    def backward(factors, cotangent):
        total = jax.lax.fori_loop(0, 2, lambda i, sum_: sum_ + factors[i], jnp.float32(0))
        return cotangent * total, jnp.zeros_like(factors)

    scale.defvjp(lambda x, factors: (scale(x, factors), factors), backward)
    step = jax.grad(lambda x: jnp.sum(scale(jnp.sin(x), jnp.array([1.0, 2.0])) ** 2))
    x = jnp.ones((2, 2))
    applied = apply_decisions(step, {}, min_heavy_bytes=0)
    np.testing.assert_allclose(jax.jit(applied)(x), jax.jit(step)(x), rtol=1e-6)
