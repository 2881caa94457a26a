"""Steps that are to be planned: traced once, with arguments that are not held."""

import jax
import jax.numpy as jnp

from jaxswap import _step
from jaxswap._step import Step
from jaxswap.model.device import Device
from jaxswap.program.trace import trace_program

T4 = Device.named("t4")


def train(w, x):
    return w - jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)


def make_args():
    return jnp.ones((512, 512)), jnp.ones((2048, 512))


def test_a_step_is_traced_when_it_is_looked_at_and_once(monkeypatch):
    traced, original = [], _step.trace_step
    monkeypatch.setattr(_step, "trace_step", lambda *a: traced.append(1) or original(*a))
    step = Step(fn=train, make_args=make_args, donated=(0,), device=T4)
    assert not traced
    assert step.program is step.program
    assert step.traced is step.traced
    assert len(traced) == 1
    assert step.program == trace_program(train, *make_args(), donate_argnums=0, device=T4)


def test_a_step_does_not_hold_its_arguments():
    before = {id(x) for x in jax.live_arrays()}
    step = Step(fn=train, make_args=make_args, donated=(0,), device=T4)
    assert step.program.ops
    assert [x.shape for x in jax.live_arrays() if id(x) not in before and x.size > 1] == []
