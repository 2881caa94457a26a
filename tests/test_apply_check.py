"""Check: a step that is not what was decided, or computes something else, is found out."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

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
from jaxswap.apply.check import count_offloads

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
    assert reasons <= {"kept: it is wanted again before it would have left"}
    decided = {n for n, d in DECISIONS.items() if d.action == "offload"}
    assert set(REWRITTEN.offloaded) | set(REWRITTEN.demoted) <= decided


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
    with pytest.raises(CheckError, match="but as applied"):
        check_applied(REWRITTEN, DECISIONS, other)


def test_decisions_that_were_not_followed_are_found():
    kept = {name: Decision(action="keep") for name in REWRITTEN.offloaded}
    with pytest.raises(CheckError, match="decided otherwise"):
        check_applied(REWRITTEN, kept, ORIGINAL)


def test_the_self_check_compares_numbers():
    applied = apply_decisions(step, DECISIONS, default="keep", min_heavy_bytes=0)
    assert self_check(step, applied, W, exact=True).is_identical
    with pytest.raises(CheckError, match=r"off by .* where 1.0e-06 was allowed"):
        self_check(step, lambda w: 1.001 * applied(w), W)
    with pytest.raises(CheckError, match="every bit was to be the same"):
        self_check(step, lambda w: applied(w) * (1 + 1e-7), W, exact=True)


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
