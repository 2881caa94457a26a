"""Fusion: which nodes become one kernel, on graphs drawn by hand and at random."""

import dataclasses

import hypothesis as hp
import hypothesis.strategies as hps
import pytest

from jaxswap.model.kernel import KernelCost
from jaxswap.program.effort import DEFAULT
from jaxswap.program.fusion import fuse
from jaxswap.program.graph import Array, Graph, Node
from jaxswap.program.kernels import build_program

ROWS, COLUMNS = 4096, 1024


class Draw:
    """Draws a graph, one node at a time; every array is named by its position."""

    def __init__(self):
        self.graph = Graph()

    def array(self, shape, **facts):
        size_bytes = 4
        for n in shape:
            size_bytes *= n
        record = Array(shape=tuple(shape), dtype="float32", size_bytes=size_bytes, **facts)
        self.graph.arrays.append(record)
        return len(self.graph.arrays) - 1

    def argument(self, *shape):
        return self.array(shape, is_argument=True)

    def node(self, name, kind, reads, shape, *, share=1.0, cost=None, **facts):
        target = self.array(shape, producer=len(self.graph.nodes))
        elements = self.graph.arrays[target].elements
        self.graph.nodes.append(
            Node(
                name=name, kind=kind, phase="forward", reads=tuple((r, share) for r in reads),
                writes=(target,), cost=cost or KernelCost(vector_flops=float(elements)), **facts,
            )
        )  # fmt: skip
        return target

    def map(self, *reads, name="add", shape=(ROWS, COLUMNS), **facts):
        return self.node(name, "map", reads, shape, **facts)

    def dot(self, *reads, shape=(ROWS, COLUMNS)):
        cost = KernelCost(kind="dot", matrix_flops=1e9)
        return self.node("dot_general", "opaque", reads, shape, cost=cost, is_heavy=True)

    def row_sum(self, read, *, name="reduce_sum"):
        return self.node(name, "reduce", [read], (ROWS,), is_row_reduction=True)

    def column_sum(self, read):
        return self.node("reduce_sum", "reduce", [read], (COLUMNS,))

    def fuse(self, *outputs, yardstick=DEFAULT):
        for output in outputs:
            self.graph.arrays[output].is_output = True
        return fuse(self.graph, yardstick)

    def made(self, *outputs, **settings):
        return [sorted(kernel.outs) for kernel in self.fuse(*outputs, **settings)]


def test_a_chain_of_maps_is_one_kernel():
    draw = Draw()
    x = draw.argument(ROWS, COLUMNS)
    out = draw.map(draw.map(draw.map(x)))
    assert draw.made(out) == [[out]]


def test_what_a_dot_reads_is_in_memory_for_all_its_readers():
    draw = Draw()
    x = draw.argument(ROWS, COLUMNS)
    y = draw.map(x)
    dot, other = draw.dot(y), draw.map(y, x)
    kernels = draw.fuse(dot, other)
    assert any(y in k.outs for k in kernels)
    assert all(y in k.ins or y in k.outs for k in kernels)


@pytest.mark.parametrize(("name", "is_in_memory"), [("exp", False), ("tanh", True)])
def test_only_dear_maps_are_written_rather_than_done_twice(name, is_in_memory):
    draw = Draw()
    x = draw.argument(ROWS, COLUMNS)
    cost = KernelCost(transcendentals=float(ROWS * COLUMNS))
    y = draw.map(x, name=name, cost=cost)
    rows, columns = draw.row_sum(y), draw.column_sum(y)
    kernels = draw.fuse(rows, columns)
    assert any(y in k.outs for k in kernels) == is_in_memory


def test_a_value_is_not_done_again_where_that_reads_more_than_it_saves():
    draw = Draw()
    inputs = [draw.argument(ROWS, COLUMNS) for _ in range(8)]
    y = draw.map(*inputs)
    rows, columns = draw.row_sum(y), draw.column_sum(y)
    assert any(y in k.outs for k in draw.fuse(rows, columns))


def test_reductions_take_in_what_they_reduce_and_share_what_they_read():
    draw = Draw()
    x = draw.argument(ROWS, COLUMNS)
    total, squares = draw.row_sum(draw.map(x)), draw.row_sum(draw.map(x, name="mul"))
    assert draw.made(total, squares) == [[total, squares]]


