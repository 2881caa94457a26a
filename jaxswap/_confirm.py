"""Confirm: is the compiled step within the budget, and what if it is not?

Input: ways to search a plan for a budget and to compile one. Output: a plan whose *compiled*
step is within the budget, with what the compiler says of it.
The forecast is off by some percent, and the compiler has the last word: what the compiled step
has too much, the next search aims lower by.
"""

import dataclasses
from collections.abc import Callable

from jaxswap._errors import BudgetInfeasibleError
from jaxswap._units import format_bytes
from jaxswap.apply.overlap import make_hints
from jaxswap.plan.plan import Plan
from jaxswap.verify.verify import Verified

ROUNDS = 4
# Aim this much lower than the last excess: bytes come in whole values.
_OVERSHOOT = 1.1
# Waiting that is not worth compiling once more.
_STALL_SHARE = 0.01


def confirm_plan(
    search: Callable[[int], Plan], compile_plan: Callable[[Plan], Verified], budget_bytes: int
) -> Plan:
    """Plans, compiles and compares, until the compiled step is within the budget.

    Args:
        search: a plan for a number of bytes; raises `BudgetInfeasibleError`.
        compile_plan: compiles the step under a plan.
        budget_bytes: what the compiled step may need.

    Raises:
        BudgetInfeasibleError: no plan fits, forecast or compiled.
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
        verified = compile_plan(found)
        needed = verified.device_bytes
        if needed <= budget_bytes:
            return _with_hints(found, verified, compile_plan)
        lowest = min(needed, lowest or needed)
        if floor is not None:
            break
        aim -= int((needed - budget_bytes) * _OVERSHOOT)
    raise BudgetInfeasibleError(
        f"No plan fits `budget={format_bytes(budget_bytes)}` once compiled: the lowest of those "
        f"tried needs {format_bytes(lowest or 0)}. Raise `budget` to that.",
        floor_bytes=lowest,
    )


def _with_hints(
    found: Plan, verified: Verified, compile_plan: Callable[[Plan], Verified]
) -> Plan:
    """The plan, confirmed; with hints for XLA's scheduler where they make its copies overlap."""
    best = found
    if found.names("offload") and verified.timeline.stall_s > _STALL_SHARE * verified.step_s:
        hinted = dataclasses.replace(found, hints=make_hints(verified.timeline.events))
        again = compile_plan(hinted)
        is_better = again.timeline.step_s < verified.timeline.step_s
        if is_better and again.device_bytes <= found.budget_bytes:
            best, verified = hinted, again
    return mark_confirmed(best, verified)


def mark_confirmed(found: Plan, verified: Verified) -> Plan:
    """The plan, with what the compiler says of it."""
    return dataclasses.replace(
        found,
        is_confirmed=True,
        compiled_bytes=verified.device_bytes,
        replayed_s=verified.timeline.step_s,
    )
