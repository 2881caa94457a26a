"""Schedule: where ties go, what they cost, and when copies have to start."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxswap import _compat
from jaxswap.apply import Decision, jaxprs, name_values, order, place, rewrite_step, schedule
from jaxswap.apply.carriers import find_source, is_cut_to_size
from jaxswap.apply.jaxprs import jx
from jaxswap.apply.pin import is_barrier
from jaxswap.apply.program import Ledger
from jaxswap.apply.segments import queue_offloads

KEEP = Decision(action="keep")


def pin_alone(step, args):
    traced = place.trace_step(step, args, {})
    ledger = Ledger(decide=lambda name: KEEP, min_heavy_bytes=0)
    return schedule.schedule_step(place.keep_names(traced.closed, lambda name: False), ledger)


def all_equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for body in jaxprs.bodies(eqn):
            yield from all_equations(body)


# ---- carriers ----


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: jnp.transpose(x @ x).reshape(2, 8), "dot_general"),
        (lambda x: (x @ x).astype(jnp.bfloat16).T, "dot_general"),
        (lambda x: jnp.tanh(x).astype(jnp.bfloat16).T, "convert_element_type"),
        (lambda x: jnp.tanh(x).T, "tanh"),
        (lambda x: (x @ x)[:2], "slice"),
    ],
    ids=["views", "a conversion of what is stored", "of what fuses", "no conversion", "a slice"],
)
def test_ties_go_in_front_of_views(fn, expected):
    closed = jaxprs.inline_calls(jax.make_jaxpr(fn)(jnp.ones((4, 4))))
    makers = {v: e for e in closed.jaxpr.eqns for v in e.outvars}
    is_stored = lambda eqn: eqn.primitive is jx.dot_p
    (out,) = closed.jaxpr.outvars
    source, views = find_source(out, makers, is_stored)
    assert makers[source].primitive.name == expected
    assert [*views, makers[source]][0] in closed.jaxpr.eqns
    assert (views[-1].outvars[0] if views else source) is out


# ---- order ----


def test_pinning_alone_keeps_the_numbers():
    def loss(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.sum(x**2)

    rng = np.random.default_rng(0)
    params = [jnp.asarray(rng.standard_normal((4, 4)), jnp.float32) for _ in range(3)]
    x = jnp.asarray(rng.standard_normal((3, 4)), jnp.float32)
    step = jax.value_and_grad(loss)
    closed = pin_alone(step, (params, x))
    found = jx.eval_jaxpr(closed.jaxpr, closed.consts, *params, x)
    for a, b in zip(jax.tree.leaves(step(params, x)), found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert any(is_barrier(e) for e in all_equations(closed.jaxpr))


def test_weight_gradients_are_tied_to_what_comes_next():
    """Of two large ops that read the same gradient, neither is put off."""
    loss = lambda w, x: jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w) ** 2)
    shape = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    closed = pin_alone(jax.grad(loss), (shape, shape))
    made_by = {v: e.primitive for e in closed.jaxpr.eqns for v in e.outvars}
    ties = [
        [made_by.get(v) for v in e.invars]
        for e in closed.jaxpr.eqns
        if is_barrier(e) and len(e.invars) > 1
    ]
    assert any(jx.dot_p in tie and len(tie) == 2 for tie in ties)


@pytest.mark.parametrize(("soon_ops", "expected"), [(1, 2), (4, 0)])
def test_what_is_joined_soon_is_not_tied(monkeypatch, soon_ops, expected):
    """Gradients of queries, keys and values meet before long: a tie would cost a kernel."""

    def loss(w, x):
        q, k, v = jnp.split(x @ w, 3, axis=-1)
        return jnp.sum(jax.nn.softmax(q @ k.T) @ v)

    monkeypatch.setattr(order, "_SOON_OPS", soon_ops)
    closed = pin_alone(jax.grad(loss), (jnp.ones((512, 3 * 512)), jnp.ones((512, 512))))
    barriers = [e for e in closed.jaxpr.eqns if is_barrier(e)]
    assert sum(len(e.invars) > 1 for e in barriers) == expected


def test_copies_of_reductions_pass_no_barrier_in_a_loop():
    """XLA refuses a loop that stacks host memory which went through a barrier."""

    def body(c, w):
        e = jnp.exp(c @ w)
        return (e / e.sum(-1, keepdims=True)) @ w, None

    loss = lambda w, x: jnp.sum(jax.lax.scan(body, x, w)[0] ** 2)
    args = jnp.ones((3, 4, 4)), jnp.ones((4, 4))
    step = jax.grad(loss)
    sums = [v.name for v in name_values(step, *args) if v.primitive == "reduce_sum" and v.scope]
    decisions = dict.fromkeys(sums, Decision(action="offload"))
    rewritten = rewrite_step(step, decisions, args, min_heavy_bytes=0)
    assert rewritten.offloaded
    forward = next(e for e in rewritten.closed.jaxpr.eqns if e.primitive is jx.scan_p)
    for eqn in forward.params["jaxpr"].jaxpr.eqns:
        if is_barrier(eqn):
            assert not any(_compat.is_on_host(v.aval) for v in eqn.invars)


def test_a_softmax_that_is_recomputed_keeps_its_form():
    """XLA finds a softmax by its form: a barrier behind `max(−inf, …)` would take it apart."""

    def loss(w, x):
        return jnp.sum(jax.nn.softmax(x @ w) @ w)

    shape = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    args = shape, shape
    rewritten = rewrite_step(jax.grad(loss), {}, args, default="recompute", min_heavy_bytes=0)
    maxima = [e for e in all_equations(rewritten.closed.jaxpr) if e.primitive.name == "max"]
    assert len(maxima) == 2  # forward, and made again
    for eqn in maxima:
        assert [v.val for v in eqn.invars if isinstance(v, jx.Literal)] == [-np.inf]


def test_numbers_of_the_backward_pass_are_tied_to_nothing():
    """A tie would fix the layout of a matrix product's result, for no use."""

    def loss(w, x):
        y = x @ w
        return jnp.sum(jnp.where(y > 0.5, jnp.tanh(y), 0.25) @ w)

    shape = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    closed = pin_alone(jax.grad(loss), (shape, shape))
    barriers = [e for e in closed.jaxpr.eqns if is_barrier(e)]
    numbers = [e for e in barriers if any(isinstance(v, jx.Literal) for v in e.invars)]
    assert numbers
    assert all(len(e.invars) == 1 for e in numbers)