def test_two_slices_of_an_array_are_two_kernels():
    draw = Draw()
    x = draw.argument(2 * ROWS, COLUMNS)
    left = draw.map(x, name="slice", share=0.5)
    right = draw.map(x, name="slice", share=0.5)
    assert draw.made(left, right) == [[left], [right]]


def test_a_dot_scales_its_own_result():
    draw = Draw()
    x = draw.argument(ROWS, COLUMNS)
    scaled = draw.map(draw.dot(x), name="mul")
    assert draw.made(scaled) == [[scaled]]


def test_a_dot_does_not_add_another_array_to_its_result():
    draw = Draw()
    x = draw.argument(ROWS, COLUMNS)
    dot = draw.dot(x)
    added = draw.map(dot, x)
    assert draw.made(added) == [[dot], [added]]


def test_a_maximum_that_one_kernel_reads_is_part_of_that_row_wise_kernel():
    draw = Draw()
    x = draw.dot(draw.argument(ROWS, COLUMNS))
    top = draw.row_sum(x, name="reduce_max")
    shifted = draw.map(x, top)
    total = draw.row_sum(shifted)
    out = draw.map(shifted, total, name="div")
    dot = draw.dot(out)
    assert draw.made(dot, total) == [[x], [total], [out], [dot]]


def test_without_row_wise_kernels_every_reduction_is_its_own():
    draw = Draw()
    x = draw.dot(draw.argument(ROWS, COLUMNS))
    top = draw.row_sum(x, name="reduce_max")
    shifted = draw.map(x, top)
    total = draw.row_sum(shifted)
    dot = draw.dot(draw.map(shifted, total, name="div"))
    yardstick = dataclasses.replace(DEFAULT, has_row_kernels=False)
    made = draw.made(dot, total, yardstick=yardstick)
    assert [top] in made
    assert [total] in made


def test_what_nothing_reads_is_not_computed():
    draw = Draw()
    x = draw.argument(ROWS, COLUMNS)
    draw.map(draw.dot(x))
    out = draw.map(x)
    assert draw.made(out) == [[out]]


def test_what_a_region_recomputes_is_not_moved_in_front_of_it():
    draw = Draw()
    x = draw.argument(ROWS, COLUMNS)
    y = draw.dot(x)
    first = draw.row_sum(y)
    middle = draw.dot(draw.map(y, x))
    again = draw.node("reduce_sum", "reduce", [y], (ROWS,), is_row_reduction=True, not_before=4)
    made = draw.made(first, middle, again)
    assert not any({first, again} <= set(outs) for outs in made)
    assert made.index([again]) == len(made) - 1


def test_a_kernel_that_reads_arguments_only_runs_right_before_its_use():
    draw = Draw()
    weights, x = draw.argument(ROWS, COLUMNS), draw.argument(ROWS, COLUMNS)
    cast = draw.map(weights)
    first = draw.dot(x)
    last = draw.dot(first, cast)
    assert draw.made(last) == [[first], [cast], [last]]


@hps.composite
def graphs(draw_from):
    draw = Draw()
    arrays = [draw.argument(ROWS, COLUMNS), draw.argument(ROWS, COLUMNS)]
    for _ in range(draw_from(hps.integers(1, 25))):
        wide = [a for a in arrays if len(draw.graph.arrays[a].shape) == 2]
        reads = draw_from(hps.lists(hps.sampled_from(wide), min_size=1, max_size=3, unique=True))
        step = draw_from(hps.sampled_from(["map", "tanh", "dot", "rows", "columns"]))
        if step == "map":
            small = [a for a in arrays if draw.graph.arrays[a].shape == (ROWS,)]
            arrays.append(draw.map(*reads, *small[-1:]))
        elif step == "tanh":
            arrays.append(draw.map(*reads, name="tanh"))
        elif step == "dot":
            arrays.append(draw.dot(*reads))
        else:
            reduce = draw.row_sum if step == "rows" else draw.column_sum
            arrays.append(reduce(reads[0]))
    outputs = draw_from(hps.lists(hps.sampled_from(arrays[2:]), min_size=1, unique=True))
    for output in outputs:
        draw.graph.arrays[output].is_output = True
    return draw.graph


