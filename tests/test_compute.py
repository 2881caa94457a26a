"""Compute: the work of single equations, against XLA's own count."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxswap.model.compute import add_costs, classify, cost_of, count_parts, is_row_reduction
from jaxswap.model.kernel import KernelCost
from jaxswap.verify.verify import verify


def last_equation(fn, *shapes):
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.make_jaxpr(fn)(*args).jaxpr.eqns[-1]


def xla_count(fn, *shapes):
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(fn).lower(*args).cost_analysis()


CASES = {
    "dot": (lambda a, b: lax.dot(a, b), (32, 48), (48, 16)),
    "batched dot": (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (4, 8, 6), (4, 6, 5)),
    "add": (lambda a, b: a + b, (32, 48), (32, 48)),
    "exp": (jnp.exp, (32, 48)),
    "row sum": (lambda a: lax.reduce_sum_p.bind(a, axes=(1,), out_sharding=None), (32, 48)),
    "padded convolution": (
        lambda a, b: lax.conv_general_dilated(
            a, b, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        (2, 9, 9, 4),
        (3, 3, 4, 8),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_flops_are_what_xla_counts(name):
    fn, *shapes = CASES[name]
    cost, facts = cost_of(last_equation(fn, *shapes)), xla_count(fn, *shapes)
    expected = facts.get("flops", 0.0)
    # XLA folds n terms with n - 1 additions; a reduction is counted as one per element.
    assert cost.flops == pytest.approx(expected, rel=0.05, abs=1)
    assert cost.transcendentals == facts.get("transcendentals", 0.0)


def test_a_convolution_that_skips_its_padding_costs_less_than_the_formula():
    fn, *shapes = CASES["padded convolution"]
    eqn = last_equation(fn, *shapes)
    dense = 2 * 2 * 5 * 5 * 8 * 3 * 3 * 4
    assert 0 < cost_of(eqn).matrix_flops < dense


def convolve(image, kernel, padding="VALID", **holes):
    return lax.conv_general_dilated(
        image, kernel, (1,), padding, dimension_numbers=("NWC", "WIO", "NWC"), **holes
    )


@pytest.mark.parametrize(("padding", "times"), [([(8, 0)], 3), ([(4, 4)], 1), ("VALID", 1)])
def test_holes_of_a_kernel_are_computed_with_where_xla_pads(padding, times):
    """A kernel of 3 with holes of 4 is then one of 9, most of it zeros."""
    fn = lambda x, w: convolve(x, w, padding, rhs_dilation=(4,))
    shapes = (2, 64, 4), (3, 4, 8)
    expected = times * xla_count(fn, *shapes)["flops"]
    assert cost_of(last_equation(fn, *shapes)).matrix_flops == pytest.approx(expected)


@pytest.mark.gpu_compile
@pytest.mark.parametrize("padding", [[(8, 0)], [(4, 4)], "VALID"])
def test_holes_cost_what_they_cost_compiled(padding):
    fn = lambda x, w: convolve(x, w, padding, rhs_dilation=(4,))
    shapes = (2, 64, 128), (3, 128, 128)
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    found = verify(fn, *args, device="h100-sxm").timeline.matrix_flops
    assert cost_of(last_equation(fn, *shapes)).matrix_flops == pytest.approx(found, rel=0.15)


def test_strides_in_the_gradient_of_a_kernel_are_no_holes():
    """It is a convolution with the image's gradient as its kernel, which is larger than it."""
    fn = lambda x, g: convolve(x, g, [(1, 0)], rhs_dilation=(2,))
    eqn = last_equation(fn, (2, 64, 4), (32, 4, 8))
    assert cost_of(eqn).matrix_flops <= 2 * 2 * 3 * 8 * 32 * 4


def test_exact_dots_say_so():
    exact = lambda a, b: lax.dot(a, b, precision=lax.Precision.HIGHEST)
    assert cost_of(last_equation(exact, (4, 4), (4, 4))).is_exact
    assert not cost_of(last_equation(lax.dot, (4, 4), (4, 4))).is_exact


def test_what_is_inside_a_branch_is_counted_once_and_the_largest_branch_counts():
    def fn(x):
        return lax.cond(x[0, 0] > 0, lambda y: y @ y @ y, lambda y: y @ y, x)

    eqn = last_equation(fn, (8, 8))
    assert classify(eqn) == "opaque"
    assert cost_of(eqn).matrix_flops == 2 * (2 * 8**3)


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (jnp.tanh, "map"),
        (lambda a: a.T, "map"),
        (lambda a: lax.reduce_max_p.bind(a, axes=(0,), out_sharding=None), "reduce"),
        (lambda a: a.at[3].add(a[0]), "update"),
        (lax.cumsum, "opaque"),
        (lambda a: lax.sort(a), "opaque"),
    ],
)
def test_kinds(fn, kind):
    assert classify(last_equation(fn, (8, 8))) == kind


def test_rows_and_long_columns():
    sum_over = lambda axes: lambda a: lax.reduce_sum_p.bind(a, axes=axes, out_sharding=None)
    assert is_row_reduction(last_equation(sum_over((1, 2)), (8, 4, 4)))
    assert not is_row_reduction(last_equation(sum_over((0,)), (8, 4)))
    assert is_row_reduction(last_equation(sum_over((0,)), (8, 1)))
    assert count_parts(last_equation(sum_over((0,)), (4096, 8))) == 1
    assert count_parts(last_equation(sum_over((0,)), (16384, 8))) == 128
    assert count_parts(last_equation(sum_over((1,)), (8, 16384))) == 1


def test_costs_add_up_to_the_kind_with_most_matrix_work():
    dot = KernelCost(kind="dot", dtype="bfloat16", matrix_flops=8.0)
    total = add_costs([KernelCost(vector_flops=2.0), dot, KernelCost(transcendentals=3.0)])
    assert total == KernelCost(
        kind="dot", dtype="bfloat16", matrix_flops=8.0, vector_flops=2.0, transcendentals=3.0
    )
    assert add_costs([]) == KernelCost()