# ---- what XLA cuts to size ----


def convolve(stride, padding):
    """The gradient of a convolution by its input, of even size."""
    layout = ("NHWC", "HWIO", "NHWC")
    run = lambda x, w: jax.lax.conv_general_dilated(
        x, w, (stride, stride), padding, dimension_numbers=layout
    )
    return lambda x, w: jax.grad(lambda x: run(x, w).sum())(x)


@pytest.mark.parametrize(
    ("stride", "taps", "padding", "expected"),
    [
        (2, 3, "SAME", True),  # nothing before, one behind
        (2, 3, [(1, 1), (1, 1)], False),
        (2, 1, "SAME", False),
        (1, 3, "SAME", False),
        (2, 4, "SAME", False),
        (2, 2, [(0, 1), (0, 0)], False),  # what no window reads
        (2, 3, [(1, 1), (0, 1)], True),  # in one dimension
    ],
)
def test_uneven_gradients_of_convolutions_are_cut(stride, taps, padding, expected):
    args = jnp.ones((1, 8, 8, 4)), jnp.ones((taps, taps, 4, 4))
    closed = jaxprs.inline_calls(jax.make_jaxpr(convolve(stride, padding))(*args))
    *_, gradient = [e for e in closed.jaxpr.eqns if e.primitive is jx.conv_p]
    assert is_cut_to_size(gradient) == expected


def test_what_is_cut_carries_no_tie(monkeypatch):
    """The gradient of the second convolution is cut."""
    monkeypatch.setattr(order, "_SMALL_BYTES", 0)
    conv = lambda x, w, stride: jax.lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    loss = lambda w, x: jnp.sum(jnp.tanh(conv(jnp.tanh(conv(x, w[0], 1)), w[1], 2)) ** 2)
    args = jnp.ones((2, 3, 3, 4, 4)), jnp.ones((2, 8, 8, 4))
    closed = pin_alone(jax.grad(loss), args)
    cut = {v for e in closed.jaxpr.eqns if is_cut_to_size(e) for v in e.outvars}
    tied = {v for e in closed.jaxpr.eqns if is_barrier(e) for v in jaxprs.variables(e.invars)}
    assert cut
    assert not cut & tied


def test_what_a_cut_result_cannot_carry_the_next_one_does(monkeypatch):
    monkeypatch.setattr(order, "_SMALL_BYTES", 0)

    def fn(u, x, w, c):
        late = u @ u  # nothing but the end reads it
        return jnp.tanh(convolve(2, "SAME")(x, w)), jnp.tanh(c @ c), late

    args = jnp.ones((64, 64)), jnp.ones((1, 8, 8, 4)), jnp.ones((3, 3, 4, 4)), jnp.ones((48, 48))
    closed = jaxprs.remove_dead_code(jaxprs.inline_calls(jax.make_jaxpr(fn)(*args)))
    ledger = Ledger(decide=lambda name: KEEP, min_heavy_bytes=0)
    eqns = order.pin_order(closed, ledger).jaxpr.eqns
    ties = [{v.aval.shape for v in e.invars} for e in eqns if is_barrier(e)]
    assert [tie >= {(64, 64), (48, 48)} for tie in ties] == [True]


# ---- copies to the host in turn ----


