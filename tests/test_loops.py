"""Loops: reloads that start an iteration early, and the numbers they bring.

What is offloaded in a loop is compared bit for bit with the loop as written, op by op, for
loops of every length that is special: one iteration, two, more.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_by_op import run_op_by_op

from jaxswap import _compat
from jaxswap.apply import Decision, apply_decisions, jaxprs, name_values, rewrite_step
from jaxswap.apply.jaxprs import jx
from jaxswap.apply.segments import is_gate

WIDTH = 4
# The two products of the body are four heavy ops in the backward pass.
HEAVY_OPS = 4


def body(c, w):
    return jnp.tanh(jnp.sin(c @ w["a"]) @ w["b"]), jnp.sum(c)


def draw(*shape):
    rng = np.random.default_rng(len(shape) + sum(shape))
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def loss(params, x, *, reverse=False):
    out, sums = jax.lax.scan(body, x, params, reverse=reverse)
    return jnp.sum(out**2) + jnp.sum(sums**3)


def make_step(length, *, reverse=False):
    params = {"a": draw(length, WIDTH, WIDTH), "b": draw(length, WIDTH, WIDTH)}

    def step(params, x):
        value, grads = jax.value_and_grad(lambda p: loss(p, x, reverse=reverse))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step, (params, draw(3, WIDTH))


def make_accumulating_step(length):
    """Gradients of several batches summed up in a loop around the layers' loop."""
    params = {"a": draw(length, WIDTH, WIDTH), "b": draw(length, WIDTH, WIDTH)}

    def step(params, xs):
        def add(total, x):
            value, grads = jax.value_and_grad(loss)(params, x)
            return jax.tree.map(jnp.add, total, grads), value

        total, values = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), xs)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, total), values

    return step, (params, draw(2, 3, WIDTH))


def make_nested_step(length):
    """A loop of layers in a loop of layers, differentiated together."""
    params = {"a": draw(2, length, WIDTH, WIDTH), "b": draw(2, length, WIDTH, WIDTH)}

    def step(params, x):
        def deep(params):
            out, _ = jax.lax.scan(lambda c, p: jax.lax.scan(body, c, p), x, params)
            return jnp.sum(out**2)

        value, grads = jax.value_and_grad(deep)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step, (params, draw(3, WIDTH))


def offload_all(step, args, ahead):
    decision = Decision(action="offload", reload_ahead_ops=ahead)
    return {v.name: decision for v in name_values(step, *args) if v.scope}


def rewrite(step, args, decisions):
    return rewrite_step(step, decisions, args, default="keep", min_heavy_bytes=0)


def find_scans(jaxpr):
    for eqn in jaxpr.eqns:
        if eqn.primitive is jx.scan_p:
            yield eqn
        for inner in jaxprs.bodies(eqn):
            yield from find_scans(inner)


def is_reload(eqn):
    return (
        eqn.primitive is jx.device_put_p
        and _compat.is_on_host(eqn.invars[0].aval)
        and not _compat.is_on_host(eqn.outvars[0].aval)
    )


def find_backward(closed):
    """The scan that reloads."""
    found = [s for s in find_scans(closed.jaxpr) if any(map(is_reload, s.params["jaxpr"].eqns))]
    assert len(found) == 1
    return found[0]


def handed_on(scan):
    """The carries that come straight from a reload."""
    inner, num_carry = scan.params["jaxpr"].jaxpr, scan.params["num_carry"]
    reloaded = {e.outvars[0] for e in inner.eqns if is_reload(e)}
    return [v for v in inner.outvars[:num_carry] if v in reloaded]


def assert_same_bits(step, args, closed):
    expected = run_op_by_op(jax.make_jaxpr(step)(*args), *jax.tree.leaves(args))
    found = run_op_by_op(closed, *jax.tree.leaves(args))
    assert np.isfinite(np.concatenate([np.ravel(a) for a in expected])).all()
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)


MAKERS = {
    "forwards": make_step,
    "reversed": lambda length: make_step(length, reverse=True),
    "accumulating": make_accumulating_step,
    "nested": make_nested_step,
}


