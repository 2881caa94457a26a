"""Bad input: every mistake gets its own message, which says what would work."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import jaxswap
from jaxswap import swap_offload
from jaxswap._errors import BadArgumentError, BudgetInfeasibleError, JaxswapError
from jaxswap.apply.decision import Decision

LAYERS, WIDTH, BATCH = 4, 256, 2048


@pytest.fixture(autouse=True)
def _own_plans(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXSWAP_CACHE_DIR", str(tmp_path))


def step(weights, x):
    def loss(weights):
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return jnp.mean(y**2)

    return [w - g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]


def shapes(layers=LAYERS, width=WIDTH, batch=BATCH, dtype=jnp.float32):
    array = lambda *shape: jax.ShapeDtypeStruct(shape, dtype)
    return [array(width, width)] * layers, array(batch, width)


@pytest.fixture(scope="module")
def plan():
    found = jaxswap.plan(
        step, *shapes(), budget="12MiB", device="t4", planner="greedy", confirm=False, cache=False
    )
    assert not found.is_empty
    return found


# ---- a plan for another step ----


def test_a_plan_fits_the_step_it_was_made_for(plan):
    assert jax.eval_shape(jaxswap.apply(step, plan), *shapes())[0].shape == (WIDTH, WIDTH)


def test_names_that_another_step_does_not_have_are_named(plan):
    shorter = lambda weights, x: jax.grad(lambda w: jnp.sum(w[0]))(weights)
    with pytest.raises(BadArgumentError, match=r"values that this step does not have, such as '0/"):
        jax.eval_shape(jaxswap.apply(shorter, plan), *shapes())


def test_fewer_layers_are_another_step(plan):
    with pytest.raises(BadArgumentError, match=r"float32\[2048,256\], and in this step it is"):
        jax.eval_shape(jaxswap.apply(step, plan), *shapes(layers=1))


@pytest.mark.parametrize(
    ("change", "planned", "found"),
    [
        ({"batch": 1024}, "float32[2048,256]", "float32[1024,256]"),
        ({"dtype": jnp.bfloat16}, "float32[2048,256]", "bfloat16[2048,256]"),
    ],
)
def test_other_arguments_are_named(plan, change, planned, found):
    with pytest.raises(BadArgumentError) as caught:
        jax.eval_shape(jaxswap.apply(step, plan), *shapes(**change))
    message = str(caught.value)
    assert f"as {planned}, and in this step it is {found}" in message
    assert f"fingerprint {plan.fingerprint}, here " in message
    assert "Plan this step, with these shapes." in message


def test_the_fingerprints_of_equal_steps_are_equal(plan):
    again = jaxswap.plan(
        step, *shapes(), budget="13MiB", device="t4", planner="greedy", confirm=False, cache=False
    )
    assert again.fingerprint == plan.fingerprint


def test_a_planned_value_may_go_by_the_name_of_what_it_is_cast_from():
    """Its dtype is then not that of the named value: this is no reason to refuse the plan."""

    def cast(w, x):
        loss = lambda w: jnp.mean(((x @ w).astype(jnp.bfloat16) ** 3).astype(jnp.float32) @ w)
        return jax.grad(loss)(w)

    args = jax.ShapeDtypeStruct((256, 256), jnp.float32), shapes()[1]
    plan = jaxswap.plan(cast, *args, budget="10GiB", device="t4", planner="greedy", confirm=False)
    (name, value) = next((n, v) for n, v in plan.values.items() if v.dtype == "bfloat16")
    borrowed = dataclasses.replace(
        plan, decisions={**plan.decisions, name: Decision(action="recompute")}
    )
    assert jax.eval_shape(jaxswap.apply(cast, borrowed), *args).shape == (256, 256)
    wrong = dataclasses.replace(
        borrowed, values={**plan.values, name: dataclasses.replace(value, shape=(3,))}
    )
    with pytest.raises(BadArgumentError, match=r"as bfloat16\[3\], and in this step it is"):
        jax.eval_shape(jaxswap.apply(cast, wrong), *args)


# ---- arguments that are no arrays ----


class Config:
    def __repr__(self):
        return "Config(" + ", ".join(f"option_{k}=1" for k in range(20)) + ")"


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (
            (jnp.eye(2), "train"),
            {},
            r"`mode` of `train` is 'train', of type `str`.*`static_argnames=\"mode\"`",
        ),
        ((jnp.eye(2),), {"mode": "eval"}, r"`mode` of `train` is 'eval'"),
        (
            ({"w": jnp.eye(2), "config": Config()},),
            {},
            r"`w\['config'\]` of `train` is Config\(option_0=1.*…, of type `Config`",
        ),
        ((jnp.eye(2), 1, object()), {}, r"Argument 2 of `train` is <object.*`static_argnums=2`"),
    ],
)
@pytest.mark.parametrize("way", ["call", "lower", "plan_for", "report"])
def test_an_argument_that_is_no_array_is_named(way, args, kwargs, message):
    def train(w, mode=0, *rest):
        return jax.tree.map(lambda x: x, w)

    swapped = swap_offload(train)
    run = swapped if way == "call" else getattr(swapped, way)
    with pytest.raises(BadArgumentError, match=message):
        run(*args, **kwargs)


def test_static_arguments_are_not_complained_about():
    def train(w, mode, config):
        if config is None:
            raise TypeError("in the step itself")
        return w

    swapped = swap_offload(train, static_argnums=1, static_argnames="config")
    assert swapped(jnp.eye(2), "train", config="x").shape == (2, 2)
    with pytest.raises(TypeError, match="in the step itself"):
        swapped(jnp.eye(2), "train", config=None)


# ---- budgets, devices, planners ----


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": "ten gigabytes"}, "`budget='ten gigabytes'`"),
        ({"budget": "-3GiB"}, "`budget='-3GiB'`"),
        ({"budget": 0}, "`budget=0` leaves no memory at all"),
        ({"budget": -5}, "`budget=-5` leaves no memory at all"),
        ({"budget": 1.5}, "`budget=1.5` is neither bytes nor a share"),
        ({"budget": True}, "`budget=True` is not a size"),
        ({"host_budget": "lots"}, "`host_budget='lots'`"),
        ({"planner": "best"}, "`planner='best'` is not known"),
    ],
)
def test_settings_that_mean_nothing_are_named_at_the_first_call(settings, message):
    swapped = swap_offload(step, device="t4", confirm=False, **({"budget": "10MiB"} | settings))
    with pytest.raises(BadArgumentError, match=message):
        swapped.plan_for(*shapes())


def test_a_budget_below_the_floor_says_the_floor():
    swapped = swap_offload(step, device="t4", budget="1MiB", planner="greedy", confirm=False)
    with pytest.raises(
        BudgetInfeasibleError, match=r"budget=1\.00 MiB.*Raise `budget` to at least"
    ):
        swapped.plan_for(*shapes())


def test_an_unknown_device_is_named_at_once():
    with pytest.raises(JaxswapError, match="no-such-gpu"):
        swap_offload(step, device="no-such-gpu")


def test_a_setting_that_jit_does_not_have_is_refused_at_once():
    with pytest.raises(TypeError, match="colour"):
        swap_offload(step, colour="red")