def find_spans(windows, read_in):
    """When the values of a chain of dots are copied, each in its window, all read in a segment."""

    def fn(x, w):
        for _ in range(read_in):
            x = x @ w
        return x

    closed = jax.make_jaxpr(fn)(jnp.ones((4, 4)), jnp.ones((4, 4)))
    eqns, heavy, copies = [], [], {}
    for index, eqn in enumerate(closed.jaxpr.eqns):
        eqns.append(eqn)
        heavy.append(True)
        if index < len(windows):
            eqns.append(_compat.new_copy_eqn(eqn.outvars[0], to_host=True))
            heavy.append(False)
            (host,) = eqns[-1].outvars
            copies[host] = Decision(action="offload", window_ops=windows[index])
    eqns += [_compat.new_copy_eqn(host, to_host=False) for host in copies]
    heavy += [False] * len(copies)
    ledger = Ledger(decide=lambda name: KEEP, min_heavy_bytes=0, copies=copies)
    return list(queue_offloads(eqns, heavy, ledger).values())


@pytest.mark.parametrize(
    ("windows", "read_in", "expected"),
    [
        ([2, 2, 2], 9, [(1, 2), (2, 3), (3, 4)]),
        ([5, 5, 5, 5], 9, [(1, 5), (2, 6), (5, 7), (6, 8)]),  # after the one before the last
        ([5, 5, 2], 9, [(1, 5), (2, 6), (3, 4)]),  # no room in its window: it starts as it may
        ([5, 5, 5], 5, [(1, 5), (2, 6), (3, 7)]),  # nor before it is read
    ],
)
def test_no_more_copies_are_under_way_than_xla_has(windows, read_in, expected):
    assert find_spans(windows, read_in) == expected


def find_copies(closed):
    """The copies to the host, each with how many dots come before it, and what it waits for."""
    makers = {v: e for e in closed.jaxpr.eqns for v in e.outvars}
    on_host = lambda e: e.primitive is jx.device_put_p and _compat.is_on_host(e.outvars[0].aval)
    num_dots, found = 0, []
    for eqn in closed.jaxpr.eqns:
        num_dots += eqn.primitive is jx.dot_p
        if on_host(eqn):
            tie = makers[eqn.invars[0]]
            waits = [makers[v].primitive.name for v in tie.invars] if is_barrier(tie) else []
            found.append((num_dots, waits))
    return found


def test_a_copy_for_which_there_is_no_room_starts_behind_a_later_op():
    def loss(w, x):
        for _ in range(8):
            x = jnp.tanh(x @ w)
        return jnp.sum(x**2)

    step, args = jax.grad(loss), (jnp.ones((64, 64)), jnp.ones((64, 64)))
    names = [v.name for v in name_values(step, *args) if v.primitive == "tanh"][:3]
    decisions = dict.fromkeys(names, Decision(action="offload", window_ops=5))
    closed = rewrite_step(step, decisions, args, default="keep", min_heavy_bytes=0).closed
    first, second, third = find_copies(closed)
    assert (first, second) == ((1, []), (2, []))
    # The first is over by the sixth dot: the third starts behind the fifth, by what that made.
    assert third[0] == 5
    assert len(third[1]) == 2


def test_a_copy_starts_before_its_reload_whatever_is_not_run_at_all():
    """Dots that only the backward pass reads, and makes again, are no time to copy in."""

    @jax.custom_vjp
    def f(x, w):
        return jnp.tanh(x)

    f.defvjp(
        lambda x, w: (jnp.tanh(x), [x @ (w * i) for i in range(4)]),
        lambda rs, ct: (ct * sum(rs), sum(r.T @ ct for r in rs)),
    )

    @jax.custom_vjp
    def g(y, a, b, c):
        return y

    g.defvjp(lambda y, a, b, c: (y, (a, b, c)), lambda r, ct: (ct * r[0] * r[1] * r[2], ct, ct, ct))

    def loss(w, x):
        h = x @ w
        return jnp.sum(g(f(h, w), jnp.sin(h), jnp.exp(h), jnp.cos(h)))

    step, args = jax.grad(loss), (jnp.eye(4), jnp.ones((4, 4)))
    names = {v.primitive: v.name for v in name_values(step, *args)}
    windows = {"sin": 3, "exp": 3, "cos": 4}
    decisions = {names[p]: Decision(action="offload", window_ops=n) for p, n in windows.items()}
    closed = rewrite_step(step, decisions, args, min_heavy_bytes=0).closed
    (found,) = jx.eval_jaxpr(closed.jaxpr, closed.consts, *args)
    np.testing.assert_allclose(found, step(*args), rtol=1e-6)


def test_a_copy_of_what_needs_no_op_waits_for_its_turn():
    """XLA would make it, and copy it, at the very start, and have it under way until its turn."""

    def loss(w, x):
        for _ in range(4):
            x = jnp.tanh(x @ w)
        return jnp.sum((x @ jnp.cos(w)) ** 2)

    step, args = jax.grad(loss), (jnp.ones((64, 64)), jnp.ones((64, 64)))
    (name,) = [v.name for v in name_values(step, *args) if v.primitive == "cos"]
    decisions = {name: Decision(action="offload")}
    closed = rewrite_step(step, decisions, args, default="keep", min_heavy_bytes=0).closed
    assert find_copies(closed) == [(4, ["cos", "tanh"])]
