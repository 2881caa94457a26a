"""The memory curve, against buffers counted by hand."""

import hypothesis as hp
import hypothesis.strategies as hps
import pytest

from jaxswap.verify.hlo import parse_module
from jaxswap.verify.memory import memory_curve

KIB = 1024


def entry(*lines: str, header: str = "HloModule m, is_scheduled=true", more: str = ""):
    body = "\n".join(f"  {line}" for line in lines)
    return parse_module(f"{header}\n\n{more}ENTRY %main (p: f32[1]) -> f32[1] {{\n{body}\n}}\n")


def call(name: str, operands: str, size: str = "f32[256]{0}"):
    """An opaque kernel: it shares no buffer with anything."""
    return f'%{name} = {size} custom-call({operands}), custom_call_target="kernel"'


def test_a_chain_holds_two_links_at_a_time():
    module = entry(
        "%p = f32[256]{0} parameter(0)",
        call("a", "%p"),
        call("b", "%a"),
        call("c", "%b"),
        "ROOT " + call("d", "%c"),
    )
    curve = memory_curve(module)
    # The argument and the output are there throughout; a op's operand and result coexist.
    assert curve.base_bytes == 2 * KIB
    assert list(curve.bytes_at) == [2 * KIB, 3 * KIB, 4 * KIB, 4 * KIB, 3 * KIB]
    assert curve.peak_bytes == 4 * KIB
    assert [b.name for b in curve.alive_at(2)] == ["a", "b"]


def test_views_and_tuples_keep_their_buffer_alive():
    module = entry(
        "%p = f32[256]{0} parameter(0)",
        call("a", "%p"),
        "%v = f32[16,16]{1,0} bitcast(%a)",
        "%t = (f32[16,16]{1,0}, f32[256]{0}) tuple(%v, %p)",
        call("b", "%p"),
        "%g = f32[16,16]{1,0} get-tuple-element(%t), index=0",
        "ROOT " + call("c", "%g, %b"),
    )
    (a,) = (b for b in memory_curve(module).buffers if b.name == "a")
    assert (a.first, a.last) == (1, 6)


def test_a_fused_result_takes_over_a_dying_operand_of_its_size():
    fused = "%f (a: f32[256]) -> f32[256] {\n  ROOT %a = f32[256]{0} parameter(0)\n}\n\n"
    fusion = "%b = f32[256]{0} fusion(%a), kind=kLoop, calls=%f"
    dying = entry("%p = f32[256]{0} parameter(0)", call("a", "%p"), fusion,
                  "ROOT " + call("c", "%b"), more=fused)  # fmt: skip
    living = entry("%p = f32[256]{0} parameter(0)", call("a", "%p"), fusion,
                   "ROOT " + call("c", "%b, %a"), more=fused)  # fmt: skip
    assert memory_curve(dying).peak_bytes == 3 * KIB
    assert memory_curve(living).peak_bytes == 4 * KIB


@pytest.mark.parametrize(
    ("inside", "operand", "peak_kib"),
    [
        ("negate(%a)", "%a", 3),
        ("transpose(%a), dimensions={0}", "%a", 4),  # elements from elsewhere
        ("negate(%a)", "%v", 4),  # a view of a buffer, as behind a barrier
        ("negate(%a)", "%g", 4),  # one of several results
    ],
)
def test_only_a_buffer_of_its_own_that_is_read_in_place_is_taken_over(inside, operand, peak_kib):
    fused = (
        "%f (a: f32[256]) -> f32[256] {\n"
        "  %a = f32[256]{0} parameter(0)\n"
        f"  ROOT %n = f32[256]{{0}} {inside}\n}}\n\n"
    )
    maker = call("t", "%p", "(f32[256]{0}, u8[0]{0})") if operand == "%g" else call("a", "%p")
    views = {
        "%v": ["%v = f32[256]{0} bitcast(%a)"],
        "%g": ["%g = f32[256]{0} get-tuple-element(%t), index=0"],
    }
    module = entry("%p = f32[256]{0} parameter(0)", maker, *views.get(operand, []),
                   f"%b = f32[256]{{0}} fusion({operand}), kind=kLoop, calls=%f",
                   "ROOT " + call("c", "%b"), more=fused)  # fmt: skip
    assert memory_curve(module).peak_bytes == peak_kib * KIB


