"""`checkpoint` and `value_and_grad`: a loss follows a plan with nothing but `jax.checkpoint`."""

import random

import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_programs import build_loss, programs

import jaxswap
from jaxswap import _compat, _explicit
from jaxswap._errors import BadArgumentError
from jaxswap.apply import Decision, name_values
from jaxswap.apply.check import count_offloads
from jaxswap.apply.jaxprs import bodies
from jaxswap.model.simulate import Forecast
from jaxswap.plan.plan import Plan, PlannedValue

COMPILE_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
RNG = np.random.default_rng(0)
W = jnp.asarray(RNG.standard_normal((3, 4, 4)), jnp.float32)
X = jnp.asarray(RNG.standard_normal((3, 4)), jnp.float32)


@pytest.fixture(autouse=True)
def _own_plans(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXSWAP_CACHE_DIR", str(tmp_path))


def make_plan(decisions, values=None):
    return Plan(
        decisions=decisions,
        values=values or {},
        forecast=Forecast(peak_bytes=1, step_s=1.0),
        budget_bytes=1,
        device="t4",
    )


def plan_by(fn, *args, choose):
    values = name_values(jax.value_and_grad(fn), *args)
    described = {v.name: PlannedValue(size_bytes=1, shape=v.shape, dtype=v.dtype) for v in values}
    return make_plan({v.name: Decision(action=choose(v)) for v in values}, described)


def unrolled(w, x):
    for i in range(3):
        x = jnp.sin(jnp.tanh(x @ w[i]))
    return jnp.mean(x**2)


def scanned(w, x):
    x, _ = jax.lax.scan(lambda c, p: (jnp.sin(jnp.tanh(c @ p)), None), x, w)
    return jnp.mean(x**2)


def offload_dots(v):
    return "offload" if v.primitive == "dot_general" else "recompute"


def count(jaxpr, name):
    """How often a primitive stands in a jaxpr, at any depth."""
    total = 0
    for eqn in jaxpr.eqns:
        total += eqn.primitive.name == name
        total += sum(count(inner, name) for inner in bodies(eqn))
    return total


def assert_same(expected, found, rtol=1e-6):
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        scale = np.max(np.abs(a), initial=1e-30)
        np.testing.assert_allclose(np.asarray(a) / scale, np.asarray(b) / scale, rtol=0, atol=rtol)


def test_offloads_and_recomputation_are_in_the_program():
    plan = plan_by(unrolled, W, X, choose=offload_dots)
    planned = jax.make_jaxpr(jax.grad(jaxswap.checkpoint(unrolled, plan)))(W, X)
    # The last dot is made, offloaded and reloaded like the others: nothing says when.
    assert count_offloads(planned) == 3
    plain = jax.make_jaxpr(jax.grad(unrolled))(W, X)
    assert count(planned.jaxpr, "dot_general") == count(plain.jaxpr, "dot_general") == 8
    assert count(planned.jaxpr, "tanh") == 2 * count(plain.jaxpr, "tanh")


@pytest.mark.parametrize("loss", [unrolled, scanned])
@pytest.mark.parametrize("is_bad_xla", [True, False])
@pytest.mark.filterwarnings("ignore:.*values in loops:UserWarning")
def test_gradients_are_right_with_any_plan(loss, is_bad_xla, monkeypatch):
    monkeypatch.setattr(_compat, "misreads_reversed_slices", lambda: is_bad_xla)
    expected = jax.value_and_grad(loss, argnums=(0, 1))(W, X)
    for choose in (
        offload_dots,
        lambda v: "recompute" if "recompute" in v.actions else "keep",
        lambda v: "offload" if "offload" in v.actions else "keep",
        lambda v: "offload" if v.primitive in ("tanh", "input", "scan") else "keep",
    ):
        plan = plan_by(loss, W, X, choose=choose)
        planned = jaxswap.checkpoint(loss, plan)
        found = jax.jit(jax.value_and_grad(planned, argnums=(0, 1)))(W, X)
        assert_same(expected, found)


def test_a_loop_is_not_run_again(monkeypatch):
    """The backward loop recomputes one iteration at a time, from carries in host memory."""
    monkeypatch.setattr(_compat, "misreads_reversed_slices", lambda: False)
    plan = plan_by(
        scanned, W, X, choose=lambda v: "offload" if v.name.endswith(".body/in0") else "recompute"
    )
    closed = jax.make_jaxpr(jax.grad(jaxswap.checkpoint(scanned, plan)))(W, X)
    assert count(closed.jaxpr, "scan") == 2
    assert count(closed.jaxpr, "dot_general") == 1 + 1 + 2
    assert count_offloads(closed) == 1
    assert "f32<host>[3,3,4]" in str(closed)


def test_an_xla_that_misreads_host_memory_in_loops_is_not_given_any(monkeypatch):
    monkeypatch.setattr(_compat, "misreads_reversed_slices", lambda: True)
    plan = plan_by(scanned, W, X, choose=offload_dots)
    with pytest.warns(UserWarning, match=r"1 values in loops, such as .* #46231"):
        closed = jax.make_jaxpr(jax.grad(jaxswap.checkpoint(scanned, plan)))(W, X)
    assert count_offloads(closed) == 0


def test_any_transformation_differentiates_it():
    plan = plan_by(unrolled, W, X, choose=offload_dots)
    planned = jaxswap.checkpoint(unrolled, plan)
    assert_same(unrolled(W, X), planned(W, X))
    assert_same(
        jax.jvp(unrolled, (W, X), (W, X)), jax.jit(lambda: jax.jvp(planned, (W, X), (W, X)))()
    )
    batch = jnp.stack([X, 2 * X])
    mapped = jax.vmap(jax.grad(planned), (None, 0))
    assert_same(jax.vmap(jax.grad(unrolled), (None, 0))(W, batch), jax.jit(mapped)(W, batch))
    product = lambda f: jax.jvp(jax.grad(f), (W, X), (W, X))[1]
    assert_same(product(unrolled), jax.jit(lambda: product(planned))(), 1e-5)


def test_gradients_of_gradients_recompute_what_was_to_be_offloaded():
    penalty = lambda f: jax.grad(lambda x: jnp.sum(jax.grad(f, argnums=1)(W, x) ** 2))
    planned = jaxswap.checkpoint(unrolled, plan_by(unrolled, W, X, choose=offload_dots))
    for derive in (penalty(planned), jax.jit(penalty(planned))):
        assert_same(penalty(unrolled)(X), derive(X), 1e-5)
    # One gradient is one, whatever else is around it.
    once = jax.make_jaxpr(jax.vmap(jax.grad(planned), (None, 0)))(W, jnp.stack([X, X]))
    assert count_offloads(once)
    # A `jit` hides the outer gradient, and JAX's own policies cannot do it either.
    hidden = jax.jit(jax.grad(planned, argnums=1))
    with pytest.raises(ValueError, match=r"Expected cotangent type .* but got .*<host>"):
        jax.grad(lambda x: jnp.sum(hidden(W, x) ** 2))(X)


def test_value_and_grad_with_aux_keywords_and_settings():
    def loss(w, x, *, scale, mode="plain"):
        value = unrolled(w, x) * scale
        return value, {"twice": 2 * value, "mode": mode}

    plan = plan_by(lambda w, x: loss(w, x, scale=2.0)[0], W, X, choose=offload_dots)
    planned = jaxswap.value_and_grad(loss, has_aux=True, plan=plan)
    expected = jax.value_and_grad(loss, has_aux=True)(W, X, scale=2.0, mode="loud")
    (value, aux), grads = planned(W, X, scale=2.0, mode="loud")
    assert aux.pop("mode") == expected[0][1].pop("mode") == "loud"
    assert_same(expected, ((value, aux), grads))


def test_random_keys_and_integers_pass_through():
    def loss(w, tokens, key):
        h = w[0][tokens]
        keep = jax.random.bernoulli(key, 0.7, h.shape)
        return jnp.mean(jnp.tanh(jnp.where(keep, h, 0.0) @ w[1]) ** 2)

    args = W, jnp.array([1, 3, 3]), jax.random.key(1)
    plan = plan_by(loss, *args, choose=lambda v: v.actions[-1])
    found = jax.jit(jax.grad(jaxswap.checkpoint(loss, plan)))(*args)
    assert_same(jax.grad(loss)(*args), found)


def test_a_budget_is_planned_for_when_traced(monkeypatch):
    seen = []

    def record(fn, *shapes, **settings):
        seen.append((len(name_values(fn, *shapes)), [s.shape for s in shapes], settings))
        return plan_by(unrolled, W, X, choose=offload_dots)

    monkeypatch.setattr(_explicit._api, "plan", record)
    planned = jaxswap.value_and_grad(unrolled, budget="2GiB", device="t4", planner="greedy")
    assert_same(jax.value_and_grad(unrolled)(W, X), jax.jit(planned)(W, X))
    planned(W, X)
    ((num_values, shapes, settings),) = seen
    assert num_values == len(name_values(jax.value_and_grad(unrolled), W, X))
    assert shapes == [W.shape, X.shape]
    assert settings["budget"] == "2GiB"
    assert (settings["device"], settings["planner"]) == ("t4", "greedy")


def test_a_budget_gives_a_plan_with_names_that_fit():
    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    args = [jnp.eye(256)] * 4, jnp.ones((2048, 256))
    planned = jaxswap.value_and_grad(loss, budget="13MiB", device="t4", planner="greedy")
    closed = jax.make_jaxpr(planned)(*args)
    assert count(closed.jaxpr, "remat2") == 1
    assert_same(jax.value_and_grad(loss)(*args), jax.jit(planned)(*args))


def test_an_empty_plan_changes_nothing():
    plan = plan_by(unrolled, W, X, choose=lambda v: "keep")
    planned = jaxswap.checkpoint(unrolled, plan)
    assert str(jax.make_jaxpr(jax.grad(planned))(W, X)) == str(
        jax.make_jaxpr(jax.grad(unrolled))(W, X)
    )
    assert planned.__name__ == "unrolled"


@hp.given(program=programs(), seed=st.integers(0, 1000))
@hp.settings(max_examples=15, derandomize=True)
def test_random_programs_and_random_plans(program, seed):
    loss, rng = build_loss(program), random.Random(seed)
    plan = plan_by(loss, W, X, choose=lambda v: rng.choice(v.actions))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_compat, "misreads_reversed_slices", lambda: False)
        planned = jax.jit(
            jax.value_and_grad(jaxswap.checkpoint(loss, plan), argnums=(0, 1)),
            compiler_options=COMPILE_FAST,
        )
        found = planned(W, X)
    plain = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)), compiler_options=COMPILE_FAST)
    assert_same(plain(W, X), found, 1e-5)


