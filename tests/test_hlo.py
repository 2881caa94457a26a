"""The parser: every form of line that the scheduled modules of XLA:GPU have."""

import pathlib

import pytest

from jaxswap.verify import frames
from jaxswap.verify.hlo import Array, parse_arrays, parse_instruction, parse_module, strip_metadata

MODULE = """\
HloModule jit_f, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias), {2}: (0, {}, \
must-alias) }, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

FileNames
1 "folder/model.py"
2 "other/train.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=41 end_line=41 column=2 end_column=4}
2 {file_name_id=2 function_name_id=1 line=7 end_line=7 column=2 end_column=4}

StackFrames
1 {file_location_id=2 parent_frame_id=1}
2 {file_location_id=1 parent_frame_id=1}


%inner (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  ROOT %neg = f32[4]{0} negate(%a)
}

ENTRY %main.3 (x: f32[4], y: f32[4]) -> (f32[4], f32[4], f32[4]) {
  %x = f32[4]{0} parameter(0)
  %y = f32[4]{0} parameter(1)
  %k = f32[4]{0} fusion(%x), kind=kLoop, calls=%inner, metadata={op_name="jit(f)/Block_0/\
{weird}\\"name" stack_frame_id=2}
  %w = (s32[], f32[4]{0}) while(%t), condition=%c, body=%b, \
backend_config={"known_trip_count":{"n":"12"}}
  ROOT %t = (f32[4]{0}, f32[4]{0}, f32[4]{0}) tuple(%k, %x, %y)
}
"""


def test_module_has_its_computations_and_entry():
    module = parse_module(MODULE)
    assert module.entry_name == "main.3"
    assert set(module.blocks) == {"inner", "main.3"}
    assert [i.name for i in module.entry.instructions] == ["x", "y", "k", "w", "t"]
    assert module.entry.root.operands == ("k", "x", "y")


def test_attributes_are_read():
    entry = parse_module(MODULE).entry
    assert entry.by_name["k"].called == ("inner",)
    assert entry.by_name["k"].op_name == 'jit(f)/Block_0/{weird}\\"name'
    assert entry.by_name["w"].trip_count == 12
    assert set(entry.by_name["w"].called) == {"c", "b"}
    assert entry.by_name["k"].attribute("kind") == "kLoop"
    assert entry.by_name["k"].attribute("index") is None


def test_sources_come_from_the_frame_tables():
    module = parse_module(MODULE)
    assert module.source_of(module.entry.by_name["k"]) == "model.py:41"
    assert module.source_of(module.entry.by_name["x"]) == ""


def test_a_nameless_fusion_is_named_after_its_root():
    text = MODULE.replace("negate(%a)", 'negate(%a), metadata={op_name="root" stack_frame_id=1}')
    module = parse_module(text.replace('metadata={op_name="jit(f)', 'other={op="jit(f)'))
    fusion = module.entry.by_name["k"]
    assert fusion.op_name == ""
    assert module.named(fusion).op_name == "root"
    assert module.source_of(fusion) == "train.py:7"


OWN = pathlib.Path(frames.__file__).parent.parent
FRAMES = f"""\
FileNames
1 "/home/ada/run.py"
2 "{OWN}/verify/verify.py"
3 "/home/ada/model.py"
4 "{OWN}/apply/step.py"
5 "{OWN}/demo.py"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=10 end_line=10 column=2 end_column=4}}
2 {{file_name_id=2 function_name_id=1 line=20 end_line=20 column=2 end_column=4}}
3 {{file_name_id=3 function_name_id=1 line=30 end_line=30 column=2 end_column=4}}
4 {{file_name_id=4 function_name_id=1 line=40 end_line=40 column=2 end_column=4}}
5 {{file_name_id=5 function_name_id=1 line=50 end_line=50 column=2 end_column=4}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
2 {{file_location_id=2 parent_frame_id=2}}
3 {{file_location_id=3 parent_frame_id=3}}
4 {{file_location_id=4 parent_frame_id=4}}
5 {{file_location_id=4 parent_frame_id=3}}
6 {{file_location_id=5 parent_frame_id=6}}
7 {{file_location_id=9 parent_frame_id=1}}
"""


def test_frames_of_jaxswap_lead_to_the_line_that_called_it():
    # run.py calls verify, which calls model.py, which calls jaxswap's apply.
    found = frames.parse_frames(FRAMES)
    assert found[3] == "model.py:30"
    assert found[4] == "model.py:30"
    # What verify alone made is nobody's: who calls verify is not the step.
    assert found[2] == ""
    assert found[5] == ""
    assert found[6] == "demo.py:50"
    assert found[1] == "run.py:10"
    assert 7 not in found  # its place is not in the table


def test_a_fusion_named_by_a_barrier_goes_by_what_is_inside():
    tables = MODULE[MODULE.index("FileNames") : MODULE.index("%inner")]
    text = MODULE.replace(tables, FRAMES + "\n\n")
    inside = 'negate(%a), metadata={op_name="jit(f)/Block_0/neg" stack_frame_id=3}'
    text = text.replace("stack_frame_id=2}", "stack_frame_id=5}")
    module = parse_module(text.replace("negate(%a)", inside))
    fusion = module.entry.by_name["k"]
    assert module.named(fusion).op_name == "jit(f)/Block_0/neg"
    assert module.source_of(fusion) == "model.py:30"
    # With nothing better inside, it keeps its own name, and has no line.
    plain = parse_module(text)
    assert plain.named(plain.entry.by_name["k"]).op_name.startswith("jit(f)/Block_0/")
    assert plain.source_of(plain.entry.by_name["k"]) == ""


def test_donated_arguments_are_known():
    assert parse_module(MODULE).aliased_outputs == {0: 1, 2: 0}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bf16[16,1024]{1,0}", [Array("bf16", (16, 1024), False)]),
        ("f32[]", [Array("f32", (), False)]),
        ("pred[3]{0:S(5)}", [Array("pred", (3,), True)]),
        (
            "((s8[2]{0:S(5)}, f32[1,2]{1,0:T(8,128)}), u32[])",
            [Array("s8", (2,), True), Array("f32", (1, 2), False), Array("u32", (), False)],
        ),
    ],
)
def test_types(text, expected):
    assert list(parse_arrays(text)) == expected


def test_sizes_count_bits():
    assert Array("bf16", (3, 5), False).size_bytes == 3 * 5 * 2
    assert Array("s4", (3,), False).size_bytes == 2  # twelve bits take two bytes
    assert Array("token", (), False).size_bytes == 0


def test_an_instruction_with_parentheses_in_its_type():
    line = (
        "  %s = ((f32[8]{0:S(5)}, f32[2]{0}), f32[8]{0:S(5)}, u32[]) fusion-start(%a, %b), "
        "kind=kCustom, calls=%c"
    )
    found = parse_instruction(line)
    assert found is not None
    assert (found.opcode, found.operands, found.called) == ("fusion-start", ("a", "b"), ("c",))
    assert found.type_text.endswith("u32[])")


@pytest.mark.parametrize("line", ["}", "", "ENTRY %main {", "  // comment"])
def test_other_lines_are_not_instructions(line):
    assert parse_instruction(line) is None


def test_constants_have_no_operands():
    found = parse_instruction("  %c = f32[2]{0} constant({1, %nan})")
    assert found is not None
    assert found.operands == ()


def test_metadata_is_stripped_whole():
    assert strip_metadata('a, metadata={op_name="x{}\\"y" id=3}, b=1') == "a, b=1"


def test_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="has no ENTRY computation"):
        parse_module("HloModule empty\n")
