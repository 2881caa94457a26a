"""Results: what do the cells of a panel say when they are laid side by side?

Input: the results that are kept of a model on a GPU. Output: `PanelResults`, with a
`BudgetCell` for each budget: jaxswap's plan and the fastest policy that fits the same bytes.
The one convention: *jaxswap* is what a user gets, the default planner; a policy fits if its
compiled bytes are within the budget, whatever jaxswap does.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.cells import Cell
from benchmarks.contenders import DEFAULT_PLANNER, Kind, list_contenders
from benchmarks.kept import Result
from benchmarks.panels import Panel


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One contender at one budget, or without."""

    name: str
    kind: Kind
    share: float | None
    result: Result

    @property
    def is_ok(self) -> bool:
        """Whether there is a compiled step."""
        return self.result["status"] == "ok"

    @property
    def device_bytes(self) -> int:
        """As compiled."""
        return self.result["figures"]["device_bytes"]

    @property
    def step_s(self) -> float:
        """As replayed, or measured."""
        return self.result["figures"]["step_s"]

    def is_within(self, budget_bytes: int) -> bool:
        """Whether the compiled step fits."""
        return self.is_ok and self.device_bytes <= budget_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCell:
    """Compares jaxswap and the policies at one budget.

    Attributes:
        share: the budget as a share of the unconstrained step's bytes.
        budget_bytes: the budget.
        unplanned_s: the unconstrained step's time.
        own: the default planner's row; None if it was not run.
        policy: the fastest policy that fits; None if none does.
    """

    share: float
    budget_bytes: int
    unplanned_s: float
    own: Row | None
    policy: Row | None

    @property
    def is_within(self) -> bool:
        """Whether jaxswap's compiled step fits."""
        return self.own is not None and self.own.is_within(self.budget_bytes)

    @property
    def slowdown(self) -> float | None:
        """The time of jaxswap's step over that of the unconstrained step."""
        return self.own.step_s / self.unplanned_s if self.own and self.own.is_ok else None

    @property
    def speed_up(self) -> float | None:
        """The policy's time over jaxswap's; None unless both are within the budget."""
        if self.own is None or self.policy is None or not self.is_within:
            return None
        return self.policy.step_s / self.own.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelResults:
    """All that is known of a model on a GPU."""

    panel: Panel
    unplanned: Row
    rows: tuple[Row, ...]

    def budget_bytes(self, share: float) -> int:
        """What a share of the unconstrained step is."""
        return int(share * self.unplanned.device_bytes)

    def compare(self, share: float) -> BudgetCell:
        """Compares jaxswap and the policies at one budget."""
        budget_bytes = self.budget_bytes(share)
        own = [row for row in self.rows if row.name == DEFAULT_PLANNER and row.share == share]
        fit = [r for r in self.rows if r.kind == "policy" and r.is_within(budget_bytes)]
        return BudgetCell(
            share=share,
            budget_bytes=budget_bytes,
            unplanned_s=self.unplanned.step_s,
            own=own[0] if own else None,
            policy=min(fit, key=lambda row: row.step_s, default=None),
        )

    def find_dominated(self) -> list[tuple[Row, Row]]:
        """The plans that a contender beats: no larger and faster, or smaller and no slower.

        Plans of all of jaxswap's planners are its own; papers' plans are contenders.
        """
        others = [row for row in self.rows if row.kind != "jaxswap" and row.is_ok]
        found = []
        for own in self.rows:
            if own.name == DEFAULT_PLANNER and own.is_ok:
                better = [other for other in others if _beats(other, own)]
                found += [(own, min(better, key=lambda r: r.step_s))] if better else []
        return found


def _beats(other: Row, own: Row) -> bool:
    mine, theirs = (own.device_bytes, own.step_s), (other.device_bytes, other.step_s)
    return theirs != mine and theirs[0] <= mine[0] and theirs[1] <= mine[1]


def load_panel(panel: Panel, shares: Iterable[float]) -> PanelResults | None:
    """Reads a panel's results; None if not even the unconstrained step has one."""
    rows = []
    for contender in list_contenders(panel.model).values():
        for share in shares if contender.has_budget else [None]:
            cell = Cell(
                model=panel.model, device=panel.device, contender=contender.name, share=share
            )
            if (result := cell.read_newest()) is not None:
                name, kind = contender.name, contender.kind
                rows.append(Row(name=name, kind=kind, share=share, result=result))
    if not rows or rows[0].name != "unconstrained" or not rows[0].is_ok:
        return None
    return PanelResults(panel=panel, unplanned=rows[0], rows=tuple(rows))


def geometric_mean(values: Iterable[float]) -> float:
    """The n-th root of the product of n numbers; NaN for none.

    Example:
        >>> geometric_mean([2.0, 8.0])
        4.0
    """
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
