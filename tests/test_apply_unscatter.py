"""Unscatter: one-hot gradients place by place, what stays a scatter, and what a step makes of it.

What replaces a scatter is on the CPU that scatter again, when jitted; called op by op it is what a
GPU runs, so programs are evaluated here without `jit`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from jaxswap.apply import Decision, apply_decisions, jaxprs, name_values
from jaxswap.apply.jaxprs import jx
from jaxswap.apply.unscatter import select_scattered_p, unscatter
from jaxswap.model.presets import find_device
from jaxswap.model.simulate import forecast_unplanned, simulate, simulate_many
from jaxswap.model.timeline import build_timeline
from jaxswap.program.trace import trace_program
from jaxswap.verify import target

RNG = np.random.default_rng(0)
H100 = find_device("h100-sxm")
MODES = ["fill", "clip", "promise_in_bounds"]


def normal(*shape):
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


X = normal(3, 4, 5)
ROWS, LABELS = normal(4, 6), jnp.array([2, 0, 5, 2])


def is_scatter(eqn):
    return eqn.primitive is jx.primitives.scatter_add_p


def is_selected(eqn):
    return eqn.primitive is select_scattered_p


def evaluate(closed, *args):
    return jx.eval_jaxpr(closed.jaxpr, closed.consts, *args)


def assert_same_bits(expected, found):
    for one, other in zip(expected, found, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def check_rewritten(fn, *args):
    """No scatter is left, at any depth, and the bits are the same; returns both programs."""
    written = jax.make_jaxpr(fn)(*args)
    rewritten = unscatter(written)
    jx.check_jaxpr(rewritten.jaxpr)
    assert jaxprs.any_equation(written.jaxpr, is_scatter)
    assert_same_bits(evaluate(written, *args), evaluate(rewritten, *args))
    assert jaxprs.any_equation(rewritten.jaxpr, is_selected)
    assert not jaxprs.any_equation(rewritten.jaxpr, is_scatter)
    return written, rewritten


def check_untouched(fn, *args):
    written = jax.make_jaxpr(fn)(*args)
    assert jaxprs.any_equation(written.jaxpr, is_scatter)
    assert unscatter(written) is written


def take(x, indices, axis=-1, mode=None):
    """One number of each row along an axis; NaNs, of indices out of bounds, count as zeros."""
    taken = jnp.take_along_axis(x, jnp.expand_dims(indices, axis), axis=axis, mode=mode)
    return jnp.nan_to_num(taken)


def loss(x, indices, axis=-1, mode=None):
    return jnp.sum(take(x, indices, axis, mode) ** 2)


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("bounds", [(0, 3), (-4, 0), (-12, 12)], ids=["in", "negative", "out"])
def test_one_number_of_each_row_is_selected(axis, mode, bounds):
    """Along any axis, so that rows come in any order."""
    indices = jnp.asarray(RNG.integers(*bounds, [n for d, n in enumerate(X.shape) if d != axis]))
    check_rewritten(jax.grad(functools.partial(loss, axis=axis, mode=mode)), X, indices)


def scatter(updates, indices, *, shape, mode, start=0.0, **numbers):
    """Raw: what JAX's own indexing never asks for, other programs may."""
    rule = {"update_window_dims": (), "inserted_window_dims": (1,)}
    rule |= {"scatter_dims_to_operand_dims": (1,), "operand_batching_dims": (0,)}
    rule |= {"scatter_indices_batching_dims": (0,)}
    numbers = jax.lax.ScatterDimensionNumbers(**(rule | numbers))
    zeros = jnp.full(shape, start, updates.dtype)
    return jax.lax.scatter_add(zeros, indices, updates, numbers, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_rows_may_stand_in_another_order_in_the_indices(mode):
    fn = functools.partial(
        scatter, shape=(3, 4, 5), mode=mode, inserted_window_dims=(1,),
        operand_batching_dims=(0, 2), scatter_indices_batching_dims=(1, 0),
    )  # fmt: skip
    indices = jnp.asarray(RNG.integers(-2, 6, (5, 3, 1)))
    check_rewritten(fn, normal(5, 3), indices)


def test_indices_out_of_bounds_are_met_nowhere():
    fn = functools.partial(scatter, shape=(3, 4), mode="fill")
    _, rewritten = check_rewritten(fn, jnp.ones(3), jnp.array([[-1], [4], [2]]))
    (found,) = evaluate(rewritten, jnp.ones(3), jnp.array([[-1], [4], [2]]))
    np.testing.assert_array_equal(found.sum(axis=1), [0, 0, 1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.int16, jnp.uint32])
def test_indices_may_be_of_any_integer_type(mode, dtype):
    """The axis may be longer than the type can count."""
    fn = functools.partial(scatter, shape=(4, 300), mode=mode)
    check_rewritten(fn, normal(4), jnp.array([[0], [5], [127], [100]], dtype))


@pytest.mark.parametrize("mode", ["fill", "clip"])
def test_an_index_of_64_bits_is_not_cut_to_32(mode):
    with jax.enable_x64(True):
        indices = jnp.array([[2**32 + 1], [-(2**32)], [1]], jnp.int64)
        check_rewritten(functools.partial(scatter, shape=(3, 4), mode=mode), normal(3), indices)


def test_what_a_cross_entropy_scatters_into_the_logits_is_selected():
    """Whatever becomes of arrays of one number per row."""
    written = jax.make_jaxpr(jax.value_and_grad(cross_entropy))(ROWS, LABELS)
    rewritten = unscatter(written)
    is_large = lambda eqn: is_scatter(eqn) and eqn.outvars[0].aval.shape == ROWS.shape
    assert jaxprs.any_equation(written.jaxpr, is_large)
    assert not jaxprs.any_equation(rewritten.jaxpr, is_large)
    assert_same_bits(evaluate(written, ROWS, LABELS), evaluate(rewritten, ROWS, LABELS))


def test_indexing_that_is_mapped_over_rows_is_selected():
    pick = lambda x, labels: jnp.sum(jax.vmap(lambda row, label: row[label])(x, labels) ** 2)
    check_rewritten(jax.grad(pick), ROWS, LABELS)
    check_rewritten(jax.grad(pick), ROWS, jnp.array([-1, 9, 0, -9]))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_halves_are_selected_too(dtype):
    check_rewritten(jax.grad(loss), ROWS.astype(dtype), LABELS)


def test_one_number_of_a_vector_is_selected():
    check_rewritten(jax.grad(lambda x, k: jnp.sum(x[k] ** 2)), ROWS[0], jnp.array([3]))


@pytest.mark.parametrize("shape", [(1, 4, 6), (4, 1, 6), (1, 6)])
def test_a_batch_of_one_is_selected_too(shape):
    """JAX makes such an axis part of what each update covers."""
    check_rewritten(jax.grad(loss), normal(*shape), jnp.zeros(shape[:-1], jnp.int32))


def test_what_is_selected_is_a_scatter_on_the_cpu_and_none_elsewhere():
    _, rewritten = check_rewritten(jax.grad(loss), ROWS, LABELS)
    traced = jax.jit(functools.partial(evaluate, rewritten)).trace(ROWS, LABELS)
    count = lambda name: traced.lower(lowering_platforms=(name,)).as_text().count("scatter")
    assert count("cpu") > 0
    assert count("cuda") == 0


def test_several_numbers_of_a_row_stay_a_scatter():
    several = jnp.array([[0, 1], [2, 2], [5, 0], [1, 3]])
    fn = lambda x, indices: jnp.sum(jnp.take_along_axis(x, indices, axis=1) ** 2)
    check_untouched(jax.grad(fn), ROWS, several)
    check_untouched(jax.grad(lambda x, k: jnp.sum(x[k] ** 2)), ROWS[0], jnp.array([3, 3]))


def test_the_gradient_of_an_embedding_table_stays_a_scatter():
    check_untouched(jax.grad(lambda table, k: jnp.sum(table[k] ** 2)), ROWS, LABELS)
    check_untouched(jax.grad(lambda table, k: jnp.sum(table[k] ** 2)), ROWS, LABELS[:1])


def test_what_goes_to_several_axes_stays_a_scatter():
    pairs = lambda x, k: jnp.sum(x[jnp.arange(4), k] ** 2)
    check_untouched(jax.grad(pairs), ROWS, LABELS)


@pytest.mark.parametrize("start", [1.0, jnp.nan])
def test_what_is_added_to_something_stays_a_scatter(start):
    fn = functools.partial(scatter, shape=(4, 6), mode="fill", start=start)
    check_untouched(fn, normal(4), LABELS[:, None])


def test_what_is_added_to_an_argument_stays_a_scatter():
    numbers = jax.lax.ScatterDimensionNumbers((), (1,), (1,), (0,), (0,))
    fn = lambda x, indices, updates: jax.lax.scatter_add(x, indices, updates, numbers)
    check_untouched(fn, ROWS, LABELS[:, None], normal(4))


def test_integers_stay_a_scatter():
    fn = functools.partial(scatter, shape=(4, 6), mode="fill")
    check_untouched(fn, jnp.arange(4), LABELS[:, None])


def in_scan(x, labels):
    body = lambda total, rows: (total + loss(jnp.sin(rows[0]), rows[1]) * total, None)
    return jax.lax.scan(body, 1.0, (x.reshape(2, 2, 6), labels.reshape(2, 2)))[0]


def in_cond(x, labels):
    near, far = (lambda y, f=f: loss(f(y), labels) for f in (jnp.sin, jnp.cos))
    return jax.lax.cond(labels[0] > 1, near, far, x)


def in_checkpoint(x, labels):
    return jax.checkpoint(lambda y: loss(jnp.sin(y), labels))(x) ** 2


def in_checkpoint_with_a_constant(x, labels):
    """A jitted function has an array of its own, and is called from a rewritten body."""
    scale = jax.jit(lambda y: y * ROWS)
    return jax.checkpoint(lambda y: loss(jnp.sin(scale(y)), labels))(x) ** 2


def in_all_of_them(x, labels):
    body = lambda total, _: (total + jax.checkpoint(in_cond)(x * total, labels), None)
    return jax.lax.scan(body, 1.0, None, length=2)[0]


NESTED = [in_scan, in_cond, in_checkpoint, in_checkpoint_with_a_constant, in_all_of_them]


@pytest.mark.parametrize("fn", NESTED)
def test_bodies_are_rewritten_too(fn):
    check_rewritten(jax.grad(fn), ROWS, LABELS)


def test_a_loop_without_an_end_known_before_is_rewritten_too():
    def ascend(x, labels):
        step = lambda state: (state[0] + 1, state[1] + 0.1 * jax.grad(loss)(state[1], labels))
        return jax.lax.while_loop(lambda state: state[0] < 3, step, (0, x))[1]

    check_rewritten(ascend, ROWS, LABELS)


def sharded(fn):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(fn, mesh=mesh, in_specs=P("d"), out_specs=P("d"))


def test_a_shard_map_inside_a_step_means_what_it_meant():
    fn = lambda x, labels: sharded(jax.grad(loss))(jnp.sin(x), labels) + jax.grad(loss)(x, labels)
    written = jax.make_jaxpr(fn)(ROWS, LABELS)
    rewritten = unscatter(written)
    assert rewritten is not written
    for run in (lambda f: f, jax.jit):
        expected, found = (run(functools.partial(evaluate, c))(ROWS, LABELS) for c in
                           (written, rewritten))  # fmt: skip
        assert_same_bits(expected, found)


def test_a_step_inside_a_shard_map_means_what_it_meant():
    step = lambda x, labels: jax.grad(lambda x: loss(jnp.sin(x), labels))(x)
    applied = apply_decisions(step, {"0/0": Decision(action="keep")})
    expected, found = (jax.jit(sharded(f))(ROWS, LABELS) for f in (step, applied))
    assert_same_bits([expected], [found])


def branch(x):
    return jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)


