"""Confirm: is the compiled step within the budget, and what if it is not?

Input: ways to search a plan for a budget and to compile one. Output: a plan whose *compiled*
step is within the budget, with what the compiler says of it.
The forecast is off by some percent, and the compiler has the last word: what the compiled step
has too much, the next plan aims lower by (where it is little, another one, and the same with a few
more values gone), unless it is faster to let the step wait for each of its copies, which takes less
memory; what it leaves free, one more may have. XLA orders copies in
its own way, and not all overlap as forecast: a plan without copies comes first, where one fits, and
those that trust the link, little or fully, have to promise more. Where another planner's answer
(the *rival*) is forecast to be hardly slower, it is compiled as well. Of all that fit, the fastest
by replay is the answer. To compile takes longer than all the rest, so that what promises little is
left out. Without copies, what no decision is about is compiled both ways, left as written and made
again on demand, as the forecast has it: which is faster, and how much larger the first is, depends
on what XLA makes of it.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from jaxswap._errors import BudgetInfeasibleError
from jaxswap._hinted import Compile, Fitting, can_win, compile_with_hints, step_s
from jaxswap._units import format_bytes
from jaxswap.plan.plan import Plan
from jaxswap.verify.verify import Verified

ROUNDS = 4
# Aim this much lower than the last excess, and at least by a share of the budget: bytes come in
# whole values.
_OVERSHOOT, _LEAST = 1.1, 0.004
# Where the step has no more than this too much, as a share of the budget, a few more values leave
# and the rest of the plan stays, if that is not forecast to be this much slower.
_LITTLE, _DEARER = 0.03, 1.02
# A plan of the fewest bytes that is forecast to need this much of the budget is compiled all the
# same.
_MAYBE = 1.1
# A share of the budget that is worth another plan if the compiled step leaves it free, how much
# of it that plan may have, how much faster it has to be by forecast, and how often that is tried.
_ROOM, _USED, _FASTER = 0.04, 0.9, 0.997
_ROOM_ROUNDS = 3
# How much slower the link is taken to be: plans without copies, plans with few, and plans with as
# many as would pay if all went as forecast.
_TRUSTED = 1.0
_SLOWNESS = (math.inf, 3.0, _TRUSTED)
# How much faster than the best so far a plan has to promise to be, since plans with copies are 1 to
# 2 % slower than forecast beside one without (GPT-2-small); and a compiled step that waits for no
# copy, for more to be tried with it.
_PROMISE, _GAIN = 0.97, 0.99
# A step that waits for each copy has to need this much less for the next plans to do so too; and
# one with its rest as written may need this much too much for the next to have it so.
_NEAR = 1.03

Search = Callable[[int, float], Plan]
"""A plan for a number of bytes, on a link that is so many times slower than the device's."""
FindRival = Callable[[int, float], Plan | None]
"""Another plan that is forecast to be hardly slower than what was searched for the same."""
Adjust = Callable[[Plan, int, float], Plan | None]
"""The plan with a few more values gone, for a number of bytes, on such a link; None if none is."""


class TooSlowError(Exception):
    """What could fit is not as fast as it has to be: nothing was confirmed."""


class _Ways(NamedTuple):
    """How plans are found, on one link: from nothing, or from another plan."""

    search: Callable[[int], Plan]
    adjust: Callable[[Plan, int], Plan | None] | None


class _Lower(NamedTuple):
    """A plan for fewer bytes, what it was searched for, and whether none is lower."""

    plan: Plan
    aim: int
    is_floor: bool


