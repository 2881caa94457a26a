"""As written: where all is kept, the backward pass reads what the forward pass made."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from jaxswap.apply import Decision, jaxprs, name_values, place, rewrite_step
from jaxswap.apply.jaxprs import jx
from jaxswap.apply.pin import is_barrier

W = (jnp.ones((8, 8)),) * 4
X = jnp.full((8, 8), 0.1)


def step(w, x):
    """Four layers; the gradients of `sin` and `tanh` read what these ops fuse with."""

    def loss(w):
        h = jnp.sin(w[0] @ x) * jnp.exp(x)
        for layer in w[1:]:
            h = jnp.tanh(jnp.sin(h @ layer))
        return jnp.sum(h)

    return jax.grad(loss)(w)


def count_ops(closed):
    ops = [e for e in jaxprs.inline_calls(closed).jaxpr.eqns if not is_barrier(e)]
    return Counter(e.primitive.name for e in ops)


def rewrite(actions, *, rest_as_written=True):
    """The step's ops as written, and with these actions for its matrix products."""
    dots = [v.name for v in name_values(step, W, X) if v.primitive == "dot_general"]
    decisions = {n: Decision(action=a) for n, a in zip(dots, actions, strict=True)}
    found = rewrite_step(
        step, decisions, (W, X), min_heavy_bytes=0, rest_as_written=rest_as_written
    )
    given = jax.tree.leaves((W, X))
    outs = jx.eval_jaxpr(found.closed.jaxpr, found.closed.consts, *given)
    assert all(map(jnp.allclose, outs, step(W, X)))
    return count_ops(place.trace_plain(step, (W, X), {})), count_ops(found.closed)


def test_where_all_is_kept_nothing_is_made_again_but_what_arguments_make():
    """`exp` of an argument: to hold on to it would cost memory that no decision is about."""
    before, after = rewrite(["keep"] * 4)
    assert (after - before)["exp"] == 1
    assert not set(after - before) & {"sin", "cos", "tanh", "dot_general"}


def test_where_it_is_not_asked_for_all_is_made_again():
    before, after = rewrite(["keep"] * 4, rest_as_written=False)
    again = after - before
    assert again["sin"] >= 2
    assert again["dot_general"] == 0


@pytest.mark.parametrize("action", ["offload", "recompute"])
def test_what_a_value_that_leaves_makes_is_made_again(action):
    """What the last product reads is wanted again before it would have left."""
    before, after = rewrite([action] * 4)
    again = after - before
    assert again["sin"] == 2
    assert again["dot_general"] == (3 if action == "recompute" else 0)


def test_beside_a_value_that_leaves_the_others_are_as_written():
    before, after = rewrite(["keep", "offload", "keep", "keep"])
    again = after - before
    assert (again["sin"], again["dot_general"]) == (1, 0)


def test_loops_have_no_values_as_written():
    """What the first loop makes, the second has only if it was stacked."""

    def scanned(w, x):
        def loss(w):
            body = lambda h, layer: (jnp.tanh(jnp.sin(h @ layer)), None)
            return jnp.sum(jax.lax.scan(body, x, jnp.stack(w))[0])

        return jax.grad(loss)(w)

    names = [v.name for v in name_values(scanned, W, X) if v.primitive == "dot_general"]
    keep = {name: Decision(action="keep") for name in names}
    found = rewrite_step(scanned, keep, (W, X), min_heavy_bytes=0, rest_as_written=True)
    loops = [e for e in found.closed.jaxpr.eqns if e.primitive.name == "scan"]
    backward = Counter(e.primitive.name for e in loops[-1].params["jaxpr"].jaxpr.eqns)
    assert backward["sin"] >= 1
