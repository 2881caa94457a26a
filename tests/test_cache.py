"""The plan cache: hits, monotone answers, broken files, two writers."""

import concurrent.futures
import dataclasses

import jax
import jax.numpy as jnp
import pytest

import jaxswap
from jaxswap import _step
from jaxswap._config import cache_dir, find_versions
from jaxswap.apply.decision import Decision
from jaxswap.model.simulate import Forecast
from jaxswap.plan.cache import PlanCache
from jaxswap.plan.plan import Plan, PlannedValue
from jaxswap.program.trace import fingerprint_step

PARTS = {"step": "s", "device": "t4"}


def make_plan(budget_bytes, step_s=1.0, **more):
    return Plan(
        decisions={"0/0": Decision(action="offload", window_ops=2)},
        values={"0/0": PlannedValue(size_bytes=4, shape=(2, 2))},
        forecast=Forecast(peak_bytes=1, step_s=step_s, stays=("0/0",)),
        budget_bytes=budget_bytes,
        device="t4",
        always_kept=("0/1",),
        **more,
    )


def test_what_was_stored_is_found_again(tmp_path):
    plan = make_plan(10, is_confirmed=True, compiled_bytes=9, replayed_s=0.5, hints={"f": 1.0})
    PlanCache(tmp_path, PARTS).store(plan)
    assert PlanCache(tmp_path, PARTS).load(10) == plan
    assert PlanCache(tmp_path, PARTS).load(11) is None
    assert PlanCache(tmp_path, PARTS | {"device": "l4"}).load(10) is None


def test_a_looser_budget_never_gets_a_slower_plan(tmp_path):
    cache = PlanCache(tmp_path, PARTS)
    cache.store(make_plan(10, 2.0))
    cache.store(make_plan(20, 3.0))
    assert cache.load(20).forecast.step_s == 2.0
    assert cache.load(20).budget_bytes == 20
    assert cache.load(10).forecast.step_s == 2.0
    assert cache.improve(make_plan(30, 1.0)).forecast.step_s == 1.0
    assert cache.improve(make_plan(5, 9.0)).forecast.step_s == 9.0


@pytest.mark.parametrize(("compiled_bytes", "expected_s"), [(10, 1.0), (11, 2.0)])
def test_a_plan_for_a_looser_budget_is_taken_if_its_compiled_step_fits(
    tmp_path, compiled_bytes, expected_s
):
    cache = PlanCache(tmp_path, PARTS)
    confirmed = {"is_confirmed": True, "compiled_bytes": 9}
    cache.store(make_plan(10, 2.0, replayed_s=2.0, **confirmed))
    confirmed["compiled_bytes"] = compiled_bytes
    cache.store(make_plan(20, 1.0, replayed_s=1.0, **confirmed))
    found = cache.load(10)
    assert (found.replayed_s, found.budget_bytes) == (expected_s, 10)


def test_plans_compare_by_what_is_known_of_both(tmp_path):
    cache = PlanCache(tmp_path, PARTS)
    cache.store(make_plan(10, 2.0))
    confirmed = make_plan(20, 3.0, is_confirmed=True, compiled_bytes=1, replayed_s=3.0)
    assert cache.improve(confirmed) == confirmed
    cache.store(make_plan(10, 9.0, is_confirmed=True, compiled_bytes=1, replayed_s=2.5))
    assert cache.improve(confirmed).replayed_s == 2.5


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "other"}', "\x00\xff"])
def test_a_broken_file_is_told_of_ignored_and_written_over(tmp_path, text):
    cache = PlanCache(tmp_path, PARTS)
    cache.store(make_plan(10))
    (path,) = cache.folder.glob("*.json")
    path.write_text(text, "latin-1")
    with pytest.warns(UserWarning, match="ignores .*10.json, and will write it anew"):
        assert cache.load(10) is None
    cache.store(make_plan(10))
    assert cache.load(10) == make_plan(10)


def test_a_plan_under_another_budgets_name_is_foreign(tmp_path):
    cache = PlanCache(tmp_path, PARTS)
    cache.store(make_plan(10))
    (cache.folder / "10.json").rename(cache.folder / "11.json")
    with pytest.warns(UserWarning, match="it is a plan for 10 bytes"):
        assert cache.load(11) is None


def test_a_place_that_cannot_be_written_to_is_said_and_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot keep plans in"):
        PlanCache(tmp_path / "file", PARTS).store(make_plan(10))


def test_writers_at_once_leave_one_whole_plan(tmp_path):
    plans = [make_plan(10, float(k)) for k in range(1, 40)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda plan: PlanCache(tmp_path, PARTS).store(plan), plans))
    assert PlanCache(tmp_path, PARTS).load(10) in plans
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXSWAP_CACHE_DIR", str(tmp_path / "here"))
    assert cache_dir() == tmp_path / "here"
    monkeypatch.delenv("JAXSWAP_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "jaxswap"
    assert set(find_versions()) == {"jax", "jaxlib", "jaxswap", "sources"}


def step(w, x):
    def loss(w):
        y = x
        for _ in range(6):
            y = jnp.tanh(y @ w)
        return jnp.sum(y)

    return w - jax.grad(loss)(w)


ARGS = (
    jax.ShapeDtypeStruct((256, 256), jnp.float32),
    jax.ShapeDtypeStruct((8192, 256), jnp.float32),
)


def test_a_step_is_planned_once(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXSWAP_CACHE_DIR", str(tmp_path))
    traced = []
    original = _step.trace_step
    monkeypatch.setattr(_step, "trace_step", lambda *a, **k: traced.append(1) or original(*a, **k))
    ask = lambda **more: jaxswap.plan(
        step, *ARGS, budget="50MiB", device="t4", planner="greedy", confirm=False, **more
    )
    first = ask()
    assert dataclasses.replace(ask(), forecast=first.forecast) == first
    assert len(traced) == 1
    ask(seed=1)
    ask(cache=False)
    assert len(traced) == 3


def test_a_fingerprint_is_of_the_step_and_its_shapes():
    assert fingerprint_step(step, *ARGS) == fingerprint_step(lambda *a: step(*a), *ARGS)
    other = jax.ShapeDtypeStruct((4096, 256), jnp.float32)
    assert fingerprint_step(step, *ARGS) != fingerprint_step(step, ARGS[0], other)
