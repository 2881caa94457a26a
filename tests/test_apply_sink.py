"""Sinking: what is spread out for a loop is spread out in it, and means the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxswap.apply import jaxprs
from jaxswap.apply.jaxprs import jx
from jaxswap.apply.pin import new_twin
from jaxswap.apply.sink import sink_spreads

XS = jnp.arange(24.0).reshape(3, 8)


def find_scan(closed):
    (scan,) = [e for e in closed.jaxpr.eqns if e.primitive is jx.scan_p]
    return scan


def count_spreads(scan):
    return sum(e.primitive is jx.primitives.broadcast_in_dim_p for e in scan.params["jaxpr"].eqns)


def add_row(row, columns):
    """A loop that adds a row, spread out over its columns first."""

    def run(row, xs):
        wide = jax.lax.broadcast_in_dim(row, (columns, 8), (1,))
        body = lambda carry, x: (carry + wide * x, jnp.sum(carry))
        return jax.lax.scan(body, jnp.zeros((columns, 8)), xs)

    return run, (row, XS)


@pytest.mark.parametrize(("columns", "is_sunk"), [(15, False), (16, True)])
def test_what_grew_sixteenfold_is_made_in_the_loop(columns, is_sunk):
    fn, args = add_row(jnp.ones(8), columns)
    closed = jaxprs.remove_dead_code(sink_spreads(before := jax.make_jaxpr(fn)(*args)))
    jx.check_jaxpr(closed.jaxpr)
    scan = find_scan(closed)
    assert count_spreads(scan) - count_spreads(find_scan(before)) == is_sunk
    assert scan.invars[0].aval.shape == ((8,) if is_sunk else (15, 8))
    for expected, found in zip(
        jax.tree.leaves(fn(*args)), jx.eval_jaxpr(closed.jaxpr, closed.consts, *args), strict=True
    ):
        np.testing.assert_array_equal(expected, found)


def test_a_number_is_no_constant_of_the_loop_any_more():
    def fn(xs):
        zeros = jax.lax.broadcast_in_dim(jnp.float32(7), (32, 8), ())
        return jax.lax.scan(lambda c, x: (c + zeros * x, None), jnp.ones((32, 8)), xs)[0]

    before = jax.make_jaxpr(fn)(XS)
    closed = sink_spreads(before)
    gone = find_scan(before).params["num_consts"] - find_scan(closed).params["num_consts"]
    assert gone == 1
    (found,) = jx.eval_jaxpr(closed.jaxpr, closed.consts, XS)
    np.testing.assert_array_equal(fn(XS), found)


def test_loops_in_loops_make_their_own():
    def fn(row, xs):
        def outer(carry, x):
            wide = jax.lax.broadcast_in_dim(row, (16, 8), (1,))
            return jax.lax.scan(lambda c, _: (c + wide * x, None), carry, None, length=2)[0], None

        return jax.lax.scan(outer, jnp.zeros((16, 8)), xs)[0]

    args = jnp.ones(8), XS
    closed = sink_spreads(before := jax.make_jaxpr(fn)(*args))
    counts = [
        count_spreads(find_scan(find_scan(each).params["jaxpr"])) for each in (before, closed)
    ]
    assert counts == [1, 2]  # x of the trip around, and now the row
    (found,) = jx.eval_jaxpr(closed.jaxpr, closed.consts, *args)
    np.testing.assert_array_equal(fn(*args), found)


def test_what_is_spread_out_again_behind_a_pin_is_sunk_too():
    """A pin in front of a loop has what the loop reads made again, as a twin."""
    fn, args = add_row(jnp.ones(8), 16)
    closed = jax.make_jaxpr(fn)(*args)
    (spread,) = [e for e in closed.jaxpr.eqns if e.outvars[0].aval.shape == (16, 8)
                 and not isinstance(e.invars[0], jx.Literal)
                 and e.primitive is jx.primitives.broadcast_in_dim_p]  # fmt: skip
    again = jaxprs.clone(spread, env := {})
    twin = new_twin(spread.outvars[0], again)
    position = closed.jaxpr.eqns.index(spread) + 1
    eqns = [jaxprs.substitute(e, env) for e in closed.jaxpr.eqns[position:]]
    jaxpr = jaxprs.with_equations(closed.jaxpr, [*closed.jaxpr.eqns[:position], twin, *eqns])
    sunk = jaxprs.remove_dead_code(sink_spreads(jx.ClosedJaxpr(jaxpr, closed.consts)))
    jx.check_jaxpr(sunk.jaxpr)
    assert [v.aval.shape for v in find_scan(sunk).invars[:1]] == [(8,)]
    assert count_spreads(find_scan(sunk)) == count_spreads(find_scan(closed)) + 1
