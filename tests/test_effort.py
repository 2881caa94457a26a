"""Effort: times as XLA's own cost model has them, by hand and against the compiler."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from jaxswap.model.device import Device
from jaxswap.model.kernel import KernelCost
from jaxswap.program.effort import DEFAULT, Yardstick, yardstick_for
from jaxswap.program.fusion import fuse
from jaxswap.program.graph import Array, Graph, Node, NodeKind
from jaxswap.program.trace import trace_program

ROUND = Yardstick(bytes_per_s=100.0, cycles_per_s=10.0, cycles={"tanh": 20.0, "add": 7.0})


def graph_of(
    name: str, *, dtype: str = "float32", kind: NodeKind = "map", elements: int = 4
) -> Graph:
    made = Array(shape=(elements,), dtype=dtype, size_bytes=4 * elements, producer=0)
    work = KernelCost(vector_flops=float(elements))
    node = Node(name=name, kind=kind, phase="forward", reads=(), writes=(0,), cost=work)
    return Graph(nodes=[node], arrays=[made])


def test_the_longer_of_memory_and_work_counts_and_a_little_of_the_shorter():
    assert ROUND.seconds(200.0, 0.0) == pytest.approx(1e-6 + 2.0)
    assert ROUND.seconds(200.0, 10.0) == pytest.approx(1e-6 + 2.0 + 0.05 * 1.0)
    assert ROUND.seconds(100.0, 30.0) == pytest.approx(1e-6 + 3.0 + 0.05 * 1.0)
    assert ROUND.is_computing(100.0, 30.0)
    assert not ROUND.is_computing(200.0, 10.0)


@pytest.mark.parametrize(
    ("name", "dtype", "cycles"),
    [
        ("tanh", "float32", 20),
        ("tanh", "bfloat16", 20),  # computed in f32
        ("add", "float32", 7),
        ("add", "bfloat16", 3),
        ("select_n", "float32", 3),
        ("logistic", "float32", 3 + 7 + 3 + 3),  # exp and div not listed, and a negation
    ],
)
def test_cycles_are_those_of_the_operation_and_its_type(name, dtype, cycles):
    graph = graph_of(name, dtype=dtype)
    assert ROUND.effort(graph, graph.nodes[0]) == 4 * cycles


def test_a_kernel_of_its_own_has_no_effort_and_a_reduction_adds():
    opaque, reduction = graph_of("dot_general", kind="opaque"), graph_of("argmax", kind="reduce")
    assert ROUND.effort(opaque, opaque.nodes[0]) == 0
    assert ROUND.effort(reduction, reduction.nodes[0]) == 4 * 7


def test_a_device_brings_its_own_figures():
    found = yardstick_for(Device.named("rtx4090"))
    assert found.bytes_per_s == Device.named("rtx4090").memory_bandwidth_bytes_per_s
    assert found.cycles_per_s == pytest.approx(128 * 128 * 2.52e9 * 2, rel=0.01)
    assert found.cycles["tanh"] == 190  # those of 8.6, as for every capability not listed


def test_a_device_without_a_capability_is_taken_for_a_large_one():
    plain = dataclasses.replace(Device.named("h100-sxm"), compute_capability=None)
    assert yardstick_for(plain) is DEFAULT


def gelu_like(x, w, y):
    a = jnp.tanh(x)
    return (a * ((a * y) @ w)) @ w


def test_a_card_with_little_bandwidth_computes_again_what_another_writes():
    x = jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
    step = jax.grad(lambda *args: jnp.sum(gelu_like(*args).astype(jnp.float32)))
    written, again = (
        sum(v.primitive == "tanh" for v in trace_program(step, x, w, x, device=device).values)
        for device in (Device.named("h100-sxm"), Device.named("rtx4090"))
    )
    assert (written, again) == (1, 0)


def test_nothing_to_fuse():
    assert fuse(Graph(), ROUND) == []