def needed_nodes(graph):
    """The nodes that outputs depend on, by walking backwards from each."""
    found, stack = set(), [i for i, a in enumerate(graph.arrays) if a.is_output]
    while stack:
        producer = graph.arrays[stack.pop()].producer
        if producer is not None and producer not in found:
            found.add(producer)
            stack += [array for array, _ in graph.nodes[producer].reads]
    return found


@hp.given(graphs())
def test_kernels_are_a_program_that_makes_every_output_from_what_is_there(graph):
    kernels = fuse(graph)
    there = {i for i, a in enumerate(graph.arrays) if a.is_argument}
    for kernel in kernels:
        assert there >= kernel.ins.keys()
        inside = {w for n in kernel.nodes for w in graph.nodes[n].writes}
        for n in kernel.nodes:  # everything a node reads is read or made by its kernel
            assert {r for r, _ in graph.nodes[n].reads} <= kernel.ins.keys() | inside
        assert set(kernel.outs) <= inside
        there.update(kernel.outs)
    assert all(i in there for i, a in enumerate(graph.arrays) if a.is_output)
    assert {n for k in kernels for n in k.nodes} == needed_nodes(graph)


@hp.given(graphs())
def test_dots_run_once_and_programs_keep_their_work(graph):
    kernels = fuse(graph)
    program, _ = build_program(graph, kernels, lambda node: ("", ""))
    needed = needed_nodes(graph)
    dots = [n for n in needed if graph.nodes[n].cost.matrix_flops]
    assert sum(op.cost.matrix_flops for op in program.ops) == 1e9 * len(dots)
    for position, op in enumerate(program.ops):
        assert all(program.values[v].producer == position for v in op.writes)
        assert all(position in program.values[v].readers for v in op.reads)


def _softmax(draw, x):
    """The row sums of a softmax, and what is left to divide by them."""
    shifted = draw.map(x, draw.row_sum(x, name="reduce_max"))
    powers = draw.map(shifted, name="exp")
    return draw.row_sum(powers), powers


def test_what_reduces_rows_twice_goes_into_all_that_have_the_rows():
    draw = Draw()
    x, gradient = draw.argument(ROWS, COLUMNS), draw.argument(ROWS, COLUMNS)
    sums, powers = _softmax(draw, x)
    out = draw.map(powers, sums)
    back = draw.map(powers, sums, gradient)
    assert sorted(a for made in draw.made(out, back) for a in made) == [out, back]


def test_what_reduces_rows_once_is_written_for_several_readers():
    draw = Draw()
    x, gradient = draw.argument(ROWS, COLUMNS), draw.argument(ROWS, COLUMNS)
    sums = draw.row_sum(draw.map(x))
    out, back = draw.map(x, sums), draw.map(x, sums, gradient)
    assert any(sums in k.outs for k in draw.fuse(out, back))


def _read_twice(name, levels):
    """A chain in which each level reads the one before as it is and through another op."""
    draw = Draw()
    x = draw.argument(ROWS, COLUMNS)
    for _ in range(levels):
        x = draw.map(x, draw.map(x, name=name))
    return len(draw.fuse(x))


@pytest.mark.parametrize("name", ["reduce_window_max", "reduce_window_sum"])
def test_code_that_branches_and_is_written_out_twice_is_cut_at_ten_branches(name):
    """1, 3 and 7 branches with a level more; 15 are too many."""
    assert [_read_twice(name, levels) for levels in (3, 4)] == [1, 2]


@pytest.mark.parametrize(("name", "kernels"), [("transpose", 2), ("rev", 2), ("neg", 1)])
def test_code_that_is_written_out_twice_is_cut_at_ten_thousand_ops(name, kernels):
    """2, 6, 14, … 8190 ops at the twelfth level, if what it reads is moved."""
    assert _read_twice(name, 12) == 1
    assert _read_twice(name, 13) == kernels


@pytest.mark.parametrize(("count", "kernels"), [(9, 1), (10, 2)])
def test_branches_of_all_that_a_kernel_reads_add_up(count, kernels):
    """Nine double eighteen ops to 9216."""
    draw = Draw()
    total = draw.argument(ROWS, COLUMNS)
    for _ in range(count):
        part = draw.argument(ROWS, COLUMNS - 1)
        total = draw.map(total, draw.map(part, name="pad"))
    assert len(draw.fuse(total)) == kernels
