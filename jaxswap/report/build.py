"""Build: what is there to say about a plan?

Input: a `Program`, a `Plan`, its `Device` where that is known, and what the compiler said of the
step as written and as planned. Output: the rows of a `Report`.
Seconds of single decisions are the simulator's, each taken alone.
"""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from jaxswap.model.timeline import Timeline
from jaxswap.plan.plan import Plan
from jaxswap.program.ir import Program, Value
from jaxswap.program.liveness import find_lifetimes
from jaxswap.report.names import group_of, shorten_source, type_of, where_of
from jaxswap.report.rows import DecisionRow, Figure, Floor, Group, Holder, How, Refusal, Unit

if TYPE_CHECKING:
    from jaxswap.verify.verify import Verified

_QUOTED = re.compile(r"'[^']*'")
_EXAMPLES = 3


def list_figures(
    plan: Plan, before: "Verified | None", after: "Verified | None"
) -> tuple[Figure, ...]:
    """Every quantity of the step, once for each way it was found."""
    written, planned = plan.forecast.baseline, plan.forecast
    found: list[Figure] = []

    def add(name: str, unit: Unit, how: How, left: float | None, right: float | None) -> None:
        if left is not None or right is not None:
            found.append(Figure(name=name, unit=unit, how=how, before=left, after=right))

    def of(attribute: str, one: object) -> float | None:
        return None if one is None else getattr(one, attribute)

    lines = (before.timeline if before else None, after.timeline if after else None)
    measured = [v.step_s if v is not None and v.time_is == "measured" else None
                for v in (before, after)]  # fmt: skip
    add("device memory", "bytes", "compiled", of("device_bytes", before), of("device_bytes", after))
    add("device memory", "bytes", "forecast", of("peak_bytes", written), planned.peak_bytes)
    add("step time", "seconds", "measured", *measured)
    add("step time", "seconds", "replayed", *(of("step_s", line) for line in lines))
    add("step time", "seconds", "forecast", of("step_s", written), planned.step_s)
    add("waiting for copies", "seconds", "replayed", *(of("stall_s", line) for line in lines))
    add("waiting for copies", "seconds", "forecast", of("stall_s", written), planned.stall_s)
    add("recomputing", "seconds", "forecast", of("recompute_s", written), planned.recompute_s)
    add("host memory", "bytes", "compiled", of("host_bytes", before), of("host_bytes", after))
    add("host memory", "bytes", "forecast", of("host_bytes", written), planned.host_bytes)
    add("copied to the host", "bytes", "replayed", *(of("to_host_bytes", line) for line in lines))
    add("copied to the host", "bytes", "forecast", of("offload_bytes", written),
        planned.offload_bytes)  # fmt: skip
    return tuple(found)


def list_decisions(
    program: Program, plan: Plan, timeline: Timeline | None
) -> tuple[DecisionRow, ...]:
    """A row for every candidate, in program order."""
    tracks = timeline.tracks if timeline else ()
    track_of = dict(zip(program.candidate_names, tracks, strict=False))
    stays = set(plan.forecast.stays)
    rows = []
    for name, decision in plan.decisions.items():
        value, track = plan.values[name], track_of.get(name)
        group, block = group_of(value.label)
        seconds: float | None = 0.0
        if decision.action == "offload":
            seconds = track.out_s + track.in_s if track else None
        elif decision.action == "recompute":
            seconds = track.recompute_s if track else None
        is_offload = decision.action == "offload"
        rows.append(
            DecisionRow(
                name=name,
                action=decision.action,
                label=value.label,
                source=shorten_source(value.source),
                what=f"{value.primitive} {type_of(value.dtype, value.shape)}".strip(),
                group=group,
                block=block,
                size_bytes=value.size_bytes,
                seconds=seconds,
                window_ops=decision.window_ops if is_offload else 0,
                reload_ahead_ops=decision.reload_ahead_ops if is_offload else 0,
                stays=name in stays and decision.action != "keep",
            )
        )
    return tuple(rows)