def loop(x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=3)[0]


def solve(x):
    return jax.lax.custom_linear_solve(
        lambda v: 2.0 * v, x, lambda f, b: b / 2.0, transpose_solve=lambda f, b: b / 2.0
    )


@pytest.mark.parametrize(
    "fn",
    [jnp.sin, jax.jit(jnp.sin), jax.nn.relu, loop, jax.checkpoint(loop), branch,
     jax.checkpoint(branch), solve],
    ids=["plain", "jit", "custom", "scan", "checkpoint", "cond", "checkpoint-cond", "solve"],
)  # fmt: skip
def test_a_program_with_nothing_to_change_is_the_very_same(fn):
    for each in (fn, jax.grad(lambda x: jnp.sum(fn(x) ** 2))):
        closed = jax.make_jaxpr(each)(ROWS)
        assert unscatter(closed) is closed


def test_an_equation_is_traced_instead_only_if_its_type_stays():
    written = jax.make_jaxpr(lambda x, y: (x * y) * x)(ROWS, ROWS)
    eqn = written.jaxpr.eqns[0]
    made = jaxprs.trace_instead(eqn, lambda x, y: -(-x * y))
    assert made is not None
    assert made[-1].outvars == eqn.outvars
    assert all(e.source_info is eqn.source_info for e in made)
    jaxpr = jaxprs.with_equations(written.jaxpr, [*made, *written.jaxpr.eqns[1:]])
    jx.check_jaxpr(jaxpr)
    args = ROWS, ROWS + 1
    assert_same_bits(evaluate(written, *args), jx.eval_jaxpr(jaxpr, (), *args))
    assert jaxprs.trace_instead(eqn, lambda x, y: (x * y)[0]) is None
    assert jaxprs.trace_instead(eqn, lambda x, y: (x * y).astype(jnp.bfloat16)) is None


