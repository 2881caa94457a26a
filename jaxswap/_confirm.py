"""Confirm: is the compiled step within the budget, and what if it is not?

Input: ways to search a plan for a budget and to compile one. Output: a plan whose *compiled*
step is within the budget, with what the compiler says of it.
The forecast is off by some percent, and the compiler has the last word: what the compiled step
has too much, the next search aims lower by; what it leaves free, one more may have; and where
its copies do not overlap as forecast, the next search trusts the link less. Of all that fit, the
fastest by replay is the answer.
"""

import dataclasses
import math
from collections.abc import Callable

from jaxswap._errors import BudgetInfeasibleError
from jaxswap._units import format_bytes
from jaxswap.apply.hints import lengthen_hints, make_hints
from jaxswap.plan.plan import Plan
from jaxswap.verify.verify import Verified

ROUNDS = 4
# Aim this much lower than the last excess: bytes come in whole values.
_OVERSHOOT = 1.1
# A share of the budget that is worth another plan if the compiled step leaves it free, how much
# of it that plan may have, and how much faster it has to be by forecast.
_ROOM, _USED, _FASTER = 0.04, 0.9, 0.99
# How much slower the link is taken to be, where a plan's copies turn out not to overlap as
# forecast: XLA orders copies in its own way. The last resort is to copy nothing.
_SLOWNESS = (1.0, 3.0, math.inf)
# Waiting that is worth another plan, and that is worth compiling once more with hints.
_WAITS_LONG, _WAITS = 0.03, 0.01
_HINT_ROUNDS = 3

Search = Callable[[int, float], Plan]
"""A plan for a number of bytes, on a link that is so many times slower than the device's."""


def confirm_plan(
    search: Search, compile_plan: Callable[[Plan], Verified], budget_bytes: int
) -> Plan:
    """The fastest plan, by replay, of a few whose compiled steps are within the budget.

    Args:
        search: raises `BudgetInfeasibleError` where no plan fits.
        compile_plan: compiles the step under a plan.
        budget_bytes: what the compiled step may need.

    Raises:
        BudgetInfeasibleError: no plan fits, forecast or compiled.
    """
    best: Plan | None = None
    is_promising = lambda plan: True
    for slowness in _SLOWNESS:
        search_at = lambda aim, at=slowness: search(aim, at)
        try:
            fitting = _fit(search_at, compile_plan, budget_bytes, is_promising)
        except BudgetInfeasibleError:
            if best is None:
                raise
            break
        if fitting is None:
            continue
        found, verified = compile_with_hints(*fitting, compile_plan)
        found = mark_confirmed(found, verified)
        if best is None or (found.replayed_s or 0.0) < (best.replayed_s or 0.0):
            best, is_promising = found, _expect_less_than(found, verified)
        if _stall_share(verified) <= _WAITS_LONG:
            break
    assert best is not None
    return best


def _expect_less_than(best: Plan, verified: Verified) -> Callable[[Plan], bool]:
    """Whether a plan could be faster than one, if the forecasts of both are off by as much."""
    compute_s = verified.timeline.step_s - verified.timeline.stall_s
    scale = compute_s / max(best.forecast.step_s - best.forecast.stall_s, 1e-30)
    return lambda plan: scale * plan.forecast.step_s < verified.timeline.step_s


def _fit(
    search: Callable[[int], Plan],
    compile_plan: Callable[[Plan], Verified],
    budget_bytes: int,
    is_promising: Callable[[Plan], bool],
) -> tuple[Plan, Verified] | None:
    """Plans, compiles and compares, until the compiled step is within the budget.

    Gives up, with None, on a plan that is not promising: to compile it takes longer than all
    the rest.
    """
    aim, floor, lowest = budget_bytes, None, None
    for _ in range(ROUNDS):
        try:
            found = search(aim)
        except BudgetInfeasibleError as error:
            # What was aimed at is too low, but the floor itself has not been tried yet.
            if lowest is None or floor is not None or error.floor_bytes is None:
                raise
            aim = floor = error.floor_bytes
            found = search(aim)
        if not is_promising(found):
            return None
        for attempt in _in_turn(found):
            verified = compile_plan(attempt)
            needed = verified.device_bytes
            if needed <= budget_bytes:
                return _use_room(search, compile_plan, attempt, verified, aim)
            lowest = min(needed, lowest or needed)
        if floor is not None:
            break
        assert lowest is not None
        aim -= int((lowest - budget_bytes) * _OVERSHOOT)
    raise BudgetInfeasibleError(
        f"No plan fits `budget={format_bytes(budget_bytes)}` once compiled: the lowest of those "
        f"tried needs {format_bytes(lowest or 0)}. Raise `budget` to that.",
        floor_bytes=lowest,
    )


def _use_room(
    search: Callable[[int], Plan],
    compile_plan: Callable[[Plan], Verified],
    found: Plan,
    verified: Verified,
    aim: int,
) -> tuple[Plan, Verified]:
    """Plans once more with what a compiled step leaves free, if it is much and pays."""
    room = found.budget_bytes - verified.device_bytes
    if room < _ROOM * found.budget_bytes:
        return found, verified
    larger = search(aim + int(_USED * room))
    if larger.forecast.step_s > _FASTER * found.forecast.step_s:
        return found, verified
    again = compile_plan(larger)
    is_faster = again.timeline.step_s < verified.timeline.step_s
    fits = again.device_bytes <= found.budget_bytes
    return (larger, again) if is_faster and fits else (found, verified)


def _in_turn(found: Plan) -> list[Plan]:
    """A plan, and the same one with its copies not beside compute, which needs less memory."""
    return (
        [found, dataclasses.replace(found, overlaps=False)] if found.names("offload") else [found]
    )


def compile_with_hints(
    found: Plan, verified: Verified, compile_plan: Callable[[Plan], Verified]
) -> tuple[Plan, Verified]:
    """The plan with hints for XLA's scheduler where they help, and its compiled step.

    Args:
        found: a plan without hints.
        verified: its compiled step.
        compile_plan: compiles the step under a plan.
    """
    best = found
    hints = make_hints(verified.timeline.events)
    for _ in range(_HINT_ROUNDS if found.compiler_options() else 0):
        if _stall_share(verified) <= _WAITS:
            break
        hinted = dataclasses.replace(found, hints=hints)
        again = compile_plan(hinted)
        is_better = again.timeline.step_s < verified.timeline.step_s
        if not is_better or again.device_bytes > found.budget_bytes:
            break
        best, verified = hinted, again
        hints = lengthen_hints(hints, again.timeline.waits)
    return best, verified


def _stall_share(verified: Verified) -> float:
    return verified.timeline.stall_s / max(verified.timeline.step_s, 1e-30)


def mark_confirmed(found: Plan, verified: Verified) -> Plan:
    """The plan, with what the compiler says of it."""
    return dataclasses.replace(
        found,
        is_confirmed=True,
        compiled_bytes=verified.device_bytes,
        replayed_s=verified.timeline.step_s,
    )
