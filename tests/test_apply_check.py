"""Check: a step that is not what was decided, or computes something else, is found out."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from jaxswap import _compat
from jaxswap.apply import (
    CheckError,
    Decision,
    apply_decisions,
    check_applied,
    name_values,
    rewrite_step,
    self_check,
)
from jaxswap.apply.check import compare_results, count_offloads

W = jax.random.normal(jax.random.key(0), (4, 4))
OFFLOAD = Decision(action="offload")


def step(w):
    return jax.grad(lambda w: jnp.sum(jnp.sin(jnp.sin(w @ w) @ w) @ w))(w)


ORIGINAL = jax.make_jaxpr(step)(W)
DECISIONS = {v.name: OFFLOAD for v in name_values(step, W) if v.primitive == "dot_general"}
REWRITTEN = rewrite_step(step, DECISIONS, (W,), min_heavy_bytes=0)


def test_offloads_are_counted_in_the_program():
    assert count_offloads(REWRITTEN.closed) == len(REWRITTEN.offloaded) >= 1
    assert count_offloads(ORIGINAL) == 0
    check_applied(REWRITTEN, DECISIONS, ORIGINAL)


def test_values_that_cannot_leave_in_time_are_reported():
    reasons = set(REWRITTEN.demoted.values())
    assert reasons <= {
        "kept: it is wanted again before it would have left",
        "not offloaded: nothing of the backward pass reads it",
    }
    decided = {n for n, d in DECISIONS.items() if d.action == "offload"}
    assert set(REWRITTEN.offloaded) | set(REWRITTEN.demoted) == decided


def test_an_offload_that_nothing_reads_is_reported():
    def loss(w):
        total = jnp.sum(jnp.sin(w @ w) @ w)
        return total + jnp.sum(w + 1.0)  # a sum's gradient needs no summand

    grad = jax.grad(loss)
    unread = next(v for v in reversed(name_values(grad, W)) if v.primitive == "add" and v.shape)
    rewritten = rewrite_step(grad, {unread.name: OFFLOAD}, (W,), min_heavy_bytes=0)
    assert rewritten.offloaded == ()
    assert rewritten.demoted[unread.name].endswith("nothing of the backward pass reads it")


def test_offloads_of_the_step_as_written_are_not_taken_for_ours():
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["own"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def loss(w):
        inner = jax.checkpoint(
            lambda w: jnp.sin(checkpoint_name(jnp.sin(w @ w), "own") @ w), policy=policy
        )
        return jnp.sum(jnp.sin(inner(w) @ w) @ w)

    grad = jax.grad(loss)
    assert count_offloads(jax.make_jaxpr(grad)(W)) == 1
    dots = [v.name for v in name_values(grad, W) if v.primitive == "dot_general"]
    rewritten = rewrite_step(grad, dict.fromkeys(dots, OFFLOAD), (W,), min_heavy_bytes=0)
    assert rewritten.offloaded
    self_check(grad, apply_decisions(grad, dict.fromkeys(dots, OFFLOAD), min_heavy_bytes=0), W)


def test_an_offload_for_a_result_of_a_branch_that_nothing_reads_is_reported():
    """To make a branch again takes all of its inputs; of what it returns, some is for nobody."""

    def loss(w):
        def layer(h, k):
            wide = lambda h: jnp.tanh(jnp.sin(h @ w) @ w)
            return jax.lax.cond(k > 0, wide, lambda h: h, h), None

        return jnp.sum(jax.lax.scan(layer, w, jnp.arange(3))[0] ** 2)

    grad = jax.grad(loss)
    values = name_values(grad, W)
    residuals = [v.name for v in values if v.name.startswith("0/r")]
    carry = next(v.name for v in values if v.scope and v.primitive == "input")
    demoted = set()
    for name in residuals:
        decisions = {carry: OFFLOAD, name: Decision(action="recompute")}
        rewritten = rewrite_step(grad, decisions, (W,), default="keep", min_heavy_bytes=0)
        assert len(rewritten.offloaded) == count_offloads(rewritten.closed)
        demoted |= rewritten.demoted.items()
    assert (carry, "not offloaded: nothing of the backward pass reads it") in demoted


def test_a_step_with_side_effects_in_order_offloads_nothing():
    """JAX 0.10 cannot lower both: it counts memory kinds without the tokens of the effects."""
    seen = []

    def grad(w):
        def loss(w):
            h = jnp.sin(jnp.sin(w @ w) @ w)
            jax.debug.callback(lambda x: seen.append(float(x)), jnp.sum(h), ordered=True)
            return jnp.sum(h @ w)

        return jax.grad(loss)(w)

    values = name_values(grad, W)
    assert values
    assert not any("offload" in v.actions for v in values)
    decisions = {v.name: OFFLOAD for v in values}
    rewritten = rewrite_step(grad, decisions, (W,), default="keep", min_heavy_bytes=0)
    assert rewritten.offloaded == ()
    reason = "kept: JAX cannot use host memory in a step with side effects in order"
    assert reason in rewritten.demoted.values()
    self_check(grad, apply_decisions(grad, decisions, min_heavy_bytes=0), W)
    jax.effects_barrier()
    assert len(seen) == 2
    assert seen[0] == pytest.approx(seen[1])


def test_arguments_are_not_offloaded():
    rewritten = rewrite_step(step, {"0/in0": OFFLOAD}, (W,), min_heavy_bytes=0)
    assert rewritten.offloaded == ()
    assert rewritten.demoted["0/in0"].startswith("kept: it is an argument")


@pytest.mark.parametrize("depth", [1, 2])
def test_what_cannot_leave_its_loop_leaves_as_a_whole_stack(depth):
    def loss(w):
        body = lambda c, _: (jnp.sin(c @ w), None)
        for _ in range(depth - 1):
            inner = body
            body = lambda c, _, inner=inner: (jax.lax.scan(inner, c, None, length=3)[0], None)
        is_reversed = depth == 1
        out = jax.lax.scan(body, w, None, length=2, reverse=is_reversed)[0]
        return jnp.sum((out @ w) @ w)

    grad = jax.grad(loss)
    product = max(
        (v for v in name_values(grad, W) if v.primitive == "dot_general"),
        key=lambda v: len(v.scope),
    )
    assert len(product.scope) == depth
    rewritten = rewrite_step(grad, {product.name: OFFLOAD}, (W,), min_heavy_bytes=0)
    assert rewritten.offloaded == (product.name,)
    assert product.name not in rewritten.demoted
    sizes = re.findall(r"f32<host>\[([\d,]*)\] = device_put", str(rewritten.closed))
    as_a_whole = depth == 2 or _compat.misreads_reversed_slices()
    stack = {1: "2,4,4", 2: "3,4,4"}[depth]
    assert sizes == [stack if as_a_whole else "4,4"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offloaded": (*REWRITTEN.offloaded, "0/1")}, "but the program has"),
        ({"offloaded": ("0/77",) * len(REWRITTEN.offloaded)}, "are not values of the step"),
        ({"closed": ORIGINAL, "offloaded": REWRITTEN.offloaded}, "has 0 copies"),
    ],
)
def test_a_program_that_lost_its_offloads_is_found(change, message):
    with pytest.raises(CheckError, match=message):
        check_applied(dataclasses.replace(REWRITTEN, **change), DECISIONS, ORIGINAL)


def test_results_of_another_type_are_found():
    other = jax.make_jaxpr(lambda w: (step(w), w))(W)
    with pytest.raises(CheckError, match=r"The step returns .* but as applied"):
        check_applied(REWRITTEN, DECISIONS, other)
    other = jax.make_jaxpr(lambda w, x: step(w))(W, W)
    with pytest.raises(CheckError, match=r"The step takes .* but as applied"):
        check_applied(REWRITTEN, DECISIONS, other)


def test_an_offload_that_went_missing_without_a_reason_is_found():
    decisions = DECISIONS | {"0/in0": OFFLOAD}
    with pytest.raises(CheckError, match=r"\['0/in0'\] were to be offloaded.*no reason"):
        check_applied(REWRITTEN, decisions, ORIGINAL)


def test_decisions_that_were_not_followed_are_found():
    kept = {name: Decision(action="keep") for name in REWRITTEN.offloaded}
    with pytest.raises(CheckError, match="decided otherwise"):
        check_applied(REWRITTEN, kept, ORIGINAL)


def test_the_self_check_compares_numbers():
    applied = apply_decisions(step, DECISIONS, default="keep", min_heavy_bytes=0)
    assert self_check(step, applied, W, exact=True).is_identical
    with pytest.raises(CheckError, match=r"off by .* in `result` .* where 1.0e-06 was allowed"):
        self_check(step, lambda w: 1.001 * applied(w), W)
    with pytest.raises(CheckError, match="every bit was to be the same"):
        self_check(step, lambda w: applied(w) * (1 + 1e-7), W, exact=True)


def test_results_are_compared_relative_to_their_largest_number():
    expected = {"a": jnp.array([1e-9, 100.0]), "b": jnp.array([1.0, jnp.nan, jnp.inf])}
    found = {"a": jnp.array([0.0, 100.0]), "b": jnp.array([1.0, jnp.nan, jnp.inf])}
    result = compare_results(expected, found, rtol=1e-10)
    assert not result.is_identical
    assert result.worst_result == "['a']"
    assert result.max_relative_error == pytest.approx(1e-11)
    assert compare_results((), (), rtol=0.0).is_identical
    turned = {"a": jnp.array([1j, 2.0])}, {"a": jnp.array([-1j, 2.0])}
    with pytest.raises(CheckError, match=r"off by 1\.0e\+00 in `result\['a'\]`"):
        compare_results(*turned, rtol=1e-3)
    with pytest.raises(CheckError, match="off by nan"):
        compare_results(jnp.ones(2), jnp.array([1.0, jnp.nan]), rtol=1e-3)


def test_a_jax_that_was_never_tried_is_said_so(monkeypatch):
    monkeypatch.setattr(_compat.metadata, "version", lambda name: "0.99.0")
    with pytest.warns(UserWarning, match=r"has not been tried with 0\.99\.0"):
        _compat.warn_if_unknown_version.__wrapped__()


@pytest.mark.parametrize(
    ("version", "is_bad"),
    [("0.10.2", True), ("0.11.0", True), ("0.11.1", False), ("0.12.0", False)],
)
def test_which_versions_misread_reversed_slices(monkeypatch, version, is_bad):
    monkeypatch.setattr(_compat.metadata, "version", lambda name: version)
    assert _compat.misreads_reversed_slices.__wrapped__() is is_bad
