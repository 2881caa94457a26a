"""Tighten: which windows and reload distances does a plan really use?

Input: a problem and decisions. Output: the same decisions with the shortest windows and reload
distances under which the simulated copies run as before.

The search chooses windows from a few lengths, often longer than a copy takes. XLA has one copy
in flight at a time and places it by the end of its window: windows that overlap get in each
other's way, and windows that follow each other, as the copies do on the link, do not.
"""

from collections.abc import Mapping
from dataclasses import replace

from jaxswap.apply.decision import Decision
from jaxswap.model.simulate import Clocks, Course, run_clocks, settle_courses, simulate
from jaxswap.plan.problem import Problem

# What a copy takes more than was forecast, or starts later.
_MARGIN = 1.1
KEEP = Decision(action="keep")


def tighten(problem: Problem, decisions: Mapping[str, Decision]) -> dict[str, Decision]:
    """Shortens windows and reload distances; the plan gets neither slower nor larger by it."""
    names = problem.program.candidate_names
    planned = [decisions.get(name, KEEP) for name in names]
    courses = settle_courses(problem.timeline, planned)
    clocks = run_clocks(problem.timeline, courses)
    found = dict(decisions)
    # Between loops, copies belong to trips, whose time the clocks do not have.
    moving = [k for k, c in enumerate(courses) if c.action == "offload" and _is_outside(c)]
    latest_s = float("inf")
    for k in sorted(moving, key=lambda k: -clocks.op_starts_s[courses[k].needed]):
        course, decision = courses[k], planned[k]
        end_s = min(clocks.op_starts_s[course.needed], latest_s)
        latest_s = end_s - course.track.in_s * _MARGIN
        found[names[k]] = replace(
            decision,
            window_ops=min(decision.window_ops, _find_window(problem, course, clocks)),
            reload_ahead_ops=min(
                decision.reload_ahead_ops, _find_ahead(problem, course, clocks, latest_s)
            ),
        )
    before, after = (
        simulate(problem.program, each, problem.device, efficiency=problem.efficiency)
        for each in (decisions, found)
    )
    is_good = after.step_s <= before.step_s * (1 + 1e-3) and after.peak_bytes <= before.peak_bytes
    return found if is_good else dict(decisions)


def _is_outside(course: Course) -> bool:
    return course.track.forward == 0 and course.track.backward == 0


def _find_window(problem: Problem, course: Course, clocks: Clocks) -> int:
    """The turns that pass until the copy to the host is over."""
    scope, producer = problem.timeline.scopes[0], course.track.producer
    made_s = clocks.op_starts_s[producer] + float(problem.timeline.op_s[producer])
    over_s = made_s + (clocks.out_ends_s[producer] - made_s) * _MARGIN
    first = int(scope.turns_before[producer + 1])
    for turn in range(first, len(scope.turn_starts) - 1):
        if clocks.op_starts_s[scope.turn_starts[turn]] >= over_s:
            return turn - first + 1
    return len(scope.turn_starts) - first


def _find_ahead(problem: Problem, course: Course, clocks: Clocks, start_s: float) -> int:
    """How many turns before the value is needed its reload has to be issued, to start in time."""
    scope = problem.timeline.scopes[0]
    last = int(scope.turns_before[course.needed])
    for ahead in range(1, last):
        op = int(scope.turn_ends[last - ahead])
        if clocks.op_starts_s[op] <= start_s:
            return ahead
    return max(last, 1)