def test_an_equation_that_reads_numbers_and_the_same_twice_can_be_traced_instead():
    written = jax.make_jaxpr(lambda x: (x + x) * 2.0)(ROWS)
    eqns = []
    for eqn, fn in zip(written.jaxpr.eqns, (lambda a, b: b - -a, lambda a, b: b * a), strict=True):
        eqns += jaxprs.trace_instead(eqn, fn)
    jaxpr = jaxprs.with_equations(written.jaxpr, eqns)
    jx.check_jaxpr(jaxpr)
    assert_same_bits(evaluate(written, ROWS), jx.eval_jaxpr(jaxpr, (), ROWS))


def twins():
    """A gradient by labels of what was weighted, as written and rewritten."""
    fn = lambda x, weights: jax.grad(lambda x: jnp.sum(weights * take(jnp.sin(x), LABELS) ** 2))(x)
    args = ROWS, normal(4, 1)
    both = check_rewritten(fn, *args)
    return *(lambda *xs, c=c: evaluate(c, *xs)[0] for c in both), args


def test_derivatives_are_those_of_the_original():
    written, rewritten, args = twins()
    same = functools.partial(jax.tree.map, functools.partial(np.testing.assert_allclose, rtol=1e-6))
    tangents = jax.tree.map(lambda x: normal(*x.shape), args)
    push = lambda f: jax.jvp(f, args, tangents)
    same(push(written), push(rewritten))
    pull = lambda f: jax.grad(lambda *xs: jnp.sum(jnp.sin(f(*xs))), (0, 1))(*args)
    assert all(np.any(grad) for grad in pull(written))
    same(pull(written), pull(rewritten))
    jitted = jax.jit(lambda *xs: jax.grad(lambda *xs: jnp.sum(rewritten(*xs)), (0, 1))(*xs))
    same(jax.grad(lambda *xs: jnp.sum(written(*xs)), (0, 1))(*args), jitted(*args))


