"""JAX's policies as data: what each decides about a step that is small enough to know by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from programs import EXACT, UNIT, Draft, work

from jaxswap.apply.decision import Decision
from jaxswap.model.simulate import simulate
from jaxswap.model.timeline import build_timeline
from jaxswap.program.trace import trace_program
from jaxswap.report.policies import POLICIES, decide, forecast_policies

BY_NAME = {policy.name: policy for policy in POLICIES}


def make_step():
    """A dot, an `exp`, a dot with batch dimensions, a sum with a dot in it, a convolution."""
    draft = Draft()
    draft.op("dot_general", 4, "forward", [], [("dot", 8)])
    draft.op("exp", 1, "forward", ["dot"], [("exp", 8)])
    draft.op("dot_general", 4, "forward", ["exp"], [("batched", 6)], has_batch_dims=True)
    draft.op("dot_general", 4, "forward", ["batched"], [("inner", 5)])
    draft.op("reduce_sum", 1, "forward", ["inner"], [("sum", 5)])
    draft.op("conv_general_dilated", 4, "forward", ["sum"], [("conv", 3)])
    draft.op("loss", 1, "forward", ["conv"], [])
    draft.op("turn", 1, "backward", [], [])
    for name in ("conv", "sum", "batched", "exp", "dot"):
        draft.op(f"d_{name}", 2, "backward", [name], [])
    draft.candidate("dot", again=4, recompute_ops=(0,))
    draft.candidate("exp", again=1, parents=["dot"], recompute_ops=(1,))
    draft.candidate("batched", again=4, parents=["exp"], recompute_ops=(2,))
    # The dot in front of it is not in memory for the backward pass: the sum stands for it.
    draft.candidate("sum", again=5, parents=["batched"], recompute_ops=(3, 4))
    both = dataclasses.replace(draft.candidates[-1], recompute=(work(4), work(1)))
    draft.candidates[-1] = both
    draft.candidate("conv", again=4, parents=["sum"], recompute_ops=(5,))
    return draft.finish(base_bytes=2)


@pytest.mark.parametrize(
    ("policy", "saved", "action"),
    [
        ("nothing_saveable", [], "keep"),
        ("dots_saveable", ["dot", "batched", "sum", "conv"], "keep"),
        ("dots_with_no_batch_dims_saveable", ["dot", "sum"], "keep"),
        ("offload_dot_with_no_batch_dims", ["dot", "sum"], "offload"),
    ],
)
def test_a_policy_saves_what_its_primitives_make(policy, saved, action):
    decided = decide(make_step(), BY_NAME[policy])
    assert [name for name, d in decided.items() if d.action != "recompute"] == saved
    assert {decided[name].action for name in saved} <= {action}


def test_the_names_are_those_of_jax():
    assert all(hasattr(jax.checkpoint_policies, name) for name in BY_NAME)


def test_points_are_the_simulators():
    program = make_step()
    timeline = build_timeline(program, UNIT, EXACT)
    points = forecast_policies(program, timeline)
    assert [point.label for point in points] == list(BY_NAME)
    for point in points:
        decided = decide(program, BY_NAME[point.label])
        found = simulate(program, decided, UNIT, efficiency=EXACT)
        assert (point.size_bytes, point.step_s) == (found.peak_bytes, pytest.approx(found.step_s))
        assert (point.kind, point.how) == ("policy", "forecast")
    # The step as written takes 30 s; all that is made again takes 4 + 1 + 4 + 5 + 4 s more.
    assert points[0].step_s == pytest.approx(30.0 + 18.0)


def test_a_value_that_no_op_makes_again_goes_by_its_maker():
    draft = Draft()
    draft.op("dot_general", 1, "forward", [], [("kept", 8)])
    draft.op("loss", 1, "forward", [], [])
    draft.op("back", 1, "backward", ["kept"], [])
    draft.candidate("kept")
    program = draft.finish()
    assert decide(program, BY_NAME["dots_saveable"]) == {"kept": Decision(action="keep")}
    # A policy that keeps everything is the step as written.
    points = forecast_policies(program, build_timeline(program, UNIT))
    assert points[1].step_s == simulate(program, {}, UNIT).step_s


def test_tracing_tells_dots_with_batch_dimensions_apart():
    def loss(w, x):
        h = jnp.tanh(x @ w)
        return jnp.sum(jnp.einsum("bij,bkj->bik", h, h) ** 2)

    w = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    x = jax.ShapeDtypeStruct((16, 256, 256), jnp.float32)
    program = trace_program(jax.grad(loss), w, x)
    dots = [op for op in program.ops if op.name == "dot_general" and op.phase == "forward"]
    assert [op.has_batch_dims for op in dots] == [False, True]