def confirm_plan(
    search: Search,
    compile_plans: Compile,
    budget_bytes: int,
    to_beat_s: float = math.inf,
    adjust: Adjust | None = None,
    find_rival: FindRival | None = None,
) -> Plan:
    """The fastest plan, by replay, of a few whose compiled steps are within the budget.

    Args:
        search: raises `BudgetInfeasibleError` where no plan fits.
        compile_plans: compiles the step under each of some plans.
        budget_bytes: what the compiled step may need.
        to_beat_s: seconds of a step from which on a plan is of no use; a step that fits as it is
            written is an answer whatever it takes.
        adjust: finds a plan that differs little, or none.
        find_rival: knows of a plan beside the one that was searched first, or none.

    Raises:
        BudgetInfeasibleError: no plan fits, forecast or compiled.
        TooSlowError: every plan was given up since it would not be faster than that.
    """
    search = functools.cache(search)
    best: Fitting | None = None
    forecast: list[BudgetInfeasibleError] = []
    compiled: list[BudgetInfeasibleError] = []
    for slowness in _SLOWNESS:
        limit_s = min(to_beat_s, _GAIN * best[1].timeline.step_s if best else math.inf)
        ways = _Ways(
            search=lambda aim, at=slowness: search(aim, at),
            adjust=(lambda plan, aim, at=slowness: adjust(plan, aim, at)) if adjust else None,
        )
        try:
            if best and not _is_promising(search(budget_bytes, _TRUSTED), best, limit_s):
                break  # nor is what trusts the link less
            first = _search_or_lowest(ways.search, budget_bytes)
        except BudgetInfeasibleError as error:
            forecast.append(error)
            continue
        try:
            fitting = _fit(first, ways, compile_plans, best, limit_s)
            rival = find_rival(budget_bytes, slowness) if find_rival else None
            if fitting is not None and rival is not None and not rival.names("offload"):
                fitting = _fit_rival(rival, ways, compile_plans, fitting)
        except BudgetInfeasibleError as error:
            compiled.append(error)
            continue
        if fitting is not None:
            found = compile_with_hints(*fitting, compile_plans, limit_s)
            best = min(best or found, found, key=step_s)
    if best is None and (failed := compiled or forecast):  # the compiler knows better
        raise min(failed, key=lambda each: each.floor_bytes or math.inf)
    if best is None or not (best[0].is_empty or best[1].timeline.step_s < to_beat_s):
        raise TooSlowError  # a plan that was given up might be faster than the best
    return mark_confirmed(*best)


def _search_or_lowest(search: Callable[[int], Plan], budget_bytes: int) -> Plan:
    """The plan for a budget, or that of the fewest bytes if it may fit once compiled."""
    try:
        return search(budget_bytes)
    except BudgetInfeasibleError as error:
        floor_bytes = error.floor_bytes or math.inf
        if not budget_bytes < floor_bytes <= _MAYBE * budget_bytes:
            raise
        lowest = _search_or_none(search, int(floor_bytes))
        if lowest is None:
            raise
        return lowest


def _is_promising(found: Plan, best: Fitting | None, limit_s: float) -> bool:
    """Whether a plan could be fast enough, if its forecast is off by as much as the best's."""
    if best is None:
        return True
    return _expect_s(found, *best) < min(limit_s, _PROMISE * best[1].timeline.step_s)


def _expect_s(found: Plan, plan: Plan, verified: Verified) -> float:
    """Seconds of a plan's step, if its forecast is off by as much as that of another."""
    compute_s = verified.timeline.step_s - verified.timeline.stall_s
    scale = compute_s / max(plan.forecast.step_s - plan.forecast.stall_s, 1e-30)
    return scale * found.forecast.step_s


def _fit(
    found: Plan,
    ways: _Ways,
    compile_plans: Compile,
    best: Fitting | None,
    limit_s: float,
) -> Fitting | None:
    """A plan whose compiled step is within the budget, with what it leaves unsaid settled first.

    Gives up, with None, on a plan that does not fit and whose step cannot take less than `limit_s`.
    """
    if not _is_promising(found, best, limit_s):
        return None
    if found.names("recompute") and not found.names("offload"):
        first, spare = _settle_rest(found, compile_plans)
    else:
        first, spare = (found, _compile_one(compile_plans, found)), None
    excess_bytes = first[1].device_bytes - found.budget_bytes
    tries = [ways]
    if ways.adjust and 0 < excess_bytes <= _LITTLE * found.budget_bytes:
        tries.append(ways._replace(adjust=None))  # either may be what XLA makes more of
    fitting = [spare] if spare else []
    failed = []
    for each in tries:
        to_beat_s = min([limit_s, *map(step_s, fitting)])
        try:
            got = _fit_in_rounds(*first, each, compile_plans, best, to_beat_s)
        except BudgetInfeasibleError as error:
            failed.append(error)
            continue
        fitting += [got] if got else []
    if failed and not fitting:
        raise failed[0]
    return min(fitting, key=step_s, default=None)


