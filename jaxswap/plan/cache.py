"""Cache: was this step planned before, and is there a better plan for another budget?

Input: what a plan depends on besides its budget, as text parts; a budget. Output: a plan from
disk, or None. One folder per step, device and planner; in it one plan file per budget.

Files are written beside and renamed into place, so that two processes at once are safe. A file
that is no plan is told of in one warning, ignored, and written over by the next plan.

A plan for a tighter budget fits a looser one as well, and one for a looser budget a tighter one, if
its compiled step does. So the answer for a budget is the fastest of all plans that fit it: a looser
budget never gets a slower plan than a tighter one.
"""

import dataclasses
import hashlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from jaxswap._errors import JaxswapError
from jaxswap._files import write_whole
from jaxswap.plan.plan import Plan
from jaxswap.plan.plan_json import dump_plan, load_plan


class PlanCache:
    """Plans of one step on one device by one planner, by budget.

    Example:
        >>> cache = PlanCache(Path("nowhere"), {"program": "abc", "device": "t4"})
        >>> cache.load(2**30) is None
        True
    """

    def __init__(self, root: Path, parts: Mapping[str, object]):
        text = "\n".join(f"{name}={parts[name]!r}" for name in sorted(parts))
        self.folder = root / hashlib.sha256(text.encode()).hexdigest()[:32]

    def load(self, budget_bytes: int) -> Plan | None:
        """The plan for a budget, or a faster one that fits it; None if there is none for it."""
        own = self._read(self._path(budget_bytes), budget_bytes)
        return None if own is None else self.improve(own)

    def improve(self, plan: Plan) -> Plan:
        """The fastest of a plan and the others that fit its budget, with that budget."""
        best = plan
        for path, budget_bytes in self._list():
            if budget_bytes != plan.budget_bytes:
                other = self._read(path, budget_bytes)
                if other and _fits(other, plan.budget_bytes) and _is_faster(other, best):
                    best = other
        return dataclasses.replace(best, budget_bytes=plan.budget_bytes)

    def store(self, plan: Plan) -> None:
        """Keeps a plan; where that is impossible, says so once and goes on."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(plan.budget_bytes), dump_plan(plan))
        except OSError as error:
            warnings.warn(f"jaxswap cannot keep plans in {self.folder}: {error}.", stacklevel=2)

    def _path(self, budget_bytes: int) -> Path:
        return self.folder / f"{budget_bytes}.json"

    def _list(self) -> Iterator[tuple[Path, int]]:
        paths = self.folder.glob("*.json") if self.folder.is_dir() else ()
        for path in sorted(paths):
            if path.stem.isdigit():
                yield path, int(path.stem)

    def _read(self, path: Path, budget_bytes: int) -> Plan | None:
        try:
            if not path.exists():
                return None
            plan = load_plan(path)
            if plan.budget_bytes == budget_bytes:
                return plan
            reason = f"it is a plan for {plan.budget_bytes} bytes"
        except (JaxswapError, OSError, UnicodeDecodeError) as error:
            reason = str(error)
        warnings.warn(f"jaxswap ignores {path}, and will write it anew: {reason}", stacklevel=2)
        return None


def _fits(plan: Plan, budget_bytes: int) -> bool:
    """Whether a plan for another budget is within this one: made for less, or compiled to less."""
    is_compiled = plan.compiled_bytes is not None and plan.compiled_bytes <= budget_bytes
    return plan.budget_bytes < budget_bytes or is_compiled


def _is_faster(other: Plan, plan: Plan) -> bool:
    """By the compiled schedule where both have one, and never an unconfirmed for a confirmed."""
    if other.is_confirmed != plan.is_confirmed:
        return False
    if other.replayed_s is not None and plan.replayed_s is not None:
        return other.replayed_s < plan.replayed_s
    return other.forecast.step_s < plan.forecast.step_s