@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (0, None), (2, 1)])
def test_it_is_mapped_like_the_original(axes):
    """Of the indices too: those of each are their own."""
    numbers = normal(*ROWS.shape), LABELS
    _, rewritten = check_rewritten(jax.grad(loss), *numbers)
    grown = [
        x if axis is None else jnp.stack([x, x + 1, 2 * x], axis)
        for x, axis in zip(numbers, axes, strict=True)
    ]
    mapped = jax.vmap(lambda *xs: evaluate(rewritten, *xs)[0], axes)(*grown)
    expected = jax.vmap(jax.grad(loss), axes)(*grown)
    assert_same_bits([expected], [mapped])


SHAPE = jax.ShapeDtypeStruct
TOKENS, WIDTH, VOCABULARY = 2048, 256, 8192
ARGS = (
    {
        "hidden": SHAPE((2, WIDTH, WIDTH), jnp.float32),
        "out": SHAPE((WIDTH, VOCABULARY), jnp.float32),
    },
    SHAPE((TOKENS, WIDTH), jnp.float32),
    SHAPE((TOKENS,), jnp.int32),
)


def gpt_like(pick, params, x, labels):
    """Some layers, and logits from which `pick` takes the losses."""
    for k in range(2):
        x = jnp.tanh(x @ params["hidden"][k])
    return jnp.mean(pick(x @ params["out"], labels))


def pick_labels(logits, labels):
    taken = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
    return -taken


def trace(pick, **settings):
    return trace_program(jax.grad(functools.partial(gpt_like, pick)), *ARGS, **settings)


def has_scatter(program):
    """Whether it scatters into the logits; numbers of one per row are no matter."""
    scatters = [op for op in program.ops if "scatter-add" in op.name]
    largest = max(value.size_bytes for value in program.values)
    return any(program.values[v].size_bytes == largest for op in scatters for v in op.writes)


@pytest.mark.parametrize(
    "pick", [pick_labels, optax.softmax_cross_entropy_with_integer_labels], ids=["taken", "optax"]
)
def test_a_program_has_the_step_as_written_beside_it(pick):
    program = trace(pick)
    assert program.written is not None
    assert program.written.written is None
    assert has_scatter(program.written)
    assert not has_scatter(program)
    assert set(program.candidate_names) <= {v.name for v in program.written.values}
    assert program.base_bytes == program.written.base_bytes


