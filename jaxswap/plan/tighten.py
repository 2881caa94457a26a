"""Tighten: which windows and reload distances does a plan really use?

Input: a problem and decisions. Output: the same decisions with the shortest windows and reload
distances under which the simulated copies run as before.

The search chooses windows from a few lengths, often longer than a copy takes. XLA has two copies
in flight at a time and takes each to be so until its window ends: windows that overlap get in
each other's way, and windows that follow each other, as the copies do on the link, do not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from jaxswap.apply.decision import ACTIONS, Decision
from jaxswap.model.population import simulate_many
from jaxswap.model.simulate import KEEP, Clocks, Course, run_clocks, settle_courses
from jaxswap.model.timeline import Ints
from jaxswap.plan.in_turn import change_in_turn
from jaxswap.plan.problem import Problem

# What copies take more than was forecast, or start later. A reload that ends late is waited for,
# one that starts early only needs its memory for longer; a longer window only gets in the way.
_WINDOW_MARGIN, _RELOAD_MARGIN = 1.1, 1.7
_SLOWER = 1 + 1e-3  # what a plan may get slower by all of it
_MAX_HARMFUL = 40


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
        latest_s = end_s - courses[k].track.in_s * _RELOAD_MARGIN
        aheads[k] = _find_ahead(problem, courses[k], clocks, latest_s)
    now = np.array([[d.window_ops for d in planned], [d.reload_ahead_ops for d in planned]])
    shorter = [((0, k), windows[k]) for k in moving] + [((1, k), aheads[k]) for k in aheads]
    shorter = [(place, turns) for place, turns in shorter if turns < now[place]]
    actions = [ACTIONS.index(d.action) for d in planned]
    now = change_in_turn(now, shorter, _does_harm(problem, actions, now), max_harmful=_MAX_HARMFUL)
    found = dict(decisions)
    for k in moving:
        window, ahead = now[:, k].tolist()
        found[names[k]] = replace(planned[k], window_ops=window, reload_ahead_ops=ahead)
    return found


def _does_harm(
    problem: Problem, actions: Sequence[int], start: Ints
) -> Callable[[Ints], NDArray[np.bool_]]:
    """Whether windows and distances make a plan slower, or larger, than those it starts from."""
    run = lambda rows: simulate_many(
        problem.timeline, [actions] * len(rows), rows[:, 0], rows[:, 1]
    )
    before = run(start[None])

    def is_worse(rows: Ints) -> NDArray[np.bool_]:
        after = run(rows)
        is_slower = after.step_s > before.step_s * _SLOWER
        return is_slower | (after.peak_bytes > before.peak_bytes)

    return is_worse


def _is_outside(course: Course) -> bool:
    return course.track.forward == 0 and course.track.backward == 0


def _find_window(problem: Problem, course: Course, clocks: Clocks) -> int:
    """The turns that pass until the copy to the host is over."""
    scope, producer = problem.timeline.scopes[0], course.track.producer
    made_s = clocks.op_starts_s[producer] + float(problem.timeline.op_s[producer])
    over_s = made_s + (clocks.out_ends_s[producer] - made_s) * _WINDOW_MARGIN
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
