"""A report from a step: traced, compiled where asked, with the front of other budgets."""

import functools
import itertools

import jax
import jax.numpy as jnp
import pytest
from programs import UNIT, blocks

import jaxswap
from jaxswap.demo import step as demo_step
from jaxswap.plan.base import run_planner
from jaxswap.plan.plan import make_plan
from jaxswap.plan.problem import Problem
from jaxswap.report.front import find_front
from jaxswap.report.make import make_report
from jaxswap.report.policies import POLICIES
from jaxswap.report.rows import FrontPoint
from jaxswap.verify import target

WIDTH, BATCH, LAYERS = 512, 4096, 12


def loss(ws, x):
    for number, w in enumerate(ws):
        with jax.named_scope(f"Block_{number}"):
            x = jnp.tanh(x @ w)
    return jnp.sum(x * x)


def train(ws, x):
    return jax.tree.map(lambda w, g: w - g, ws, jax.grad(loss)(ws, x))


ARGS = ([jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS,
        jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32))  # fmt: skip


def plan_for(budget):
    return jaxswap.plan(
        train, *ARGS, budget=budget, device="t4", planner="greedy", donate_argnums=0, confirm=False
    )


def test_a_report_without_the_compiler_is_all_forecast():
    said = []
    report = make_report(
        train, *ARGS, plan=plan_for("80MiB"), donate_argnums=0, verify=False,
        progress=lambda done, total, label: said.append(label),
    )  # fmt: skip
    assert {figure.how for figure in report.figures} == {"forecast"}
    assert report.title == "train"
    assert report.groups[0].block == "Block_*"
    assert report.decisions[0].source.startswith("tests/test_report_make.py:")
    assert said == ["tracing", "planning for other budgets", "done"]
    assert {streams.how for streams in (report.streams_before, report.streams_after)} == {
        "forecast"
    }
    assert report.streams_after.step_s == report.best("step time").after


def test_a_report_always_has_a_front_with_jaxs_policies():
    plan = plan_for("80MiB")
    more = FrontPoint(label="mine", size_bytes=2**26, step_s=1.0, how="compiled", kind="policy")
    build = functools.partial(
        make_report, train, *ARGS, plan=plan, donate_argnums=0, verify=False, fronts=(more,)
    )
    points = build().fronts
    assert {p.kind for p in points} == {"written", "plan", "policy", "chosen"}
    assert [p.label for p in points if p.kind == "policy"] == [
        *(policy.name for policy in POLICIES), "mine"
    ]  # fmt: skip
    assert {p.kind for p in build(num_budgets=0).fronts} == {"written", "policy", "chosen"}


@pytest.mark.gpu_compile
def test_a_report_has_the_compilers_word():
    plan = plan_for("90MiB")
    report = make_report(train, *ARGS, plan=plan, donate_argnums=0, title="mine")
    after = jaxswap.verify(train, *ARGS, device="t4", plan=plan, donate_argnums=0)
    assert report.best("device memory").after == after.device_bytes
    assert report.best("step time").after == after.step_s
    assert report.curve_after.peak_bytes == after.memory.peak_bytes
    assert len(report.streams_after.slices) == len(after.timeline.events)
    # Who is in the peak is said with the line that made it.
    alive = report.curve_before.alive_at(report.curve_before.peak_op)
    assert any(holder.source.startswith("test_report_make.py:") for holder in alive)


@pytest.mark.gpu_compile
def test_a_plan_that_was_just_confirmed_is_not_compiled_again(monkeypatch):
    compiled, compile_here = [], target.compile_here
    monkeypatch.setattr(
        target, "compile_here", lambda *job: compiled.append(job) or compile_here(*job)
    )
    monkeypatch.setattr(target, "_answers", {})
    settings = {"device": "t4", "donate_argnums": 0}
    plan = jaxswap.plan(train, *ARGS, budget="90MiB", planner="greedy", cache=False, **settings)
    assert plan.is_confirmed
    confirming = len(compiled)
    report = make_report(train, *ARGS, plan=plan, **settings)
    assert len(compiled) == confirming + 1  # the step as written
    assert report.best("device memory").after == plan.compiled_bytes
    make_report(train, *ARGS, plan=plan, **settings)
    assert len(compiled) == confirming + 1


@pytest.mark.gpu_compile
def test_a_step_that_fits_is_compiled_once():
    plan = plan_for("1GiB")
    assert plan.is_empty
    report = make_report(train, *ARGS, plan=plan, donate_argnums=0)
    assert report.curve_before == report.curve_after


def test_the_front_falls_and_has_the_plan():
    program = blocks(6)
    problem = Problem(program=program, device=UNIT, budget_bytes=0)
    problem = problem.at_budget(int(0.7 * problem.baseline.peak_bytes))
    plan = make_plan(problem, run_planner(problem, "greedy"))
    points = find_front(program, UNIT, plan, num_budgets=5)
    front = sorted((p for p in points if p.kind == "plan"), key=lambda p: p.size_bytes)
    assert len(front) > 1
    assert all(a.step_s >= b.step_s for a, b in itertools.pairwise(front))
    assert (points[0].kind, points[-1].kind) == ("written", "chosen")
    assert points[-1].size_bytes == plan.forecast.peak_bytes


def test_the_demo_step_trains():
    step, (state, tokens), donated = demo_step(
        layers=1, width=32, heads=2, vocab=64, seq=16, batch=4
    )
    key = jax.random.key(0)
    state = jax.tree.map(
        lambda leaf: (
            jax.random.normal(key, leaf.shape) * 0.1
            if leaf.dtype == jnp.float32
            else jnp.zeros(leaf.shape, leaf.dtype)
        ),
        state,
    )
    zeros = jax.tree.map(jnp.zeros_like, state["params"])
    state = state | {"mean": zeros, "square": zeros}
    batch = jax.random.randint(key, tokens.shape, 0, 64)
    losses = []
    for _ in range(20):
        state, found = jax.jit(step)(state, batch)
        losses.append(float(found))
    assert losses[-1] < 0.9 * losses[0]
    assert donated == (0,)
