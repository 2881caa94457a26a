"""`plan` and `apply` end to end on a small step, through the real GPU compiler."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxswap
from jaxswap._api import apply, plan
from jaxswap._attempt import Attempts
from jaxswap._errors import BadArgumentError, BudgetInfeasibleError, CompileError
from jaxswap.apply.decision import Decision
from jaxswap.model.simulate import Forecast
from jaxswap.plan.plan import Plan
from jaxswap.verify.verify import verify

LAYERS, WIDTH, BATCH = 6, 512, 4096
ARGS = (
    [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS,
    jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32),
)


def step(weights, x):
    """Deep enough that its activations are most of its memory."""

    def loss(weights):
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return jnp.mean(y**2)

    value, grads = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value


def make_plan(**changes):
    settings = {
        "decisions": {}, "values": {}, "forecast": Forecast(peak_bytes=1, step_s=1.0),
        "budget_bytes": 10, "device": "t4",
    }  # fmt: skip
    return Plan(**(settings | changes))


@pytest.mark.gpu_compile
def test_the_compiled_step_is_within_the_budget_and_computes_the_same():
    unplanned = verify(step, *ARGS, device="t4", donate_argnums=0)
    budget = int(0.7 * unplanned.device_bytes)
    found = plan(step, *ARGS, budget=budget, device="t4", planner="greedy", donate_argnums=0)
    assert found.is_confirmed
    planned = verify(step, *ARGS, device="t4", plan=found, donate_argnums=0)
    assert planned.device_bytes == found.compiled_bytes <= budget
    assert planned.step_s == found.replayed_s
    rng = np.random.default_rng(0)
    args = jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape) * 0.05, s.dtype), ARGS)
    expected, got = jax.jit(step)(*args), jax.jit(apply(step, found))(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), expected, got)


def test_a_step_that_fits_is_left_alone():
    found = plan(step, *ARGS, budget="10GiB", device="t4", confirm=False)
    assert found.is_empty
    assert not found.is_confirmed
    assert apply(step, found) is step


@pytest.mark.gpu_compile
def test_a_step_that_fits_once_compiled_is_left_alone_however_large_it_is_forecast():
    """A gradient per sample: XLA fuses what the forecast has in memory."""
    width, samples = 8, 16384

    def private_step(weights, x):
        loss = lambda w, row: jnp.mean((jnp.tanh(row @ w[0]) @ w[1]) ** 2)
        grads = jax.vmap(jax.grad(loss), (None, 0))(weights, x)
        norms = jax.vmap(lambda g: jnp.sqrt(sum(jnp.sum(each**2) for each in g)))(grads)
        scale = jnp.minimum(1.0, 1.0 / norms)
        return [
            w - jnp.einsum("b...,b->...", g, scale) for w, g in zip(weights, grads, strict=True)
        ]

    weights = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * 2
    args = weights, jax.ShapeDtypeStruct((samples, width), jnp.float32)
    needed = verify(private_step, *args, device="rtx4090").device_bytes
    forecast = plan(private_step, *args, budget="1GiB", device="rtx4090", confirm=False).forecast
    assert forecast.peak_bytes > 1.5 * needed, "no longer a test of that"
    found = plan(private_step, *args, budget=int(1.1 * needed), device="rtx4090", cache=False)
    assert (found.is_empty, found.compiled_bytes) == (True, needed)


def test_a_budget_below_the_floor_names_the_floor():
    with pytest.raises(BudgetInfeasibleError, match="Raise `budget` to at least"):
        plan(step, *ARGS, budget="1MiB", device="t4", planner="greedy", confirm=False)


@pytest.mark.parametrize(("budget", "is_possible"), [("24MiB", True), ("16MiB", False)])
def test_where_nothing_fits_that_is_what_is_said(budget, is_possible, monkeypatch):
    """Below its arguments, a step is not even compiled; above, the compiler may fail."""
    compiled = []

    def fail(self, plans):
        compiled.extend(plans)
        raise CompileError("no memory left")

    monkeypatch.setattr(Attempts, "compile_plans", fail)
    with pytest.raises(BudgetInfeasibleError, match="lowest peak"):
        plan(step, *ARGS, budget=budget, device="rtx4090", cache=False)
    assert [each.is_empty for each in compiled] == [True] * is_possible


def test_an_unknown_planner_is_named():
    with pytest.raises(BadArgumentError, match=r"`planner='best'` is not known: write one of"):
        plan(step, *ARGS, budget="40MiB", device="t4", planner="best", confirm=False)


def test_a_plan_for_another_step_is_refused():
    other = make_plan(decisions={"7/99": Decision(action="offload")})
    with pytest.raises(BadArgumentError, match="values that this step does not have"):
        jax.eval_shape(apply(step, other), *ARGS)


def test_the_functions_are_public():
    assert jaxswap.plan is plan
    assert jaxswap.apply is apply


def test_a_plan_for_a_device_of_ones_own_is_taken():
    # Which casts are values of their own depends on the device: only a known one can be checked.
    def half(weights, x):
        cast = lambda w: w.astype(jnp.bfloat16)
        loss = lambda ws: step([cast(w) for w in ws], cast(x))[1].astype(jnp.float32)
        return jax.grad(loss)(weights)

    own = dataclasses.replace(jaxswap.Device.named("rtx4090"), name="mine")
    found = plan(half, *ARGS, budget="40 MiB", device=own, planner="greedy", confirm=False)
    assert found.device == "mine"
    jax.eval_shape(apply(half, found), *ARGS)
