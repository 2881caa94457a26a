"""Adjust: what else has to leave, where a plan turned out a little too large?

Input: a problem, the decisions of a plan, and a lower budget. Output: the same decisions and a few
more, or None.
Another search may answer with other values altogether, and XLA makes of those what it will. What
was compiled is known: most of it is left as it is, and the cheapest of what it keeps leaves too.
"""

from collections.abc import Mapping

import numpy as np

from jaxswap.apply.decision import ACTIONS, Decision
from jaxswap.model.population import KEEP, OFFLOAD, Forecasts, simulate_many
from jaxswap.model.simulate import KEEP as KEPT
from jaxswap.plan.problem import KEEP_GENE, Problem

_MAX_MORE = 32  # values; a plan that needs more of them is another plan


def adjust(
    problem: Problem, decisions: Mapping[str, Decision], budget_bytes: int
) -> dict[str, Decision] | None:
    """The decisions, with as little more leaving as brings the forecast within a budget.

    Args:
        problem: what may be decided; its own budget does not matter.
        decisions: by name; what has none is kept.
        budget_bytes: device bytes that the step may have.

    Returns:
        The decisions; None where a few more do not do.
    """
    names = problem.program.candidate_names
    if not names:
        return None
    planned = [decisions.get(name, KEPT) for name in names]
    now = np.array(
        [
            [ACTIONS.index(d.action) for d in planned],
            [d.window_ops for d in planned],
            [d.reload_ahead_ops for d in planned],
        ]
    )
    before = _simulate(problem, now[None])
    for _ in range(_MAX_MORE):
        if before.peak_bytes[0] <= budget_bytes:
            return _decide(names, decisions, now)
        trials = _list_trials(problem, now)
        if not len(trials):
            return None
        after = _simulate(problem, trials)
        row = _choose(problem, before, after, budget_bytes)
        if row is None:
            return None
        now = trials[row]
        before = _simulate(problem, now[None])
    return None


def _simulate(problem: Problem, rows: np.ndarray) -> Forecasts:
    return simulate_many(problem.timeline, rows[:, 0], rows[:, 1], rows[:, 2])


def _list_trials(problem: Problem, now: np.ndarray) -> np.ndarray:
    """The answers in which one more value leaves, in every way that it may."""
    options = problem.options
    leaves = options.is_allowed & (now[0] == KEEP)[:, None]
    leaves[:, KEEP_GENE] = False
    who, what = np.nonzero(leaves)
    trials = np.repeat(now[None], len(who), axis=0)
    changed = options.actions[what], options.windows[who, what], options.aheads[who, what]
    trials[np.arange(len(who)), :, who] = np.stack(changed, axis=1)
    return trials


def _choose(problem: Problem, before: Forecasts, after: Forecasts, budget_bytes: int) -> int | None:
    """The fastest that fits, or the one that frees the most for its time; None if none frees."""
    limit = np.inf if problem.host_budget_bytes is None else problem.host_budget_bytes
    is_allowed = after.host_bytes <= limit
    fits = is_allowed & (after.peak_bytes <= budget_bytes)
    if fits.any():
        return int(np.where(fits, after.step_s, np.inf).argmin())
    freed = np.where(is_allowed, before.peak_bytes[0] - after.peak_bytes, 0)
    if freed.max() <= 0:
        return None
    least_s = 1e-6 * before.step_s[0]
    longer_s = np.maximum(after.step_s - before.step_s[0], least_s)
    return int((freed / longer_s).argmax())


def _decide(
    names: tuple[str, ...], decisions: Mapping[str, Decision], now: np.ndarray
) -> dict[str, Decision]:
    found = dict(decisions)
    for name, (action, window, ahead) in zip(names, now.T.tolist(), strict=True):
        if decisions.get(name, KEPT).action == ACTIONS[action]:
            continue
        moved = {"window_ops": window, "reload_ahead_ops": ahead} if action == OFFLOAD else {}
        found[name] = Decision(action=ACTIONS[action], **moved)
    return found
