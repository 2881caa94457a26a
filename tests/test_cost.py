"""Kernel costs, against arithmetic written out by hand."""

import pytest

from jaxswap.verify.cost import KernelCosts
from jaxswap.verify.hlo import parse_module

FUSED = """\
%fused (a: bf16[64,32], b: bf16[32,16]) -> bf16[64,16] {
  %a = bf16[64,32]{1,0} parameter(0)
  %b = bf16[32,16]{1,0} parameter(1)
  %dot = bf16[64,16]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %tanh = bf16[64,16]{1,0} tanh(%dot)
}

%slice (a: f32[100,256], i: s32[]) -> f32[1,256] {
  %a = f32[100,256]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %s = f32[1,256]{1,0} dynamic-slice(%a, %i, %zero), dynamic_slice_sizes={1,256}
}

%update (a: f32[100,256], u: f32[1,256], i: s32[]) -> f32[100,256] {
  %a = f32[100,256]{1,0} parameter(0)
  %u = f32[1,256]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %s = f32[100,256]{1,0} dynamic-update-slice(%a, %u, %i, %zero)
}

%slice_of_view (a: f32[100,16,16], i: s32[]) -> f32[1,256] {
  %a = f32[100,16,16]{2,1,0} parameter(0)
  %view = f32[100,256]{1,0} bitcast(%a)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %s = f32[1,256]{1,0} dynamic-slice(%view, %i, %zero), dynamic_slice_sizes={1,256}
}

%update_of_view (a: f32[100,16,16], u: f32[16,16], i: s32[]) -> f32[100,256] {
  %a = f32[100,16,16]{2,1,0} parameter(0)
  %view = f32[100,256]{1,0} bitcast(%a)
  %u = f32[16,16]{1,0} parameter(1)
  %part = f32[1,256]{1,0} bitcast(%u)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %s = f32[100,256]{1,0} dynamic-update-slice(%view, %part, %i, %zero)
}

%view_read_twice (a: f32[100,16,16], i: s32[]) -> (f32[1,256], f32[100,256]) {
  %a = f32[100,16,16]{2,1,0} parameter(0)
  %view = f32[100,256]{1,0} bitcast(%a)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  %s = f32[1,256]{1,0} dynamic-slice(%view, %i, %zero), dynamic_slice_sizes={1,256}
  %n = f32[100,256]{1,0} negate(%view)
  ROOT %both = (f32[1,256]{1,0}, f32[100,256]{1,0}) tuple(%s, %n)
}

%view_alone (a: f32[100,16,16]) -> f32[100,256] {
  %a = f32[100,16,16]{2,1,0} parameter(0)
  ROOT %view = f32[100,256]{1,0} bitcast(%a)
}

"""


def cost_of(line: str, *parameters: str):
    lines = [f"%p{k} = {type_} parameter({k})" for k, type_ in enumerate(parameters)]
    body = "\n".join(f"  {each}" for each in [*lines, "ROOT " + line])
    module = parse_module(f"HloModule m\n\n{FUSED}ENTRY %main (p: f32[1]) -> f32[1] {{\n{body}\n}}")
    return KernelCosts(module).of(module.entry.root, module.entry)


def test_a_fusion_counts_its_dot_apart_and_its_bytes_at_the_edge():
    cost = cost_of(
        "%k = bf16[64,16]{1,0} fusion(%p0, %p1), kind=kCustom, calls=%fused",
        "bf16[64,32]{1,0}", "bf16[32,16]{1,0}",
    )  # fmt: skip
    assert (cost.kind, cost.dtype) == ("dot", "bf16")
    assert cost.matrix_flops == 2 * 64 * 32 * 16
    assert cost.transcendentals == 64 * 16
    assert cost.size_bytes == 2 * (64 * 32 + 32 * 16 + 64 * 16)


def test_a_slice_is_only_a_slice():
    cost = cost_of(
        "%k = f32[1,256]{1,0} fusion(%p0, %p1), kind=kLoop, calls=%slice",
        "f32[100,256]{1,0}", "s32[]",
    )  # fmt: skip
    assert cost.size_bytes == 4 * (256 + 256) + 4  # read, written, and the index


