"""The examples: each trains the same with jaxswap as without, by plans that do something.

Small versions of each, a few steps. Values below 1 MiB are left alone by plans, which is what
bounds the sizes from below.
"""

import importlib.util
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

import jax
import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
SIZES = {
    "char_gpt": {"batch": 64, "seq": 64, "layers": 1, "width": 64},
    "resnet_nnx": {"batch": 64, "size": 16, "widths": (16, 32)},
    "accumulate": {"micro_batches": 2, "batch": 1024, "layers": 3, "width": 256},
    "mixer_equinox": {"batch": 64, "size": 32, "width": 64, "layers": 1},
}
STEPS = 2


def load(path):
    """An example as its folder's name, since all are called `train`."""
    spec = importlib.util.spec_from_file_location(f"example_{path.parent.name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def example(request, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    return load(EXAMPLES / request.param / "train.py")


@pytest.mark.parametrize("example", SIZES, indirect=True)
def test_trains_the_same(example, request, capsys):
    sizes = SIZES[request.node.callspec.params["example"]]
    outcome = example.run(steps=STEPS, device="rtx4090", planner="greedy", **sizes)
    assert not outcome.plan.is_empty
    assert outcome.plan.forecast.peak_bytes <= outcome.plan.budget_bytes
    assert outcome.plan.budget_bytes < outcome.plan.forecast.baseline.peak_bytes
    # Adam makes steps of one size from gradients of any size: rounding shows in the smallest.
    assert outcome.difference <= 3e-4
    assert outcome.offload_plan.names("offload")
    assert not outcome.offload_plan.names("recompute")
    assert outcome.offload_difference == 0
    assert len(outcome.plain_losses) == len(outcome.swapped_losses) == STEPS
    np.testing.assert_allclose(outcome.plain_losses, outcome.swapped_losses, rtol=1e-5)
    assert outcome.plain_losses[0] != outcome.plain_losses[1]  # it does train
    assert "with jaxswap: step   2" in capsys.readouterr().out


def test_every_example_is_here():
    assert {path.parent.name for path in EXAMPLES.glob("*/train.py")} == set(SIZES)


@pytest.fixture
def side_by_side(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    return importlib.import_module("side_by_side")


def test_differences_are_relative_and_none_for_equal_bits(side_by_side):
    a = [np.array([100.0, 1.0]), np.zeros(0)]
    assert side_by_side.find_difference(a, [x.copy() for x in a]) == 0
    assert side_by_side.find_difference(a, [np.array([100.0, 2.0]), a[1]]) == 0.01
    assert side_by_side.find_difference([np.float32(0)], [np.float32(1e-7)]) > 1


@pytest.mark.parametrize("losses", [(2.0,), (1.0, 1.0), (3.0, 2.0, 1.5)])
def test_the_picture_has_both_curves(side_by_side, tmp_path, losses):
    outcome = side_by_side.Outcome(
        plain_losses=losses, swapped_losses=losses, plan=None, difference=0.0, offload_plan=None,
        offload_difference=0.0,
    )  # fmt: skip
    side_by_side.draw(outcome, tmp_path / "loss.svg", "a & b")
    root = ElementTree.parse(tmp_path / "loss.svg").getroot()
    curves = [e.get("points") for e in root.iter() if e.tag.endswith("polyline")]
    assert len(curves) == 2
    assert curves[0] == curves[1]
    assert len(curves[0].split()) == len(losses)


@pytest.mark.parametrize("name", SIZES)
def test_readme_shows_what_was_printed_and_drawn(name):
    text = (EXAMPLES / name / "README.md").read_text("utf-8")
    assert f"python examples/{name}/train.py" in text
    assert "(loss.svg)" in text
    assert "the same bits" in text
    picture = ElementTree.parse(EXAMPLES / name / "loss.svg").getroot()
    assert sum(e.tag.endswith("polyline") for e in picture.iter()) == 2
    steps = int(re.findall(r"with jaxswap: step +(\d+)", text)[-1])
    curve = next(e for e in picture.iter() if e.tag.endswith("polyline"))
    assert len(curve.get("points").split()) == steps


def test_the_command_line_target_is_a_step(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    gpt = importlib.import_module("gpt")
    step, args, donated = gpt.step(batch=2, seq=8, layers=1, width=16, heads=2, vocab=32)
    state, loss = jax.eval_shape(step, *args)
    assert donated == (0,)
    assert loss.shape == ()
    assert jax.tree.structure(state) == jax.tree.structure(args[0])
