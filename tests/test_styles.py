"""`swap_offload` works unchanged in the ways people write training steps.

Each step runs three times, decorated and plainly jitted, with a plan that offloads and recomputes;
the results have the same bits (see `test_apply_numbers.py` for what XLA has to leave alone).
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as checkpoints
import pytest
from apply_steps import KEY, X, Y, accumulation, normal, two_losses
from flax import linen, nnx
from flax.training import dynamic_scale, train_state

import jaxswap
from jaxswap import swap_offload
from jaxswap.apply import apply_decisions, name_values
from jaxswap.apply.check import count_offloads
from jaxswap.apply.decision import Decision
from jaxswap.model.simulate import Forecast
from jaxswap.plan.plan import Plan, PlannedValue

OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


@pytest.fixture(autouse=True)
def _small_ops_count(monkeypatch):
    """Ops this small are not scheduled around by default, and nothing would be offloaded."""
    every_op = functools.partial(apply_decisions, min_heavy_bytes=0)
    monkeypatch.setattr(jaxswap._api, "apply_decisions", every_op)


def force_plan(step, args, **kwargs):
    """Offloads what matmuls make, recomputes what they are made from."""
    values = name_values(step, *args, **kwargs)
    decisions = {
        v.name: Decision(action="offload" if v.primitive == "dot_general" else "recompute")
        for v in values
        if v.primitive in ("dot_general", "tanh", "max", "mul") and "recompute" in v.actions
    }
    described = {
        v.name: PlannedValue(size_bytes=v.size_bytes, shape=v.shape, dtype=v.dtype) for v in values
    }
    return Plan(
        decisions=decisions,
        values={name: described[name] for name in decisions},
        forecast=Forecast(peak_bytes=1, step_s=1.0),
        budget_bytes=1,
        device="t4",
    )


def to_numpy(tree):
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [
        np.asarray(jax.random.key_data(x) if is_key(x) else x)
        for x in jax.tree.leaves(tree)
        if hasattr(x, "dtype")
    ]


def assert_same(expected, found, tolerance=0.0):
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for a, b in zip(to_numpy(expected), to_numpy(found), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.max(np.abs(a), initial=0))


def swap(step, args, **jit_kwargs):
    swapped = swap_offload(step, plan=force_plan(step, args), **jit_kwargs)
    assert count_offloads(swapped.trace(*args).jaxpr) >= 1
    return swapped


def train(step, args, times=3):
    """Feeds the first results back in; the rest of the arguments stay."""
    for _ in range(times):
        state = step(*args)
        args = (*state, *args[len(state) :])
    return state


def copy(tree):
    return jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, tree)


class Net(linen.Module):
    @linen.compact
    def __call__(self, x, is_training=False):
        x = jnp.tanh(linen.Dense(8)(x))
        x = linen.Dropout(0.3, deterministic=not is_training)(x)
        x = jnp.tanh(linen.Dense(8)(x))
        return linen.Dense(4)(x)


NET = Net()
PARAMS = {
    f"Dense_{k}": {"kernel": normal(a, b) / a**0.5, "bias": normal(b)}
    for k, (a, b) in enumerate([(6, 8), (8, 8), (8, 4)])
}


def mean_square(params, x, y):
    return jnp.mean((NET.apply({"params": params}, x) - y) ** 2)


def linen_train_state():
    state = train_state.TrainState.create(apply_fn=NET.apply, params=PARAMS, tx=optax.adamw(1e-2))

    def step(state, x, y):
        loss = lambda p: jnp.mean((state.apply_fn({"params": p}, x) - y) ** 2)
        return (state.apply_gradients(grads=jax.grad(loss)(state.params)),)

    return step, (state, X, Y)


class Model(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(6, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.second = nnx.Linear(8, 8, rngs=rngs)
        self.last = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        x = jnp.tanh(self.drop(self.norm(self.first(x))))
        return self.last(jnp.tanh(self.second(x)))


def nnx_optimizer():
    """Modules and optimizers as arguments and results."""
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)

    def step(model, optimizer, x, y):
        grads = nnx.grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
        optimizer.update(model, grads)
        return model, optimizer

    return step, (model, optimizer, X, Y)


def nnx_functional():
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def step(state, x, y):
        model, optimizer = nnx.merge(graph, state)
        loss = lambda m: jnp.mean((m(x) - y) ** 2)
        _, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return (nnx.state((model, optimizer)),)

    return step, (state, X, Y)


def equinox_module():
    model = eqx.nn.MLP(6, 4, 8, 2, activation=jnp.tanh, key=KEY)
    optimizer = optax.sgd(0.1)
    arrays, static = eqx.partition(model, eqx.is_array)

    def step(arrays, state, x, y):
        @eqx.filter_value_and_grad
        def loss(model):
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        model = eqx.combine(arrays, static)
        _, grads = loss(model)
        updates, state = optimizer.update(grads, state)
        return eqx.filter(eqx.apply_updates(model, updates), eqx.is_array), state

    return step, (arrays, optimizer.init(arrays), X, Y)


def multi_steps():
    optimizer = optax.MultiSteps(optax.adamw(1e-2), every_k_schedule=2)
    state = train_state.TrainState.create(apply_fn=NET.apply, params=PARAMS, tx=optimizer)

    def step(state, x, y):
        grads = jax.grad(mean_square)(state.params, x, y)
        return (state.apply_gradients(grads=grads),)

    return step, (state, X, Y)


def dynamic_loss_scale():
    scale = dynamic_scale.DynamicScale(
        growth_interval=2, fin_steps=jnp.int32(0), scale=jnp.float32(2.0**10)
    )

    def step(params, scale, x, y):
        differentiate = scale.value_and_grad(lambda p: mean_square(p, x, y))
        scale, is_finite, _, grads = differentiate(params)
        updated = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return jax.tree.map(lambda a, b: jnp.where(is_finite, a, b), updated, params), scale

    return step, (PARAMS, scale, X, Y)


def dropout():
    def step(params, key, x, y):
        key, mask = jax.random.split(key)

        def loss(p):
            out = NET.apply({"params": p}, x, True, rngs={"dropout": mask})
            return jnp.mean((out - y) ** 2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params)), key

    return step, (PARAMS, KEY, X, Y)


def averaged_parameters():
    def step(params, average, x, y):
        grads = jax.grad(mean_square)(params, x, y)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return params, optax.incremental_update(params, average, 0.1)

    return step, (PARAMS, copy(PARAMS), X, Y)


def gan():
    step, args = two_losses()
    return lambda *xs: step(*xs)[:2], args


def micro_batches():
    step, args = accumulation()
    return lambda *xs: step(*xs)[:1], args


STYLES = {
    "linen TrainState": linen_train_state,
    "nnx.Optimizer": nnx_optimizer,
    "nnx, split and merged": nnx_functional,
    "Equinox": equinox_module,
    "optax.MultiSteps": multi_steps,
    "dynamic_scale": dynamic_loss_scale,
    "dropout": dropout,
    "averaged parameters": averaged_parameters,
    "two losses": gan,
    "micro-batches in a scan": micro_batches,
}


# XLA writes a mapped matrix-vector product in one of two ways, depending on its neighbours.
INEXACT = ("Equinox",)


@pytest.mark.parametrize("name", STYLES)
def test_three_steps_are_the_same(name):
    step, args = STYLES[name]()
    plain = jax.jit(lambda *xs: step(*xs), compiler_options=OPTIONS)
    expected = train(plain, copy(args))
    found = train(swap(step, args, donate_argnums=0, compiler_options=OPTIONS), copy(args))
    assert_same(expected, found, 1e-6 if name in INEXACT else 0)
    pairs = zip(to_numpy(args[0]), to_numpy(found[0]), strict=True)
    assert not all(np.array_equal(before, after) for before, after in pairs)


def test_nnx_jit_around_it_updates_modules_in_place():
    step, args = nnx_optimizer()
    expected = train(jax.jit(lambda *xs: step(*xs)), copy(args))
    swapped = swap(step, args)

    @nnx.jit
    def run(model, optimizer, x, y):
        nnx.update((model, optimizer), nnx.state(swapped(model, optimizer, x, y)))

    for _ in range(3):
        run(*args)
    for a, b in zip(to_numpy(expected), to_numpy(args[:2]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_equinox_modules_go_through_apply_and_filter_jit():
    model = eqx.nn.MLP(6, 4, 8, 2, activation=jnp.tanh, key=KEY)
    arrays, static = eqx.partition(model, eqx.is_array)

    @eqx.filter_value_and_grad
    def loss(model, x, y):
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    plan = force_plan(lambda arrays: loss(eqx.combine(arrays, static), X, Y), (arrays,))
    step = lambda model, x, y: loss(model, x, y)
    expected = eqx.filter_jit(step)(model, X, Y)
    found = eqx.filter_jit(jaxswap.apply(step, plan))(model, X, Y)
    for a, b in zip(to_numpy(expected), to_numpy(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_orbax_saves_and_restores_in_the_middle(tmp_path):
    step, args = linen_train_state()
    swapped = swap(step, args, donate_argnums=0)
    expected = train(swapped, copy(args), times=4)
    (halfway,) = train(swapped, copy(args), times=2)
    with checkpoints.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", halfway)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", halfway)
    assert_same(expected, train(swapped, (restored, *args[1:]), times=2))