@pytest.mark.parametrize(
    ("line", "size_bytes"),
    [
        ("f32[1,256]{1,0} fusion(%p0, %p1), kind=kLoop, calls=%slice_of_view", 4 * 512 + 4),
        (
            "f32[100,256]{1,0} fusion(%p0, %p2, %p1), kind=kLoop, calls=%update_of_view",
            4 * 512 + 4,
        ),
        # All of it is read and written, and so is the slice.
        (
            "(f32[1,256]{1,0}, f32[100,256]{1,0}) fusion(%p0, %p1), kind=kLoop, "
            "calls=%view_read_twice",
            4 * (2 * 25600 + 512) + 4,
        ),
        ("f32[100,256]{1,0} fusion(%p0), kind=kLoop, calls=%view_alone", 4 * 2 * 25600),
    ],
    ids=["slice", "update", "both", "root"],
)
def test_what_is_seen_differently_costs_the_same(line, size_bytes):
    parameters = ("f32[100,16,16]{2,1,0}", "s32[]", "f32[16,16]{1,0}")
    assert cost_of(f"%k = {line}", *parameters).size_bytes == size_bytes


def test_an_update_in_place_touches_only_its_slice():
    cost = cost_of(
        "%k = f32[100,256]{1,0} fusion(%p0, %p1, %p2), kind=kLoop, calls=%update",
        "f32[100,256]{1,0}", "f32[1,256]{1,0}", "s32[]",
    )  # fmt: skip
    assert cost.size_bytes == 4 * (256 + 256) + 4


IMAGE, FILTER, OUTPUT = (
    "f16[8,32,32,16]{3,2,1,0}",
    "f16[64,3,3,16]{3,2,1,0}",
    "f16[8,30,30,64]{3,2,1,0}",
)


@pytest.mark.parametrize(
    ("target", "operands", "result"),
    [
        ("convForward", (IMAGE, FILTER), OUTPUT),
        ("convBiasActivationForward", (IMAGE, FILTER, "f16[64]{0}"), OUTPUT),
        ("convBackwardInput", (OUTPUT, FILTER), IMAGE),
        ("convBackwardFilter", (IMAGE, OUTPUT), FILTER),
    ],
)
def test_library_convolutions_are_the_same_multiplications(target, operands, result):
    names = ", ".join(f"%p{k}" for k in range(len(operands)))
    cost = cost_of(
        f"%k = ({result}, u8[0]{{0}}) custom-call({names}), window={{size=3x3}}, "
        f'dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn${target}"',
        *operands,
    )
    assert (cost.kind, cost.dtype) == ("conv", "f16")
    assert cost.matrix_flops == 2 * (8 * 30 * 30 * 64) * (3 * 3 * 16)


def test_library_dots_are_counted_from_their_dimension_numbers():
    cost = cost_of(
        "%k = (f16[4,64,16]{2,1,0}, s8[0]{0}) custom-call(%p0, %p1), "
        'custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":'
        '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"],'
        '"rhs_contracting_dimensions":["1"],"lhs_batch_dimensions":["0"],'
        '"rhs_batch_dimensions":["0"]}}}',
        "f16[4,64,32]{2,1,0}", "f16[4,32,16]{2,1,0}",
    )  # fmt: skip
    assert cost.matrix_flops == 2 * 4 * 64 * 32 * 16
    assert cost.size_bytes == 2 * 4 * (64 * 32 + 32 * 16 + 64 * 16)


def test_exact_dots_are_marked():
    line = "%k = f32[8,8]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    types = ("f32[8,8]{1,0}", "f32[8,8]{1,0}")
    assert not cost_of(line, *types).is_exact
    assert cost_of(line + ", operand_precision={highest,highest}", *types).is_exact


def test_an_unknown_library_call_costs_its_bytes():
    cost = cost_of('%k = f32[16]{0} custom-call(%p0), custom_call_target="x"', "f32[64]{0}")
    assert cost.size_bytes == 4 * (16 + 64)
    assert cost.flops == 0
