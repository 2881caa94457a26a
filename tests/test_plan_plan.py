"""Plans: what they say, that files give back what was saved, and every refusal."""

import copy
import dataclasses
import json
import pickle

import jax
import jax.numpy as jnp
import programs
import pytest
from jax.ad_checkpoint import checkpoint_name

from jaxswap._errors import BadArgumentError
from jaxswap.apply.decision import Decision
from jaxswap.model.simulate import Forecast
from jaxswap.plan.base import run_planner
from jaxswap.plan.plan import Plan, PlannedValue, make_plan
from jaxswap.plan.problem import Problem


@pytest.fixture
def plan():
    program = programs.chain([4, 5, 6, 3], base_bytes=1)
    problem = Problem(
        program=program, device=programs.UNIT, budget_bytes=15, efficiency=programs.EXACT
    )
    return make_plan(problem, run_planner(problem, "exact", seed=3), seed=3)


def test_a_plan_has_a_decision_for_every_candidate_in_program_order(plan):
    assert list(plan.decisions) == list(plan.values) == ["a0", "a1", "a2", "a3"]
    assert plan.decisions["a3"] == Decision(action="keep")
    assert plan.values["a1"].size_bytes == 5
    assert not plan.is_empty
    assert (plan.device, plan.planner, plan.seed) == ("unit", "exact", 3)
    assert (plan.fingerprint, plan.is_confirmed) == ("test", False)
    assert plan.forecast.peak_bytes <= 15 < plan.forecast.baseline.peak_bytes
    total = sum(plan.size_bytes(action) for action in ("keep", "offload", "recompute"))
    assert total == 4 + 5 + 6 + 3


def test_a_plan_cannot_be_changed(plan):
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.seed = 1
    with pytest.raises(TypeError):
        plan.decisions["a0"] = Decision(action="keep")
    assert copy.deepcopy(plan) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_a_file_gives_back_what_was_saved(plan, tmp_path):
    path = tmp_path / "plan.json"
    plan.save(path)
    loaded = Plan.load(path)
    assert loaded == plan
    assert loaded.forecast.baseline == plan.forecast.baseline
    # One line per decision, so that two plans compare line by line.
    lines = [line for line in path.read_text().splitlines() if '"action"' in line]
    assert len(lines) == len(plan.decisions)
    empty = dataclasses.replace(plan, decisions={}, values={}, host_budget_bytes=7)
    empty.save(path)
    assert Plan.load(path) == empty


def test_plans_that_differ_in_one_decision_print_one_line_apart(plan):
    other = dict(plan.decisions) | {"a0": Decision(action="offload", window_ops=9)}
    changed = dataclasses.replace(plan, decisions=other)
    different = set(str(changed).splitlines()[3:]) - set(str(plan).splitlines()[3:])
    assert different == {"offload    a0  4 B  window 9, ahead 0"}
    assert str(plan).startswith("plan for 15 B on unit: ")
    assert "unplanned: 19 B on the device" in str(plan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="other"), r'"format": "jaxswap.plan"'),
        (lambda d: d.update(version=99), r"not a plan file: it is of version 99.*version 2"),
        (lambda d: d.pop("device"), r"lacks device.*Plan.save"),
        (lambda d: d.update(extra=1), r"has unknown extra"),
        (lambda d: d.update(seed="x"), r"has `seed` = 'x'.*int there"),
        (lambda d: d.update(seed=True), r"has `seed` = True.*int there"),
        (lambda d: d.update(is_confirmed=0), r"`is_confirmed` = 0.*bool there"),
        (lambda d: d["forecast"].pop("step_s"), r"forecast.*lacks step_s"),
        (lambda d: d["forecast"]["baseline"].pop("step_s"), r"baseline.*lacks step_s"),
        (lambda d: d["decisions"].update(a0=3), r"decision 'a0'.*is 3"),
        (lambda d: d["decisions"]["a0"].update(action="burn"), r"a0.*not possible.*burn"),
        (lambda d: d["decisions"]["a0"].update(window_ops=0), r"a0.*window_ops >= 1"),
        (lambda d: d["decisions"]["a0"].update(shape=3), r"`shape` = 3.*list there"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(plan, tmp_path, change, message):
    path = tmp_path / "plan.json"
    plan.save(path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(BadArgumentError, match=message):
        Plan.load(path)


def test_a_file_that_is_not_there_or_not_json_is_refused(tmp_path):
    with pytest.raises(BadArgumentError, match=r"No plan can be read.*Plan.save"):
        Plan.load(tmp_path / "nothing.json")
    (tmp_path / "text.json").write_text("hello")
    with pytest.raises(BadArgumentError, match=r"not JSON"):
        Plan.load(tmp_path / "text.json")


def test_the_policy_saves_what_is_kept_and_recomputes_the_rest():
    actions = {"a": "keep", "b": "recompute", "c": "recompute"}
    plan = Plan(
        decisions={name: Decision(action=action) for name, action in actions.items()},
        values={name: PlannedValue(size_bytes=4) for name in actions},
        forecast=Forecast(peak_bytes=1, step_s=1.0),
        budget_bytes=1,
        device="unit",
    )

    def loss(x):
        for name in ("a", "b", "c"):
            x = checkpoint_name(jnp.sin(x), name)
        return x

    saved = jax.make_jaxpr(jax.grad(jax.checkpoint(loss, policy=plan.policy())))(1.0)
    text = str(saved)
    # Three sines forward; of the backward pass only those after `a` run again.
    again = text[text.index("checkpoint") if "checkpoint" in text else text.index("remat") :]
    assert text.count(" sin ") - again.count(" sin ") == 3
    assert again.count(" sin ") in (1, 2)


def test_the_policy_knows_what_is_offloaded(plan):
    offloaded = dataclasses.replace(
        plan,
        decisions={"a0": Decision(action="offload"), "a1": Decision(action="keep")},
        values={name: plan.values[name] for name in ("a0", "a1")},
    )
    assert offloaded.names("offload") == ("a0",)
    assert callable(offloaded.policy())
