"""Policies: what would JAX's own checkpoint policies make of this step?

Input: a `Program` and its `Timeline`. Output: decisions per policy, and their forecasts as points.
A policy saves what some primitives make and makes everything else again. It is taken to be on
all of the differentiated function, and on the bodies of its loops: nothing is known here of the
blocks that a user would put it on.

A policy that saves dots never runs one twice. So a value whose making again would run a saved
dot stands for that dot, of which it is a copy, a part or a sum with something at hand, and is
saved in its place; any other is made again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxswap.apply.decision import ACTIONS, Action, Decision
from jaxswap.model.population import simulate_many
from jaxswap.model.timeline import Timeline
from jaxswap.program.ir import Candidate, Op, Program
from jaxswap.report.rows import FrontPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One of `jax.checkpoint_policies`, as data.

    Attributes:
        name: JAX's.
        primitives: what it saves the results of.
        with_batch_dims: whether dots with batch dimensions are among them.
        action: what saving is: "keep", or "offload".
    """

    name: str
    primitives: frozenset[str] = frozenset()
    with_batch_dims: bool = True
    action: Action = "keep"

    def saves(self, op: Op) -> bool:
        """Whether it saves what an op makes."""
        return op.name in self.primitives and (self.with_batch_dims or not op.has_batch_dims)


_DOTS = frozenset({"dot_general"})
POLICIES: tuple[Policy, ...] = (
    Policy(name="nothing_saveable"),
    Policy(name="dots_saveable", primitives=_DOTS | {"conv_general_dilated"}),
    Policy(name="dots_with_no_batch_dims_saveable", primitives=_DOTS, with_batch_dims=False),
    Policy(
        name="offload_dot_with_no_batch_dims",
        primitives=_DOTS,
        with_batch_dims=False,
        action="offload",
    ),
)


def decide(program: Program, policy: Policy) -> dict[str, Decision]:
    """What a policy does with every candidate.

    Copies have no window and no head start: XLA waits for each right behind its start.
    """
    save, again = Decision(action=policy.action), Decision(action="recompute")
    return {
        name: save if any(map(policy.saves, _makers(program, candidate))) else again
        for name, candidate in zip(program.candidate_names, program.candidates, strict=True)
    }


def _makers(program: Program, candidate: Candidate) -> list[Op]:
    """The ops that would run again for a candidate, or else the one that makes it."""
    producer = program.values[candidate.value].producer
    made_by = () if producer is None else (producer,)
    return [program.ops[op] for op in candidate.recompute_ops or made_by]


def forecast_policies(
    program: Program, timeline: Timeline, policies: Sequence[Policy] = POLICIES
) -> tuple[FrontPoint, ...]:
    """Where each policy is on the front, at best; nowhere if there is nothing to decide about.

    At best: values are made again when they are needed. XLA is free to make them earlier.

    Example:
        >>> from jaxswap.model.device import Device
        >>> from jaxswap.model.timeline import build_timeline
        >>> program = Program(ops=(), values=(), candidates=())
        >>> forecast_policies(program, build_timeline(program, Device.named("t4")))
        ()
    """
    if not program.candidates:
        return ()
    decided = [list(decide(program, policy).values()) for policy in policies]
    found = simulate_many(
        timeline,
        [[ACTIONS.index(d.action) for d in each] for each in decided],
        [[d.window_ops for d in each] for each in decided],
        [[d.reload_ahead_ops for d in each] for each in decided],
    )
    return tuple(
        FrontPoint(label=policy.name, size_bytes=int(size), step_s=float(step_s), kind="policy")
        for policy, size, step_s in zip(policies, found.peak_bytes, found.step_s, strict=True)
    )