def _fit_rival(rival: Plan, ways: _Ways, compile_plans: Compile, fitting: Fitting) -> Fitting:
    """What fits already, or what comes of a rival if that is faster."""
    with contextlib.suppress(BudgetInfeasibleError):
        other = _fit(rival, ways, compile_plans, None, step_s(fitting))
        return fitting if other is None else min(fitting, other, key=step_s)
    return fitting


def _settle_rest(found: Plan, compile_plans: Compile) -> tuple[Fitting, Fitting | None]:
    """Leaves what no decision is about as written, or makes it again on demand: the faster way.

    What is far too large is not chosen if left as written. Returns the chosen way, and the other if
    that fits as it is.
    """
    eased = dataclasses.replace(found, rest_as_written=True)
    plans = [found, eased]
    ways = list(zip(plans, compile_plans(plans), strict=True))
    near = [each for each in ways if each[1].device_bytes <= _NEAR * found.budget_bytes]
    chosen = min(near or ways[:1], key=step_s)
    (other,) = (each for each in ways if each is not chosen)
    return chosen, other if other[1].device_bytes <= found.budget_bytes else None


def _compile_one(compile_plans: Compile, found: Plan) -> Verified:
    [verified] = compile_plans([found])
    return verified


def _fit_in_rounds(
    found: Plan,
    verified: Verified,
    ways: _Ways,
    compile_plans: Compile,
    best: Fitting | None,
    limit_s: float,
) -> Fitting | None:
    """Compares a compiled step with the budget, plans again and compiles, until one fits."""
    budget_bytes = aim = found.budget_bytes
    is_last, overlaps, needs = False, True, []
    is_eased = found.rest_as_written
    for done in range(1, ROUNDS + 1):
        is_last = is_last or done == ROUNDS
        if verified.device_bytes <= budget_bytes:
            return _use_room(ways.search, compile_plans, found, verified, aim, limit_s)
        if not can_win(verified, limit_s):
            return None
        needs.append(verified.device_bytes)
        lower = None if is_last else _search_lower(ways, found, verified, aim)
        if overlaps and found.names("offload") and _should_wait(found, verified, lower, limit_s):
            waiting = dataclasses.replace(found, overlaps=False)
            again = _compile_one(compile_plans, waiting)
            if again.device_bytes <= budget_bytes:
                return _use_room(ways.search, compile_plans, waiting, again, aim, limit_s)
            needs.append(again.device_bytes)
            if not is_last and again.device_bytes * _NEAR < verified.device_bytes:
                higher = _search_lower(ways, found, again, aim)
                if _should_go_on_waiting(found, verified, lower, again, higher):
                    overlaps, lower = False, higher
        if lower is None:
            break
        found, aim, is_last = lower
        if not _is_promising(found, best, limit_s):
            return None
        is_eased = is_eased and not found.names("offload")
        found = dataclasses.replace(found, overlaps=overlaps, rest_as_written=is_eased)
        verified = _compile_one(compile_plans, found)
    raise BudgetInfeasibleError(
        f"No plan fits `budget={format_bytes(budget_bytes)}` once compiled: the lowest of those "
        f"tried needs {format_bytes(min(needs))}. Raise `budget` to that.",
        floor_bytes=min(needs),
    )


