"""`swap_offload` behaves like `jax.jit`, plans once per signature, and says what it does."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxswap
from jaxswap import swap_offload
from jaxswap._errors import BadArgumentError, UnknownDeviceError
from jaxswap.apply.decision import Decision
from jaxswap.model.simulate import Forecast
from jaxswap.plan.plan import Plan


def step(w, x, scale=1.0):
    """Descends."""

    def loss(w):
        y = x
        for _ in range(3):
            y = jnp.tanh(y @ w)
        return jnp.mean(y**2)

    return w - scale * jax.grad(loss)(w)


# Large enough that its ops are worth scheduling around (1 MiB).
W, X = jnp.eye(512) * 0.5, jnp.ones((512, 512))
OFFLOAD = Plan(
    decisions={"0/0": Decision(action="offload")},  # the first dot
    values={},
    forecast=Forecast(peak_bytes=1, step_s=1.0),
    budget_bytes=1,
    device="t4",
)


def test_it_is_used_with_and_without_arguments():
    bare, called = swap_offload(step), swap_offload(device="t4", confirm=False)(step)
    for swapped in (bare, called):
        np.testing.assert_array_equal(swapped(W, X), jax.jit(step)(W, X))
        assert swapped.__name__ == "step"
        assert swapped.__doc__ == "Descends."
        assert swapped.__wrapped__ is step


def test_a_given_plan_is_followed_and_computes_the_same():
    swapped = swap_offload(step, plan=OFFLOAD)
    assert str(jax.make_jaxpr(swapped)(W, X)).count("MemorySpace.Host") == 1
    np.testing.assert_array_equal(swapped(W, X), jax.jit(step)(W, X))
    assert swapped.plan_for(W, X) is OFFLOAD


def test_there_is_one_plan_per_signature(monkeypatch):
    made = []

    def count(fn, *args, **settings):
        made.append([a.shape for a in args])
        return jaxswap.Plan(**{f: getattr(OFFLOAD, f) for f in OFFLOAD.__dataclass_fields__})

    monkeypatch.setattr(jaxswap._api, "plan", count)
    swapped = swap_offload(step, device="t4", donate_argnums=())
    for batch in (4, 4, 6, 4, 6):
        swapped(W, jnp.ones((batch, 512)))
    assert made == [[(512, 512), (4, 512)], [(512, 512), (6, 512)]]


def test_on_a_cpu_without_a_device_it_jits_plainly_and_says_why(caplog):
    with caplog.at_level(logging.WARNING, logger="jaxswap"):
        assert swap_offload(step).plan_for(W, X) is None
    assert "memory kinds do nothing on the cpu backend" in caplog.text
    assert 'device="rtx4090"' in caplog.text


def test_one_line_says_what_was_planned(caplog):
    with caplog.at_level(logging.INFO, logger="jaxswap"):
        swap_offload(step, device="t4", confirm=False).plan_for(W, X)
    (record,) = [r for r in caplog.records if r.name == "jaxswap"]
    assert record.getMessage().startswith("step on t4: fits as it is")


def test_static_and_keyword_arguments_pass_through():
    swapped = swap_offload(step, static_argnames="scale", plan=OFFLOAD)
    np.testing.assert_array_equal(swapped(W, X, scale=2.0), jax.jit(step)(W, X, 2.0))
    np.testing.assert_array_equal(swapped(W, x=X), jax.jit(step)(W, X))


def test_it_works_inside_jit_and_without_jit():
    swapped = swap_offload(step, plan=OFFLOAD)
    np.testing.assert_array_equal(jax.jit(swapped)(W, X), jax.jit(step)(W, X))
    with jax.disable_jit():
        np.testing.assert_allclose(swapped(W, X), step(W, X), rtol=1e-6)


def test_donated_arguments_are_known_to_the_planner(monkeypatch):
    seen = {}

    def record(fn, *args, donate_argnums, **settings):
        seen["donated"] = donate_argnums
        return OFFLOAD

    monkeypatch.setattr(jaxswap._api, "plan", record)
    swapped = swap_offload(lambda s, x: step(s["w"], x), device="t4", donate_argnums=(0,))
    swapped.lower({"a": jnp.ones(3), "w": W}, X)
    assert seen["donated"] == (0, 1)


def test_lower_and_trace_are_those_of_jit():
    assert "tanh" in swap_offload(step, plan=OFFLOAD).lower(W, X).as_text()


def test_bad_settings_are_said_at_once():
    with pytest.raises(UnknownDeviceError):
        swap_offload(step, device="no-such-gpu")
    with pytest.raises(BadArgumentError, match="it takes a function"):
        swap_offload("10GiB")
