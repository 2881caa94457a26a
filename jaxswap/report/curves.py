"""Curves: how does memory run along the step, and what do the streams do meanwhile?

Input: a `Verified`. Output: a `Curve` and `Streams`. Where nothing was compiled they come from
the simulator: `forecast.py`.
The clock of a compiled curve is the compute stream's: an instruction starts when its kernel
does, and what runs no kernel starts when the kernel before it ends.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

from jaxswap.program.ir import Program
from jaxswap.report.names import phase_of, shorten_op_name, shorten_source
from jaxswap.report.rows import Curve, Holder, Slice, Streams

if TYPE_CHECKING:
    from jaxswap.verify.verify import Verified

# With more of the forward pass's heavy ops than this behind the first backward op, "forward
# behind backward" does not mean "made again".
_MIXED_SHARE = 0.05


def curve_of_verified(verified: "Verified") -> Curve:
    """The memory curve along the compiled schedule."""
    memory, timeline = verified.memory, verified.timeline
    compute = {e.name: e for e in reversed(timeline.events) if e.stream == "compute"}
    starts_s, labels, sources, now_s = [], [], [], 0.0
    instructions = verified.module.entry.by_name
    for name in memory.names:
        event = compute.get(name)
        now_s = max(now_s, event.start_s) if event else now_s
        starts_s.append(now_s)
        now_s = max(now_s, event.end_s) if event else now_s
        op_name = verified.module.named(instructions[name]).op_name
        labels.append(shorten_op_name(op_name))
        sources.append(shorten_source(verified.source_of(name)))
    source_of = dict(zip(memory.names, sources, strict=True))
    return Curve(
        how="replayed",
        names=tuple(memory.names),
        labels=tuple(labels),
        sources=tuple(sources),
        starts_s=tuple(starts_s),
        bytes_at=tuple(int(b) for b in memory.bytes_at),
        step_s=timeline.step_s,
        base_bytes=int(memory.base_bytes),
        holders=tuple(
            Holder(
                label=shorten_op_name(b.op_name) or b.name,
                source=source_of.get(b.name, ""),
                size_bytes=int(b.size_bytes),
                first=b.first,
                last=b.last,
            )
            for b in memory.buffers
        ),
    )


def streams_of_verified(verified: "Verified") -> Streams:
    """The replayed kernels and copies."""
    slices = []
    for event in verified.timeline.events:
        slices.append(
            Slice(
                stream=event.stream,
                name=event.name,
                label=shorten_op_name(event.op_name),
                source=shorten_source(verified.source_of(event.name)),
                phase=phase_of(event.op_name),
                start_s=event.start_s,
                duration_s=event.duration_s,
                size_bytes=int(event.size_bytes),
            )
        )
    return Streams(how="replayed", step_s=verified.timeline.step_s, slices=tuple(slices))


def mark_recomputed(streams: Streams, program: Program) -> Streams:
    """The same streams, where forward kernels behind the first backward one are "recompute".

    A step that mixes its passes as it is written (several losses, unrolled micro-batches) is
    left as it is: there the same kernels may be a first forward pass.
    """
    if mixes_passes(program):
        return streams
    turn_s = min((s.start_s for s in streams.slices if s.phase == "backward"), default=math.inf)
    slices = tuple(
        dataclasses.replace(s, phase="recompute")
        if s.stream == "compute" and s.phase == "forward" and s.start_s > turn_s
        else s
        for s in streams.slices
    )
    return dataclasses.replace(streams, slices=slices)


def mixes_passes(program: Program) -> bool:
    """Whether some of the forward pass's heavy work is behind the start of a backward pass."""
    phases = [op.phase for op in program.ops]
    turn = phases.index("backward") if "backward" in phases else len(phases)
    heavy = [at for at, op in enumerate(program.ops) if op.phase == "forward" and op.is_heavy]
    late = sum(at > turn for at in heavy)
    return late > _MIXED_SHARE * len(heavy)
