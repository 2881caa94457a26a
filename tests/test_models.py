"""The model zoo: every step traces, trains, and does the FLOPs that its formula says."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.models import WORKLOADS, Workload, build, concrete
from benchmarks.models._remat import NAMES, POLICIES
from benchmarks.models._vision import count_conv_macs
from benchmarks.models._workload import COMPILE_FAST
from benchmarks.models.moe import route
from benchmarks.models.unet import output_size
from jaxswap._errors import JaxswapError

TRANSFORMER = {"layers": 2, "d_model": 24, "heads": 2, "seq": 12, "vocab": 40, "batch": 3}
IMAGES = {"image": 21, "classes": 7, "batch": 3}
# One of each architecture: the other names differ from these in numbers only.
TINY = {
    "gpt2-small": TRANSFORMER,
    "llama-1b": {**TRANSFORMER, "heads": 4, "kv_heads": 2, "d_hidden": 20},
    "bert-base": {**TRANSFORMER, "layers": 1, "max_predictions": 5},
    "vit-b16": {**IMAGES, "layers": 1, "d_model": 24, "heads": 2, "patch": 4, "image": 12},
    "resnet18": {**IMAGES, "stages": (1, 1), "width": 4},
    "resnet50": {**IMAGES, "stages": (1, 1), "width": 4},
    "vgg16": {**IMAGES, "stages": (1, 2), "width": 4, "d_head": 8},
    "unet": {"depth": 1, "width": 4, "image": 24, "batch": 2},
    "lstm": {"layers": 1, "d_model": 8, "seq": 12, "vocab": 40, "batch": 3},
    "moe": {**TRANSFORMER, "layers": 1, "experts": 4},
    "densenet121": {**IMAGES, "stages": (1, 2), "growth": 4},
}
# Tracing is cheap: where a formula could confuse one layer with all, it is tried on more.
DEEPER = {
    "bert-base": {"layers": 3},
    "vit-b16": {"layers": 3},
    "unet": {"depth": 2, "image": 44},
    "lstm": {"layers": 3},
    "moe": {"layers": 3},
}
# Published parameter counts, in millions, of the models whose sizes are published.
MILLION_PARAMETERS = {
    "llama-1b": 1100,
    "vit-tiny": 5.72,
    "vit-small": 22.05,
    "vit-b16": 86.57,
    "resnet18": 11.69,
    "resnet34": 21.80,
    "resnet50": 25.56,
    "resnet101": 44.55,
    "resnet152": 60.19,
    "vgg16": 138.36,
    "densenet121": 7.98,
    "unet": 31.03,
    "bert-base": 110.1,
    "bert-large": 336.2,
}


@functools.cache
def build_tiny(name: str, **settings) -> Workload:
    return build(name, **{**TINY[name], "dtype": "f32", **settings})


# Nearly all of the time here is compilation: each program is compiled once, and fast.
@functools.cache
def jit_tiny(name: str, **settings):
    return jax.jit(build_tiny(name, **settings).step, compiler_options=COMPILE_FAST)


@functools.cache
def concrete_tiny(name: str, **settings):
    return concrete(build_tiny(name, **settings), 0)


# The oracle: FLOPs read off the jaxpr, one multiply-add at a time.


def count_jaxpr_flops(jaxpr) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive is jax.lax.dot_general_p:
            (contracted, _), _ = eqn.params["dimension_numbers"]
            depth = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * eqn.outvars[0].aval.size * depth
        elif eqn.primitive is jax.lax.conv_general_dilated_p:
            total += count_eqn_conv_flops(eqn)
        repeats = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(inner):
                total += repeats * count_jaxpr_flops(getattr(inner, "jaxpr", inner))
    return total


def is_jaxpr(value) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def count_eqn_conv_flops(eqn) -> int:
    """Counts what meets a number: neither padding nor a hole of a dilation does."""
    lhs, rhs = (v.aval.shape for v in eqn.invars)
    out, p = eqn.outvars[0].aval.shape, eqn.params
    lhs_axes, rhs_axes, out_axes = p["dimension_numbers"]
    taps = 1
    for i, (low, _) in enumerate(p["padding"]):
        at = (
            np.arange(out[out_axes[2 + i]])[:, None] * p["window_strides"][i]
            + np.arange(rhs[rhs_axes[2 + i]]) * p["rhs_dilation"][i]
            - low
        )
        hole = p["lhs_dilation"][i]
        inside = (at >= 0) & (at <= (lhs[lhs_axes[2 + i]] - 1) * hole) & (at % hole == 0)
        taps *= int(inside.sum())
    images = lhs[lhs_axes[0]] // p["batch_group_count"]
    return 2 * taps * images * rhs[rhs_axes[0]] * rhs[rhs_axes[1]]


def count_step_flops(workload: Workload) -> int:
    return count_jaxpr_flops(jax.make_jaxpr(workload.step)(*workload.args).jaxpr)


def test_oracle_counts_a_scan_of_matmuls():
    x = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    f = lambda x: jax.lax.scan(lambda y, _: (y @ x, None), x, length=5)[0]
    assert count_jaxpr_flops(jax.make_jaxpr(f)(x).jaxpr) == 5 * 2 * 4**3


# FLOPs


@pytest.mark.parametrize("name", TINY)
def test_formula_is_the_jaxpr_count_at_tiny_sizes(name):
    workload = build_tiny(name, **DEEPER.get(name, {}))
    assert workload.analytic_flops == count_step_flops(workload)


@pytest.mark.parametrize("name", ["gpt2-small", "resnet50", "vgg16", "lstm"])
def test_formula_is_the_jaxpr_count_at_full_size(name):
    workload = build(name)
    assert workload.analytic_flops == pytest.approx(count_step_flops(workload), rel=0.02)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3, 7])
@pytest.mark.parametrize("size", [1, 2, 7, 12])
def test_conv_macs_are_counted_one_by_one(size, kernel, stride):
    (before, after), _ = jax.lax.padtype_to_pads(
        (size, size), (kernel, kernel), (stride, stride), "SAME"
    )
    padded = [False] * before + [True] * size + [False] * after
    starts = range(0, len(padded) - kernel + 1, stride)
    taps = sum(padded[start + tap] for start in starts for tap in range(kernel))
    macs = count_conv_macs(size=size, kernel=kernel, inputs=3, outputs=5, stride=stride)
    assert macs == taps**2 * 3 * 5


# Workloads


@pytest.mark.parametrize("name", WORKLOADS)
def test_full_size_is_shapes_only(name):
    workload = build(name)
    assert workload.name == name
    assert all(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(workload.args))
    assert workload.args[2].shape[0] == workload.samples
    params = jax.tree.leaves(workload.args[0]["params"])
    assert {x.dtype for x in params} == {jnp.dtype("float32")}
    if name in MILLION_PARAMETERS:
        count = sum(x.size for x in params)
        assert count / 1e6 == pytest.approx(MILLION_PARAMETERS[name], rel=5e-3)


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "bf16") for name in TINY), ("resnet18", "f16")]
)
def test_low_precision_step_keeps_its_state(name, dtype):
    workload = build_tiny(name, dtype=dtype)
    *state, loss = jax.eval_shape(workload.step, *workload.args)
    same = lambda new, old: (new.shape, new.dtype) == (old.shape, old.dtype)
    donated = [workload.args[i] for i in workload.donate_argnums]
    assert jax.tree.all(jax.tree.map(same, state, donated))
    assert (loss.shape, loss.dtype) == ((), jnp.float32)


@pytest.mark.parametrize("name", TINY)
def test_a_step_runs(name):
    args = concrete_tiny(name)
    *state, loss = jit_tiny(name)(*args)
    assert jax.tree.map(jnp.shape, args) == jax.tree.map(jnp.shape, build_tiny(name).args)
    assert np.isfinite(loss)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("gpt2-small", {}), ("gpt2-small", {"dtype": "f16"}), ("resnet18", {})],
)
def test_loss_falls_on_a_fixed_batch(name, settings):
    step = jit_tiny(name, **settings)
    variables, optimizer_state, *batch = concrete_tiny(name, **settings)
    losses = []
    for _ in range(20):
        variables, optimizer_state, loss = step(variables, optimizer_state, *batch)
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]


def test_seed_decides_the_arguments():
    workload, first = build_tiny("vgg16"), concrete_tiny("vgg16")
    same, other = (concrete(workload, seed) for seed in (0, 1))
    equal = lambda x, y: jax.tree.all(jax.tree.map(np.array_equal, x, y))
    assert equal(first, same)
    assert not equal(first[0], other[0])
    assert not equal(first[2:], other[2:])


def test_dropout_mask_comes_from_the_seed_argument():
    *args, seed = concrete_tiny("vgg16", dropout=0.5)
    step = jit_tiny("vgg16", dropout=0.5)
    loss, same, other = (float(step(*args, s)[-1]) for s in (seed, seed, seed + 1))
    assert loss == same
    assert loss != other


@pytest.mark.parametrize("name", ["vgg16", "bert-base"])
def test_a_seed_is_an_argument_only_with_dropout(name):
    plain, dropout = build_tiny(name), build_tiny(name, dropout=0.5)
    assert len(dropout.args) == len(plain.args) + 1
    assert dropout.args[-1].shape == ()
    assert "random_bits" in str(jax.make_jaxpr(dropout.step)(*dropout.args))
    assert "random_bits" not in str(jax.make_jaxpr(plain.step)(*plain.args))


def test_batch_statistics_move():
    args = concrete_tiny("resnet18")
    variables, *_ = jit_tiny("resnet18")(*args)
    moved = jax.tree.map(
        lambda new, old: not np.array_equal(new, old),
        variables["batch_stats"],
        args[0]["batch_stats"],
    )
    assert jax.tree.all(moved)


# Remat and scan


# Every model that has blocks, and every way to save: nothing, by dots, by names, to the host.
REMAT = [
    ("gpt2-small", "nothing_saveable"),
    ("llama-1b", "save:qkv+attention"),
    ("bert-base", "dots_saveable"),
    ("vit-b16", "offload_names"),
    ("moe", "save_names"),
    ("lstm", "nothing_saveable"),
    ("resnet18", "nothing_saveable"),
    ("resnet50", "save:conv"),
    ("vgg16", "offload:conv"),
    ("unet", "save:conv/offload:input"),
]


@pytest.mark.parametrize(("name", "remat"), REMAT)
def test_remat_changes_no_number(name, remat):
    args = concrete_tiny(name)
    plain = jit_tiny(name)(*args)
    again = jit_tiny(name, remat=remat)(*args)
    assert jax.tree.structure(plain) == jax.tree.structure(again)
    for x, y in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("name", dict(REMAT))
def test_remat_keeps_the_arguments_and_recomputes(name):
    plain, again = (build_tiny(name, remat=remat) for remat in (None, "nothing_saveable"))
    assert jax.tree.structure(plain.args) == jax.tree.structure(again.args)
    assert again.analytic_flops == plain.analytic_flops  # recomputation is not in the formula
    assert count_step_flops(again) > count_step_flops(plain)


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "unet"])
def test_saved_convolutions_are_not_recomputed(name):
    # Only dots and convolutions count: with their results saved, nothing is done twice.
    assert count_step_flops(build_tiny(name, remat="save:conv")) == count_step_flops(
        build_tiny(name)
    )


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "unet", "vit-b16", "bert-base", "moe"])
def test_names_to_offload_leave_for_the_host(name):
    workload = build_tiny(name, remat="offload_names")
    assert "<host>" in str(jax.make_jaxpr(workload.step)(*workload.args))


def test_scan_is_the_loop_over_stacked_blocks():
    variables, optimizer_state, tokens = concrete_tiny("gpt2-small")
    *_, looped = jit_tiny("gpt2-small")(variables, optimizer_state, tokens)
    params = dict(variables["params"])
    blocks = [params.pop(f"Block_{i}") for i in range(TRANSFORMER["layers"])]
    stacked = {**params, "Layers": jax.tree.map(lambda *x: np.stack(x), *blocks)}
    scan = build_tiny("gpt2-small", scan=True)
    optimizer_state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), scan.args[1])
    scanned = jit_tiny("gpt2-small", scan=True)({"params": stacked}, optimizer_state, tokens)[-1]
    np.testing.assert_allclose(scanned, looped, rtol=1e-6)


@pytest.mark.parametrize(
    ("remat", "scan"), [*((policy, False) for policy in POLICIES), ("offload_names", True)]
)
def test_every_policy_traces(remat, scan):
    workload = build_tiny("gpt2-small", remat=remat, scan=scan, layers=1)
    text = str(jax.make_jaxpr(workload.step)(*workload.args))
    assert all(f"name={name}" in text for name in NAMES)
    assert ("<host>" in text) == remat.startswith("offload")


# Parts


def test_unet_labels_the_centre_of_the_paper():
    assert output_size(572, 4) == 388


def test_route_is_first_come_first_served():
    gates = jnp.array([[[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.1, 0.2, 0.7]]])
    combine = route(gates, top_k=1, places=1)
    # The second token wants the first's expert, which has one place: it goes nowhere.
    assert combine[0, :, :, 0].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_route_scales_the_chosen_gates_to_one():
    gates = np.random.default_rng(0).dirichlet(np.ones(4), size=(2, 6)).astype(np.float32)
    combine = np.asarray(jax.jit(lambda x: route(x, top_k=2, places=12))(gates))
    np.testing.assert_allclose(combine.sum((2, 3)), 1, rtol=1e-6)
    assert ((combine > 0).sum((2, 3)) == 2).all()
    assert ((combine > 0).sum(1) <= 1).all()  # no place is given twice


# Errors


def test_unknown_name_lists_the_nearest():
    with pytest.raises(ValueError, match=r"`name='resnet51'` is not a work.*nearest are resnet50,"):
        build("resnet51")


def test_a_name_near_nothing_lists_all():
    with pytest.raises(JaxswapError, match=r"gpt2-small.*densenet121"):
        build("")


def test_unknown_setting_lists_the_known():
    with pytest.raises(ValueError, match=r"`depth=3` is not a setting of 'lstm': it has layers,"):
        build("lstm", depth=3)


def test_unknown_dtype_lists_the_known():
    with pytest.raises(ValueError, match=r"`dtype='f64'` is not a precision.*bf16, f16, f32"):
        build("lstm", dtype="f64")


def test_unknown_policy_lists_the_known():
    with pytest.raises(ValueError, match=r"`remat='all'` is not a policy.*offload_names"):
        build("gpt2-small", remat="all")


def test_unknown_name_in_a_policy_lists_the_known():
    with pytest.raises(ValueError, match=r"`remat='save:query'`.*out of input, qkv, .*conv"):
        build("gpt2-small", remat="save:query")