def test_host_buffers_take_no_device_memory_and_copies_hold_their_source():
    module = entry(
        "%p = f32[256]{0} parameter(0)",
        call("a", "%p"),
        "%s = (f32[256]{0:S(5)}, f32[256]{0}, u32[]) copy-start(%a)",
        call("b", "%p"),
        "%d = f32[256]{0:S(5)} copy-done(%s)",
        call("c", "%b"),
        "%s2 = (f32[256]{0}, f32[256]{0:S(5)}, u32[]) copy-start(%d)",
        "%d2 = f32[256]{0} copy-done(%s2)",
        "ROOT " + call("e", "%c, %d2"),
    )
    curve = memory_curve(module)
    by_name = {b.name: b for b in curve.buffers}
    assert "s" not in by_name  # it is on the host
    assert by_name["a"].last == 4  # until the copy is done, not until it starts
    assert (by_name["s2"].first, by_name["s2"].last) == (6, 8)


def test_donated_outputs_are_counted_once():
    lines = ("%p = f32[256]{0} parameter(0)", "ROOT " + call("a", "%p"))
    alias = "HloModule m, input_output_alias={ {}: (0, {}, may-alias) }, x=1"
    assert memory_curve(entry(*lines)).base_bytes == 2 * KIB
    assert memory_curve(entry(*lines, header=alias)).base_bytes == KIB


def test_a_loop_needs_its_body_once_on_top_of_its_carry():
    body = (
        "%body (t: (f32[256])) -> (f32[256]) {\n"
        "  %t = (f32[256]{0}) parameter(0)\n"
        "  %x = f32[256]{0} get-tuple-element(%t), index=0\n"
        f"  {call('big', '%x', 'f32[1024]{0}')}\n"
        f"  {call('next', '%big')}\n"
        "  ROOT %out = (f32[256]{0}) tuple(%next)\n}\n\n"
    )
    module = entry(
        "%p = f32[256]{0} parameter(0)",
        call("a", "%p"),
        "%i = (f32[256]{0}) tuple(%a)",
        "%w = (f32[256]{0}) while(%i), condition=%cond, body=%body",
        "%g = f32[256]{0} get-tuple-element(%w), index=0",
        "ROOT " + call("z", "%g"),
        more=body,
    )
    # argument, output, the carry, and the body's one temporary of 4 KiB
    assert memory_curve(module).peak_bytes == (1 + 1 + 1 + 4) * KIB


@hps.composite
def programs(draw):
    """A list of ops: (size in bytes, the earlier ops it reads)."""
    count = draw(hps.integers(1, 12))
    return [
        (
            4 * draw(hps.integers(1, 50)),
            draw(hps.lists(hps.integers(0, k - 1), max_size=3, unique=True)) if k else [],
        )
        for k in range(count)
    ]


@hp.given(programs())
def test_curve_is_the_definition_counted_by_hand(ops):
    lines = ["%p = f32[1]{0} parameter(0)"]
    for k, (size, reads) in enumerate(ops):
        operands = ", ".join(["%p", *(f"%o{r}" for r in reads)])
        lines.append(call(f"o{k}", operands, f"f32[{size // 4}]{{0}}"))
    lines.append("ROOT " + call("root", "%p"))
    curve = memory_curve(entry(*lines))
    for at in range(len(lines)):
        alive = 0
        for k, (size, _) in enumerate(ops):
            readers = [j for j, (_, reads) in enumerate(ops) if k in reads]
            alive += size * (k + 1 <= at <= max([k, *readers]) + 1)
        assert curve.bytes_at[at] == curve.base_bytes + alive
