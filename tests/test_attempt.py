"""Attempts: what a planner has answered before is not asked again, and is the same plan."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxswap import _attempt
from jaxswap._api import plan_to_beat
from jaxswap._attempt import Asked, Attempts
from jaxswap._step import Step
from jaxswap.model.device import Device
from jaxswap.plan.base import run_planner
from jaxswap.plan.problem import Problem

ARGS = (
    jax.ShapeDtypeStruct((256, 256), jnp.float32),
    jax.ShapeDtypeStruct((8192, 256), jnp.float32),
)
BUDGET = 50 * 2**20
GREEDY = Asked(planner="greedy", confirm=False)


def train(w, x):
    def loss(w):
        y = x
        for _ in range(6):
            y = jnp.tanh(y @ w)
        return jnp.sum(y)

    return w - jax.grad(loss)(w)


def make_step():
    return Step(fn=train, make_args=lambda: ARGS, donated=(0,), device=Device.named("t4"))


def make_attempts(known_by=None):
    step = make_step()
    problem = Problem(program=step.program, device=step.device, budget_bytes=BUDGET)
    known = run_planner(problem, known_by) if known_by else None
    return Attempts(
        step=step, args=ARGS, asked=GREEDY, problem=problem, known=known, show=lambda *_: None
    )


def test_what_is_known_is_the_answer_for_its_own_budget_and_link_only(monkeypatch):
    attempts, asked = make_attempts("greedy"), []
    expected = make_attempts().search(BUDGET)

    def note(problem, *args, **settings):
        asked.append((problem.budget_bytes, problem.device.to_host.bandwidth_bytes_per_s))
        return run_planner(problem, *args, **settings)

    monkeypatch.setattr(_attempt, "run_planner", note)
    assert attempts.search(BUDGET) == expected
    assert not asked
    bandwidth = attempts.step.device.to_host.bandwidth_bytes_per_s
    attempts.search(BUDGET - 2**20)
    attempts.search(BUDGET, 2.0)
    assert attempts.search(BUDGET, math.inf).names("offload") == ()
    assert asked == [(BUDGET - 2**20, bandwidth), (BUDGET, bandwidth / 2), (BUDGET, bandwidth)]


def test_a_plan_is_the_same_with_what_is_known_and_without():
    attempts = make_attempts("greedy")
    ask = lambda **more: plan_to_beat(
        math.inf, make_step(), BUDGET, GREEDY, None, cache=False, **more
    )
    assert not ask().is_empty
    assert ask(known=attempts.known) == ask()
    other = dataclasses.replace(attempts.known, decisions={})
    assert ask(known=other) != ask()
