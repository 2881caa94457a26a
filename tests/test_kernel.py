"""The kernel model: exact values on a device made for it, and the shapes it must have."""

import dataclasses

import hypothesis as hp
import hypothesis.strategies as hps
import pytest

from jaxswap.model.device import Device
from jaxswap.model.kernel import Efficiency, KernelCost, kernel_s

# Round peaks, so that every expected time is a sum one can do in one's head.
ROUND = dataclasses.replace(
    Device.named("h100-sxm"),
    peak_flops_per_s={"f32": 1e12, "tf32": 1e13, "bf16": 1e14},
    memory_bandwidth_bytes_per_s=1e12,
    launch_overhead_s=1e-6,
    sources={},
)
PERFECT = Efficiency(
    dot_half=1.0, dot_tf32=1.0, dot_f32=0.8, conv_half=0.5, conv_tf32=0.25, conv_f32=0.125,
    vector=1.0, memory=1.0, half_matrix_s=0.0, half_memory_s=0.0, transcendental_flops=10.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("cost", "expected_s"),
    [
        (KernelCost(), 1e-6),
        (KernelCost(size_bytes=1e9), 1e-6 + 1e-3),
        (KernelCost(kind="dot", dtype="bf16", matrix_flops=1e12), 1e-6 + 1e-2),
        (KernelCost(kind="conv", dtype="bf16", matrix_flops=1e12), 1e-6 + 2e-2),
        (KernelCost(kind="dot", dtype="f32", matrix_flops=1e12), 1e-6 + 1e-1),
        (KernelCost(kind="dot", dtype="f32", is_exact=True, matrix_flops=1e12), 1e-6 + 1.25),
        (KernelCost(kind="conv", dtype="f32", matrix_flops=1e12), 1e-6 + 4e-1),
        (KernelCost(kind="conv", dtype="f32", is_exact=True, matrix_flops=1e12), 1e-6 + 8.0),
        (KernelCost(vector_flops=1e9, transcendentals=1e8), 1e-6 + 2e-3),
        (KernelCost(kind="dot", dtype="bf16", matrix_flops=1e12, size_bytes=5e10), 1e-6 + 5e-2),
    ],
)
def test_a_kernel_is_as_slow_as_its_slowest_resource(cost, expected_s):
    assert kernel_s(ROUND, cost, PERFECT) == pytest.approx(expected_s)


def test_half_the_rate_is_reached_at_the_half_work():
    bent = dataclasses.replace(PERFECT, half_memory_s=1e-3)
    busy_s = kernel_s(ROUND, KernelCost(size_bytes=1e9), bent) - ROUND.launch_overhead_s
    assert 1e9 / busy_s == pytest.approx(ROUND.memory_bandwidth_bytes_per_s / 2)


@hp.given(hps.floats(0, 1e15), hps.floats(0, 1e15), hps.floats(0, 1e12), hps.floats(1, 10))
def test_more_work_never_takes_less_time(matrix, vector, size, factor):
    small = KernelCost(kind="dot", matrix_flops=matrix, vector_flops=vector, size_bytes=size)
    large = KernelCost(
        kind="dot",
        matrix_flops=matrix * factor,
        vector_flops=vector * factor,
        size_bytes=size * factor,
    )
    assert (
        kernel_s(ROUND, small) <= kernel_s(ROUND, large) <= factor * kernel_s(ROUND, small) * 1.001
    )