def _use_room(
    search: Callable[[int], Plan],
    compile_plans: Compile,
    found: Plan,
    verified: Verified,
    aim: int,
    limit_s: float,
) -> tuple[Plan, Verified]:
    """Plans again with what a compiled step leaves free, while it is much and pays."""
    budget_bytes = found.budget_bytes
    per_byte = 1.0  # of what is aimed at, for each that is compiled
    for _ in range(_ROOM_ROUNDS):
        room = budget_bytes - verified.device_bytes
        if room < _ROOM * budget_bytes:
            break
        higher = aim + int(_USED * room * per_byte)
        larger = _search_or_none(search, higher)
        if larger is None or larger.forecast.step_s > _FASTER * found.forecast.step_s:
            break
        if _expect_s(larger, found, verified) >= limit_s:
            break
        larger = dataclasses.replace(
            larger, overlaps=found.overlaps, rest_as_written=found.rest_as_written
        )
        again = _compile_one(compile_plans, larger)
        if again.device_bytes > budget_bytes:
            per_byte = (higher - aim) / (again.device_bytes - verified.device_bytes)
        elif again.timeline.step_s < verified.timeline.step_s:
            found, verified, aim = larger, again, higher
        else:
            break
    return found, verified


def _search_lower(ways: _Ways, found: Plan, verified: Verified, aim: int) -> _Lower | None:
    """The plan to try after one whose compiled step does not fit; None if none is left.

    Where nothing fits what is aimed at then, it is the plan of the fewest bytes there is.
    """
    excess_bytes = verified.device_bytes - found.budget_bytes
    # A plan may need less than was aimed at, by forecast too: what is as low would be it again.
    aim = min(aim, found.forecast.peak_bytes)
    aim -= max(int(excess_bytes * _OVERSHOOT), int(_LEAST * found.budget_bytes))
    if ways.adjust and excess_bytes <= _LITTLE * found.budget_bytes:
        near = ways.adjust(found, aim)
        if near is not None and near.forecast.step_s <= _DEARER * found.forecast.step_s:
            return _Lower(near, aim, is_floor=False)
    try:
        return _Lower(ways.search(aim), aim, is_floor=False)
    except BudgetInfeasibleError as error:
        aim = error.floor_bytes or 0
    lowest = _search_or_none(ways.search, aim)
    if lowest is None or lowest.decisions == found.decisions:
        return None
    return _Lower(lowest, aim, is_floor=True)


def _search_or_none(search: Callable[[int], Plan], aim: int) -> Plan | None:
    """A plan; None where the floor is another planner's, or a time limit ended the search."""
    try:
        return search(aim)
    except BudgetInfeasibleError:
        return None


def _should_wait(found: Plan, verified: Verified, lower: _Lower | None, limit_s: float) -> bool:
    """Whether a plan that waits for each copy is faster than the next one, and fast enough."""
    timeline = verified.timeline
    waiting_s = timeline.step_s - timeline.stall_s
    for stream, total in (
        ("to_host", timeline.to_host_bytes),
        ("to_device", timeline.to_device_bytes),
    ):
        copies = [event for event in timeline.events if event.stream == stream]
        # Of a long loop the timeline has a part of the trips, but the bytes of all.
        shown = sum(event.size_bytes for event in copies)
        waiting_s += sum(event.duration_s for event in copies) * (total / shown if shown else 1.0)
    next_s = _expect_s(lower.plan, found, verified) if lower else math.inf
    return waiting_s < min(next_s, limit_s)


def _should_go_on_waiting(
    found: Plan, verified: Verified, lower: _Lower | None, again: Verified, higher: _Lower | None
) -> bool:
    """Whether a plan that waits for each copy is faster than one that aims lower and does not.

    Args:
        found: the plan that does not fit either way.
        verified: its step, with copies overlapped.
        lower: the plan to try next if copies are overlapped.
        again: its step, each copy waited for.
        higher: the plan to try next if they are waited for.
    """
    if higher is None or lower is None:
        return higher is not None
    slower = higher.plan.forecast.step_s / max(found.forecast.step_s, 1e-30)
    return again.timeline.step_s * slower < _expect_s(lower.plan, found, verified)


def mark_confirmed(found: Plan, verified: Verified) -> Plan:
    """The plan, with what the compiler says of it."""
    return dataclasses.replace(
        found,
        is_confirmed=True,
        compiled_bytes=verified.device_bytes,
        replayed_s=verified.timeline.step_s,
    )
