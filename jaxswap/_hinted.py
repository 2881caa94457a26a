"""Hinted: does a compiled step wait less once XLA is told how long its kernels take?

Input: a plan, its compiled step, and a way to compile others. Output: the plan with the hints
under which the step is fastest, or without any, and that step.
Hints come from the replay (`apply/hints.py`), of two kinds: of kernels alone, and of copies as
well. Neither is always better, so both are compiled, at once; the better one is told, in further
rounds, that the copies which were waited for take longer. A scheduler that knows how long copies
take may have so many under way that the step no longer fits: then its limit is the budget.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

from jaxswap.apply.hints import hint_all, hint_kernels, lengthen_hints
from jaxswap.plan.plan import Plan
from jaxswap.verify.verify import Verified

# Waiting that is worth compiling once more, as a share of the step.
_WAITS = 0.002
_ROUNDS = 4

Compile = Callable[[Sequence[Plan]], Sequence[Verified]]
"""Compiles the step under each of some plans, which is faster together than one by one."""
Fitting = tuple[Plan, Verified]
"""A plan whose compiled step is within the budget, and that step."""


def compile_with_hints(
    found: Plan, verified: Verified, compile_plans: Compile, to_beat_s: float = math.inf
) -> Fitting:
    """The plan with hints for XLA's scheduler where they help, and its compiled step.

    Args:
        found: a plan without hints.
        verified: its compiled step.
        compile_plans: compiles the step under each of some plans.
        to_beat_s: seconds of a step below which it is of use. Hints help less each time: where
            as much again in every round is too little, there is no other.
    """
    best: Fitting = (found, verified)
    events = verified.timeline.events
    tried = [hint_kernels(events), hint_all(events)]
    for left in reversed(range(_ROUNDS if found.has_overlap else 0)):
        if not _waits(best[1]) or not can_win(best[1], to_beat_s):
            break
        hinted = [dataclasses.replace(found, hints=hints) for hints in tried]
        fitting = _list_fitting(hinted, compile_plans)
        if not fitting:
            break
        better = min(fitting, key=step_s)
        found = dataclasses.replace(found, limit_bytes=better[0].limit_bytes)
        gain_s = max(step_s(best) - step_s(better), 0.0)
        best = min(best, better, key=step_s)
        # A reload that came late comes earlier next time; who else gains nothing gains no more.
        is_done = not gain_s and not _is_late(better[1])
        if is_done or step_s(best) - left * gain_s > to_beat_s:
            break
        tried = [_lengthen(*better)]
    return best


def _list_fitting(plans: Sequence[Plan], compile_plans: Compile) -> list[Fitting]:
    """Those that fit; what does not is compiled once more if XLA can be told a lower limit."""
    done = list(zip(plans, compile_plans(plans), strict=True))
    limited = []
    for plan, verified in done:
        if verified.device_bytes > plan.budget_bytes:
            lower = dataclasses.replace(plan, limit_bytes=plan.budget_bytes)
            # In whole percents it may be the same.
            limited += [lower] if lower.compiler_options() != plan.compiler_options() else []
    if limited:
        done += zip(limited, compile_plans(limited), strict=True)
    return [each for each in done if each[1].device_bytes <= each[0].budget_bytes]


def step_s(fitting: Fitting) -> float:
    """Seconds of a compiled step, as replayed."""
    return fitting[1].timeline.step_s


def can_win(verified: Verified, limit_s: float) -> bool:
    """Whether a compiled step would be fast enough if it waited for nothing."""
    return verified.timeline.step_s - verified.timeline.stall_s < limit_s


def _waits(verified: Verified) -> bool:
    return verified.timeline.stall_s > _WAITS * verified.timeline.step_s


def _is_late(verified: Verified) -> bool:
    waits = verified.timeline.waits
    return any(wait.stream == "to_device" and not wait.is_blocking for wait in waits)


def _lengthen(plan: Plan, verified: Verified) -> dict[str, float]:
    moving = [wait for wait in verified.timeline.waits if not wait.is_blocking]
    return lengthen_hints(plan.hints, verified.timeline.events, moving)