def test_auxiliary_results_that_are_no_arrays_are_passed_on():
    loss = lambda w, x: (unrolled(w, x), {"text": "a", "number": 3, "hidden": x[:1], "none": None})
    planned = jaxswap.value_and_grad(loss, has_aux=True, budget=60_000, device="t4", cache=False)
    (value, aux), grads = planned(W, X)
    (expected, expected_aux), expected_grads = jax.value_and_grad(loss, has_aux=True)(W, X)
    assert (aux["text"], aux["number"], aux["none"]) == ("a", 3, None)
    assert_same(
        (expected, expected_aux["hidden"], expected_grads), (value, aux["hidden"], grads), 1e-5
    )


def test_a_function_that_is_no_loss_is_refused_where_a_budget_is_given():
    layer = lambda w, x: jnp.tanh(x @ w[0])
    with pytest.raises(
        BadArgumentError, match=r"one number, and this function returns float32\[3,4\]"
    ):
        jax.vjp(jaxswap.checkpoint(layer, "1GiB", device="t4"), W, X)


def test_jaxs_next_checkpoint_is_refused():
    plan = plan_by(unrolled, W, X, choose=offload_dots)
    jax.config.update("jax_remat3", True)
    try:
        with pytest.raises(BadArgumentError, match="ignores policies that offload"):
            jax.grad(jaxswap.checkpoint(unrolled, plan))(W, X)
    finally:
        jax.config.update("jax_remat3", False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jaxswap.checkpoint("10GiB", unrolled), "takes a loss function first"),
        (lambda: jaxswap.value_and_grad(unrolled), "neither of `plan` and `budget`"),
        (
            lambda: jaxswap.value_and_grad(unrolled, plan=make_plan({}), budget="1GiB"),
            "both of `plan` and `budget`",
        ),
    ],
)
def test_bad_arguments_are_errors(call, message):
    with pytest.raises(BadArgumentError, match=message):
        call()


def test_a_plan_for_another_function_is_refused():
    plan = plan_by(unrolled, W, X, choose=offload_dots)
    shorter = lambda w, x: jnp.mean(jnp.tanh(x @ w[0]))
    with pytest.raises(BadArgumentError, match="values that this step does not have"):
        jax.grad(jaxswap.checkpoint(shorter, plan))(W, X)
    with pytest.raises(BadArgumentError, match=r"float32\[3,4\], and in this step it is"):
        jax.grad(jaxswap.checkpoint(unrolled, plan))(W, jnp.ones((5, 4)))
