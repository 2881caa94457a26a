"""Lifetimes and the memory curve against their definition, and loops by hand."""

import hypothesis as hp
import programs

from jaxswap.program import liveness
from jaxswap.program.ir import Loop


def test_a_chain_climbs_to_its_turn_and_descends():
    curve = liveness.memory_curve(programs.chain([3, 5, 7], base_bytes=2))
    assert curve.bytes_at == (5, 10, 17, 17, 10, 5)
    assert (curve.peak_bytes, curve.peak_op) == (17, 2)


def test_an_empty_program_has_an_empty_curve():
    curve = liveness.memory_curve(programs.Draft().finish())
    assert (curve.bytes_at, curve.peak_bytes, curve.peak_op) == ((), 0, 0)


def test_who_is_in_the_peak_comes_largest_first():
    program = programs.chain([3, 5, 7])
    names = [program.values[life.value].name for life in liveness.find_alive(program, 2)]
    assert names == ["a2", "a1", "a0"]


def test_arguments_and_outputs_are_in_the_base():
    draft = programs.Draft()
    draft.op("f", 1, "forward", [], [("x", 4, {"is_output": True}), ("y", 2)])
    assert liveness.memory_curve(draft.finish(base_bytes=9)).bytes_at == (11,)


def test_what_a_loop_stacks_is_there_from_its_first_op_to_the_last_of_its_reader():
    program = programs.looped(trips=4, size=10)
    lives = {program.values[x.value].name: x for x in liveness.find_lifetimes(program)}
    assert (lives["h"].first_op, lives["h"].last_op, lives["h"].size_bytes) == (1, 6, 40)
    assert (lives["z"].first_op, lives["z"].last_op, lives["z"].size_bytes) == (1, 6, 40)
    # Not stacked: one at a time, within the body.
    assert (lives["dz"].first_op, lives["dz"].last_op, lives["dz"].size_bytes) == (5, 6, 1)


def test_what_a_loop_reads_is_there_until_its_last_trip():
    draft = programs.Draft()
    draft.op("f", 1, "forward", [], [("x", 4)])
    draft.op("g", 1, "forward", ["x"], [], loop=0, trips=3)
    draft.op("h", 1, "forward", [], [], loop=0, trips=3)
    draft.op("i", 1, "forward", [], [])
    draft.loops.append(Loop(first_op=1, last_op=2, trips=3))
    assert liveness.memory_curve(draft.finish()).bytes_at == (4, 4, 4, 0)


def test_a_carry_is_there_during_all_trips():
    draft = programs.Draft()
    draft.op("f", 1, "forward", [], [])
    draft.op("read", 1, "forward", [], [], loop=0, trips=3)
    draft.op("make", 1, "forward", [], [("c", 4, {"trips": 3})], loop=0, trips=3)
    draft.loops.append(Loop(first_op=1, last_op=2, trips=3))
    draft.values["c"]["readers"].append(1)
    assert liveness.memory_curve(draft.finish()).bytes_at == (0, 4, 4)


def test_trips_of_an_enclosing_loop_are_not_stacked():
    # Gradient accumulation: 5 trips, each with a loop of 3 trips forward and one backward.
    draft = programs.Draft()
    stacked = {"trips": 15, "is_stacked": True}
    draft.op("f", 1, "forward", [], [("h", 2, stacked)], loop=1, trips=15)
    draft.op("turn", 1, "forward", [], [], loop=0, trips=5)
    draft.op("b", 1, "backward", ["h"], [], loop=2, trips=15)
    draft.loops += [
        Loop(first_op=0, last_op=2, trips=5),
        Loop(first_op=0, last_op=0, trips=3, parent=0),
        Loop(first_op=2, last_op=2, trips=3, parent=0),
    ]
    draft.candidate("h", again=1)
    program = draft.finish()
    assert liveness.memory_curve(program).bytes_at == (6, 6, 6)
    (idle,) = liveness.find_idle(program)
    assert (idle.after_op, idle.before_op, idle.size_bytes) == (0, 2, 6)
    assert liveness.loop_chain(program, 2) == (0, 2)
    assert liveness.common_loop(program, (0, 2)) == 0
    assert liveness.span_from(program, 2, None) == (0, 2)
    assert liveness.span_from(program, 1, 2) == (1, 1)


def test_children_are_found_from_parents():
    program = programs.chain([1, 1, 1])
    assert liveness.find_children(program.candidates) == [[1], [2], []]


@hp.given(programs.programs(with_loops=False))
def test_the_curve_is_what_counting_gives(program):
    # The definition, spelled out, is the oracle for the running sum.
    expected = [
        program.base_bytes
        + op.scratch_bytes
        + sum(
            v.size_bytes
            for v in program.values
            if v.producer <= at <= max(v.producer, *v.readers, 0)
        )
        for at, op in enumerate(program.ops)
    ]
    assert list(liveness.memory_curve(program).bytes_at) == expected