def group_decisions(rows: Iterable[DecisionRow]) -> tuple[Group, ...]:
    """Collapses what repeated blocks have in common; blocks in order of first appearance."""
    groups: dict[tuple[str, ...], list[DecisionRow]] = defaultdict(list)
    blocks: dict[str, int] = {}
    for row in rows:
        blocks.setdefault(row.block, len(blocks))
        groups[row.block, row.action, row.group, row.what].append(row)
    made = [_group(members) for members in groups.values()]
    alone = {g.block for g in made} - {g.block for g in made if g.count > 1}
    made = [_named_alone(g) if g.block in alone else g for g in made]
    blocks |= {g.block: blocks.get(g.block, len(blocks)) for g in made}
    return tuple(sorted(made, key=lambda g: (blocks[g.block], _ORDER[g.action], -g.size_bytes)))


_ORDER = {"offload": 0, "recompute": 1, "keep": 2}


def _group(members: Sequence[DecisionRow]) -> Group:
    first = members[0]
    seconds = [m.seconds for m in members]
    return Group(
        action=first.action,
        block=first.block,
        label=first.group if len(members) > 1 else first.label,
        what=first.what,
        source=first.source,
        count=len(members),
        size_bytes=sum(m.size_bytes for m in members),
        seconds=None if None in seconds else sum(s for s in seconds if s is not None),
    )


def _named_alone(group: Group) -> Group:
    """A group of a block that does not repeat goes by its own place."""
    return dataclasses.replace(group, block=group.label.rpartition("/")[0])


def list_refusals(program: Program) -> tuple[Refusal, ...]:
    """Why values could not be decided about, the reason with the most bytes first."""
    by_reason: dict[str, list[tuple[int, str]]] = defaultdict(list)
    values = {value.name: value for value in program.values}
    for name, reason in program.refused.items():
        value = values.get(name)
        size_bytes = value.size_bytes * value.trips if value else 0
        where = where_of(value.label, shorten_source(value.source)) if value else ""
        # Reasons that name a value differ only in that name.
        by_reason[_QUOTED.sub("another value", reason)].append(
            (size_bytes, f"{name}  {where}".strip())
        )
    refusals = [
        Refusal(
            reason=reason,
            count=len(found),
            size_bytes=sum(size for size, _ in found),
            examples=tuple(text for _, text in sorted(found, key=lambda f: -f[0])[:_EXAMPLES]),
        )
        for reason, found in by_reason.items()
    ]
    return tuple(sorted(refusals, key=lambda r: (-r.size_bytes, -r.count)))


def holder_of(value: Value, size_bytes: int, first: int, last: int) -> Holder:
    """A value of the program, as bytes on the device."""
    return Holder(
        label="/".join(part for part in (value.label, value.primitive) if part) or value.name,
        source=shorten_source(value.source),
        size_bytes=size_bytes,
        first=first,
        last=last,
    )


def find_floor(program: Program, timeline: Timeline) -> Floor | None:
    """The most bytes that any op needs, whatever is decided.

    At an op there are, under any plan: what cannot be decided about, the op's own scratch, and
    one trip of each candidate that it reads or makes.
    """
    if not program.ops:
        return None
    size_of = {
        c.value: t.size_bytes for c, t in zip(program.candidates, timeline.tracks, strict=True)
    }
    touched = [{v for v in (*op.reads, *op.writes) if v in size_of} for op in program.ops]
    fixed = timeline.fixed_bytes + timeline.scratch_bytes
    need = [int(fixed[k]) + sum(size_of[v] for v in touched[k]) for k in range(len(touched))]
    at = need.index(max(need))
    op = program.ops[at]
    decided = set(size_of)
    holders = [
        holder_of(program.values[life.value], life.size_bytes, at, at)
        for life in find_lifetimes(program, is_planned=True)
        if life.first_op <= at <= life.last_op and life.value not in decided
    ]
    holders += [holder_of(program.values[v], size_of[v], at, at) for v in sorted(touched[at])]
    return Floor(
        size_bytes=need[at],
        name=op.name,
        label=op.label,
        source=shorten_source(op.source),
        base_bytes=program.base_bytes,
        holders=tuple(sorted(holders, key=lambda h: -h.size_bytes)),
    )
