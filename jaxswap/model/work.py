"""Work: which kernels does a planned step spare, and which does it run a second time?

Input: a `Program`. Output: the cost of each op once a plan is applied, the seconds that make each
candidate again, and the ops that are not needed where a candidate is not kept.
"""

import itertools
from collections import defaultdict
from dataclasses import replace

from jaxswap.model.device import Device
from jaxswap.model.kernel import Efficiency, KernelCost, kernel_s
from jaxswap.program.ir import Candidate, Program


def planned_costs(program: Program) -> list[KernelCost]:
    """The work of each op of a planned step: what is implicit is neither written nor read."""
    spared = [0] * len(program.ops)
    for value in program.values:
        if value.is_implicit and value.producer is not None:
            forward = [op for op in value.readers if program.ops[op].phase != "backward"]
            backward = [op for op in value.readers if program.ops[op].phase == "backward"]
            for op in backward if forward else (value.producer, *backward):
                spared[op] += value.size_bytes
    return [
        replace(op.cost, size_bytes=max(op.cost.size_bytes - spare, 0.0)) if spare else op.cost
        for op, spare in zip(program.ops, spared, strict=True)
    ]


def time_recomputations(
    program: Program, device: Device, efficiency: Efficiency
) -> list[dict[int, float] | None]:
    """Seconds of the ops that make each candidate again, all trips; None where none can.

    Kernels of which it is not known what they repeat get numbers of their own, below zero.
    """
    found: list[dict[int, float] | None] = []
    unknown = itertools.count(-1, -1)
    for candidate in program.candidates:
        value, kernels = program.values[candidate.value], candidate.recompute
        if kernels is None or value.is_argument or value.is_output:
            found.append(None)
            continue
        ops = candidate.recompute_ops or tuple(itertools.islice(unknown, len(kernels)))
        seconds: dict[int, float] = defaultdict(float)
        for op, kernel in zip(ops, kernels, strict=True):
            seconds[op] += kernel_s(device, kernel, efficiency) * value.trips
        found.append(dict(seconds))
    return found


def find_spared(program: Program, candidate: Candidate) -> tuple[int, ...]:
    """The ops that do nothing but write a candidate to a loop's stack, or read it from there."""
    value = program.values[candidate.value]
    if not value.is_stacked or value.producer is None:
        return ()
    ops, only = program.ops, (candidate.value,)
    makes = lambda op: ops[op].name == "stack" and ops[op].writes == only
    reads = lambda op: ops[op].name == "dynamic_slice" and ops[op].reads == only
    return (*filter(makes, (value.producer,)), *filter(reads, value.readers))
