"""MILP: how fast can any plan within the budget be at best?

Input: a `Problem`. Output: a lower bound on the time of every plan that fits, and the plan
that attains it in the linear model, from HiGHS (`scipy.optimize.milp`).

The linear model (`linear.py`) is a *relaxation* of the simulator: what it leaves out only adds
time or bytes, so its bound holds there.
"""

from dataclasses import dataclass

import numpy as np

from jaxswap.model.timeline import Ints
from jaxswap.plan.linear import LinearModel
from jaxswap.plan.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Relaxed:
    """What HiGHS answers.

    Attributes:
        bound_s: seconds that no plan within the budget beats; infinite if none fits.
        offloads: which candidates to offload; None if no answer was found.
        recomputes: which to recompute; likewise.
        is_solved: whether the linear model was solved to the end.
    """

    bound_s: float
    offloads: np.ndarray | None
    recomputes: np.ndarray | None
    is_solved: bool


def solve_relaxed(
    problem: Problem,
    ops: Ints,
    *,
    with_recompute: bool = True,
    node_limit: int = 200,
    time_limit_s: float | None = None,
) -> Relaxed:
    """Solves the linear model with the budget enforced at `ops`; any set of ops gives a bound."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    model = LinearModel(problem, np.unique(ops), with_recompute)
    matrix, limits = model.rows()
    options = {"mip_rel_gap": 1e-6, "node_limit": node_limit}
    if time_limit_s is not None:
        options["time_limit"] = max(time_limit_s, 0.01)
    result = milp(
        model.costs(),
        integrality=model.is_binary(),
        bounds=Bounds(np.zeros(model.num_columns), model.upper()),  # pyright: ignore
        constraints=LinearConstraint(matrix, -np.inf, limits),  # pyright: ignore
        options=options,
    )
    base_s = float(problem.timeline.op_s.sum())
    if result.status == 2:
        return Relaxed(bound_s=np.inf, offloads=None, recomputes=None, is_solved=True)
    bound, costs = result.mip_dual_bound, model.costs()
    if bound is None:  # what could be spared at most
        bound = costs[costs < 0.0].sum()
    bound_s = max(base_s + float(bound) * model.scale_s, 0.0)
    count = problem.num_candidates
    chosen = None if result.x is None else result.x > 0.5
    return Relaxed(
        bound_s=bound_s,
        offloads=None if chosen is None else chosen[:count],
        recomputes=None if chosen is None else chosen[count : 2 * count],
        is_solved=result.status == 0,
    )