def test_a_program_without_scatters_is_alone():
    assert trace(lambda logits, _: jax.nn.logsumexp(logits, -1)).written is None


def test_a_program_with_branches_and_without_scatters_is_alone():
    pick = lambda x, labels: jax.lax.cond(labels[0] > 0, jnp.sin, jnp.cos, x)
    assert trace(pick).written is None


def test_the_empty_plan_is_the_step_as_written():
    program = trace(pick_labels)
    forecast, written = simulate(program, {}, H100), simulate(program.written, {}, H100)
    assert forecast == written
    assert forecast.bytes_at == written.bytes_at
    assert forecast.baseline == written.baseline
    keep = dict.fromkeys(program.candidate_names, Decision(action="keep"))
    assert simulate(program, keep, H100) == forecast
    assert forecast_unplanned(program, build_timeline(program, H100)) == written.baseline


def test_a_plan_is_of_the_step_that_scatters_nothing_and_its_baseline_of_that_as_written():
    program = trace(pick_labels)
    name = program.candidate_names[0]
    plan = {name: Decision(action="recompute")}
    forecast = simulate(program, plan, H100)
    assert len(forecast.bytes_at) == len(program.ops)
    assert forecast.baseline == simulate(program, {}, H100).baseline
    assert forecast.baseline.peak_bytes == simulate(program.written, {}, H100).peak_bytes
    assert forecast.peak_bytes < forecast.baseline.peak_bytes


@pytest.mark.parametrize("figure", ["peak_bytes", "step_s", "stall_s", "host_bytes", "recompute_s"])
def test_many_plans_at_once_are_the_same_one_by_one(figure):
    """In every figure, rows that keep everything among others."""
    program = trace(pick_labels)
    count = len(program.candidates)
    actions = np.array([[0] * count, [2] * count, [0] * count, [1] * count])
    timeline = build_timeline(program, H100)
    assert timeline.written is not None
    many = simulate_many(timeline, actions, np.ones_like(actions), np.ones_like(actions))
    for row, action in enumerate(["keep", "recompute", "keep", "offload"]):
        decision = Decision(action=action, window_ops=1, reload_ahead_ops=1)
        one = simulate(program, dict.fromkeys(program.candidate_names, decision), H100)
        assert getattr(many, figure)[row] == pytest.approx(getattr(one, figure), rel=1e-12)


@pytest.mark.gpu_compile
@pytest.mark.parametrize(
    "pick", [pick_labels, optax.softmax_cross_entropy_with_integer_labels], ids=["taken", "optax"]
)
def test_on_a_gpu_logits_are_not_scattered_into_and_take_less(pick):
    def step(w, x, labels):
        loss = lambda w: jnp.mean(pick((x @ w).astype(jnp.float32), labels))
        return jax.value_and_grad(loss)(w)

    half = functools.partial(SHAPE, dtype=jnp.bfloat16)
    args = half((512, 8192)), half((4096, 512)), SHAPE((4096,), jnp.int32)
    dots = [v.name for v in name_values(step, *args) if v.primitive == "dot_general"]
    applied = apply_decisions(step, dict.fromkeys(dots, Decision(action="recompute")))
    before, after = (target.compile_for(f, args, H100) for f in (step, applied))
    assert "scatter" in before.hlo_text
    assert after.device_bytes < before.device_bytes
    assert "scatter(" not in after.hlo_text


# ---- meshes ----


def mesh_of_one(axis_type):
    return jax.make_mesh((1,), ("d",), axis_types=(axis_type,))


def test_on_a_mesh_whose_axes_are_xlas_it_is_rewritten_too():
    mesh = mesh_of_one(jax.sharding.AxisType.Auto)
    rows = jax.ShapeDtypeStruct(
        ROWS.shape,
        ROWS.dtype,
        sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d")),
    )
    written = jax.make_jaxpr(jax.grad(cross_entropy))(rows, LABELS)
    is_large = lambda eqn: is_scatter(eqn) and eqn.outvars[0].aval.shape == ROWS.shape
    assert jaxprs.any_equation(written.jaxpr, is_large)
    assert not jaxprs.any_equation(unscatter(written).jaxpr, is_large)


def test_on_a_mesh_with_explicit_axes_it_stays_as_written():
    mesh = mesh_of_one(jax.sharding.AxisType.Explicit)
    with jax.set_mesh(mesh):
        rows = jax.device_put(ROWS, jax.sharding.PartitionSpec("d", None))
        written = jax.make_jaxpr(jax.grad(cross_entropy))(rows, LABELS)
        assert unscatter(written) is written