def test_a_loop_that_never_runs_offloads_nothing():
    step, args = make_step(0)
    decisions = offload_all(step, args, 1)
    assert decisions
    assert rewrite(step, args, decisions).offloaded == ()
    applied = apply_decisions(step, decisions, default="keep", min_heavy_bytes=0)
    for a, b in zip(*(jax.tree.leaves(jax.jit(f)(*args)) for f in (step, applied)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("ahead", [1, 9])
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("kind", MAKERS)
def test_offloads_in_a_loop_change_no_bit(kind, length, ahead, monkeypatch):
    # As with a compiler that gets reversed loops right: this tests our own indices.
    monkeypatch.setattr(_compat, "misreads_reversed_slices", lambda: False)
    step, args = MAKERS[kind](length)
    rewritten = rewrite(step, args, offload_all(step, args, ahead))
    assert rewritten.offloaded
    assert_same_bits(step, args, rewritten.closed)


@pytest.mark.parametrize("kind", MAKERS)
def test_jitted_loops_give_the_same_numbers(kind, monkeypatch):
    monkeypatch.setattr(_compat, "misreads_reversed_slices", lambda: False)
    step, args = MAKERS[kind](5)
    applied = apply_decisions(step, offload_all(step, args, 9), default="keep", min_heavy_bytes=0)
    for a, b in zip(*(jax.tree.leaves(jax.jit(f)(*args)) for f in (step, applied)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * np.max(np.abs(a)))


@pytest.mark.parametrize("ahead", range(HEAVY_OPS + 2))
def test_a_reload_is_handed_on_where_it_starts_before_its_iteration(ahead):
    step, args = make_step(5)
    (name,) = [v.name for v in name_values(step, *args) if v.scope and v.primitive == "tanh"]
    decisions = {name: Decision(action="offload", reload_ahead_ops=ahead)}
    backward = find_backward(rewrite(step, args, decisions).closed)
    # The gradient of `tanh` is the first that the body computes: no heavy op is before it.
    assert len(handed_on(backward)) == (ahead > 0)


def test_a_reload_that_starts_within_its_iteration_is_not_handed_on():
    step, args = make_step(5)
    (name,) = [v.name for v in name_values(step, *args) if v.scope and v.name.endswith("in0")]
    at = lambda ahead: {name: Decision(action="offload", reload_ahead_ops=ahead)}
    # The carry is read by the body's last product but one.
    numbers = [
        len(handed_on(find_backward(rewrite(step, args, at(ahead)).closed)))
        for ahead in range(HEAVY_OPS + 1)
    ]
    assert numbers == sorted(numbers)
    assert numbers[0] == numbers[1] == 0
    assert numbers[-1] == 1


@pytest.mark.parametrize("ahead", range(1, HEAVY_OPS + 2))
def test_a_reload_starts_its_distance_ahead_and_no_earlier(ahead):
    step, args = make_step(5)
    (name,) = [v.name for v in name_values(step, *args) if v.scope and v.primitive == "tanh"]
    decisions = {name: Decision(action="offload", reload_ahead_ops=ahead)}
    eqns = find_backward(rewrite(step, args, decisions).closed).params["jaxpr"].eqns
    (at,) = [i for i, e in enumerate(eqns) if is_reload(e)]
    products = [i for i, e in enumerate(eqns) if e.primitive is jx.dot_p]
    assert len(products) == HEAVY_OPS
    assert sum(i > at for i in products) == min(ahead, HEAVY_OPS)


def test_the_first_reload_comes_ahead_of_the_loop():
    step, args = make_step(5)
    (name,) = [v.name for v in name_values(step, *args) if v.scope and v.primitive == "tanh"]
    decisions = {name: Decision(action="offload", reload_ahead_ops=1)}
    closed = rewrite(step, args, decisions).closed
    assert sum(map(is_reload, closed.jaxpr.eqns)) == 1


def test_a_loop_of_one_iteration_has_none_before():
    step, args = make_step(1)
    closed = rewrite(step, args, offload_all(step, args, 9)).closed
    assert not handed_on(find_backward(closed))


@pytest.mark.parametrize(
    ("product", "trips", "unroll", "is_gated"),
    [
        (jnp.multiply, 5, 1, False),
        (jnp.multiply, 5, 2, False),
        (jnp.multiply, 5, 5, True),  # all trips are in one computation, where XLA merges ops
        (jnp.multiply, 1, 1, True),  # XLA makes no loop of it
        (jnp.matmul, 5, 1, False),
        (jnp.matmul, 5, 5, True),
    ],
)
def test_a_loop_reads_what_it_recomputes_from_without_gates(product, trips, unroll, is_gated):
    """Each gate is a kernel per trip, where XLA would have read the stack in place."""
    body = lambda c, w: (jnp.tanh(jnp.sin(product(c, w))), None)
    loss = lambda w, x: jnp.sum(jax.lax.scan(body, x, w, unroll=unroll)[0] ** 2)
    args = draw(trips, WIDTH, WIDTH), draw(WIDTH, WIDTH)
    rewritten = rewrite_step(jax.grad(loss), {}, args, default="recompute", min_heavy_bytes=0)
    *_, backward = find_scans(rewritten.closed.jaxpr)
    eqns = backward.params["jaxpr"].eqns
    assert any(e.primitive.name == "sin" for e in eqns)  # made again
    assert any(map(is_gate, eqns)) == is_gated
