"""Tighten: which windows and reload distances does a plan really use?

Input: a problem and decisions. Output: the same decisions with the shortest windows and reload
distances under which the simulated copies run as before.

The search chooses windows from a few lengths, often longer than a copy takes. XLA has two copies
in flight at a time and takes each to be so until its window ends: windows that overlap get in
each other's way, and windows that follow each other, as the copies do on the link, do not.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jaxswap.apply.decision import ACTIONS, Decision
from jaxswap.model.population import simulate_many
from jaxswap.model.simulate import Clocks, Course, run_clocks, settle_courses
from jaxswap.model.timeline import Ints
from jaxswap.plan.problem import Problem

Change = tuple[int, int, int]
"""Of the windows (0) or the reload distances (1), which candidate's, and to how many turns."""

# What a copy takes more than was forecast, or starts later.
_MARGIN = 1.1
_SLOWER = 1 + 1e-3  # what a plan may get slower by all of it
# Each is found by simulating all that come behind it.
_MAX_HARMFUL = 40
KEEP = Decision(action="keep")


def tighten(problem: Problem, decisions: Mapping[str, Decision]) -> dict[str, Decision]:
    """Shortens windows and reload distances; the plan gets neither slower nor larger by it."""
    names = problem.program.candidate_names
    planned = [decisions.get(name, KEEP) for name in names]
    courses = settle_courses(problem.timeline, planned)
    clocks = run_clocks(problem.timeline, courses)
    # Between loops, copies belong to trips, whose time the clocks do not have.
    moving = [k for k, c in enumerate(courses) if c.action == "offload" and _is_outside(c)]
    if not moving:
        return dict(decisions)
    windows = {k: _find_window(problem, courses[k], clocks) for k in moving}
    aheads, latest_s = {}, float("inf")
    for k in sorted(moving, key=lambda k: -clocks.op_starts_s[courses[k].needed]):
        end_s = min(clocks.op_starts_s[courses[k].needed], latest_s)
        latest_s = end_s - courses[k].track.in_s * _MARGIN
        aheads[k] = _find_ahead(problem, courses[k], clocks, latest_s)
    now = np.array([[d.window_ops for d in planned], [d.reload_ahead_ops for d in planned]])
    changes = [(0, k, windows[k]) for k in moving] + [(1, k, aheads[k]) for k in aheads]
    changes = [change for change in changes if change[2] < now[change[:2]]]
    actions = np.array([ACTIONS.index(d.action) for d in planned])
    now = _shorten(problem, actions, now, changes)
    found = dict(decisions)
    for k in moving:
        window, ahead = now[:, k].tolist()
        found[names[k]] = replace(planned[k], window_ops=window, reload_ahead_ops=ahead)
    return found


def _shorten(problem: Problem, actions: Ints, now: Ints, changes: list[Change]) -> Ints:
    """Makes changes one after another, and leaves out those that hurt with the others."""
    simulate_rows = lambda rows: simulate_many(
        problem.timeline, np.repeat(actions[None], len(rows), axis=0), rows[:, 0], rows[:, 1]
    )
    start = simulate_rows(now[None])
    for _ in range(_MAX_HARMFUL):
        if not changes:
            break
        rows = np.repeat(now[None], len(changes), axis=0)
        for row, (which, k, turns) in enumerate(changes):
            rows[row:, which, k] = turns
        after = simulate_rows(rows)
        hurts = (after.step_s > start.step_s * _SLOWER) | (after.peak_bytes > start.peak_bytes)
        count = int(np.argmax(hurts)) if hurts.any() else len(changes)
        now = rows[count - 1] if count else now
        changes = changes[count + 1 :]
    return now


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
