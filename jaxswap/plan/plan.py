"""Plan: what was decided about a step, for which budget, and what is expected of it?

Input: a planner's `Solution` and its `Problem`. Output: a `Plan`, immutable, which prints,
and is saved to and loaded from a versioned JSON file (`plan_json.py`).
A plan has a decision for every candidate, those that are kept included, in program order.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from jaxswap._units import format_bytes
from jaxswap.apply.decision import Decision
from jaxswap.apply.limit import limit_options
from jaxswap.apply.overlap import overlap_options
from jaxswap.model.simulate import Forecast, simulate
from jaxswap.plan.base import Solution
from jaxswap.plan.problem import Problem
from jaxswap.plan.tighten import tighten


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedValue:
    """What a report says of a value that was decided about.

    Attributes:
        size_bytes: of all of it that is there at once if it is kept.
        label: module path.
        source: `file.py:line`, or "".
        primitive: what makes it.
        shape: of one trip's array.
        dtype: by name.
        trips: how many of it one step makes.
    """

    size_bytes: int
    label: str = ""
    source: str = ""
    primitive: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    trips: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do with each value of a step between its forward and its backward pass.

    Attributes:
        decisions: by name, for every candidate.
        values: what each candidate is, by name.
        forecast: of the simulator, with that of the unplanned step under `.baseline`.
        budget_bytes: the device memory it was made for.
        host_budget_bytes: the host memory it was made for; None for any amount.
        device: the name of the device it was made for.
        planner: the name of the planner that made it.
        seed: of that planner.
        fingerprint: of the program it was made for.
        always_kept: names that are no candidates, and that the forecast takes to be kept.
        is_confirmed: whether the compiled step was found to be within the budget.
        compiled_bytes: what the compiled step needs on the device; None if not confirmed.
        replayed_s: seconds of its replayed schedule, likewise.
        overlaps: whether XLA is told to let copies overlap compute, which takes more memory.
        rest_as_written: whether it is left to XLA what to keep of that which is made of kept
            values by ops that fuse. The forecast takes all of it to be made again.
        hints: microseconds of its instructions, for XLA's scheduler (`apply/overlap.py`).
        limit_bytes: what that scheduler may have in memory; None for the budget and some more
            (`apply/limit.py`).
        memory_bytes: of the device; 0 if not known.
        fixed_bytes: those of arguments and outputs.

    Example:
        >>> plan = Plan(
        ...     decisions={"0/3": Decision(action="offload", window_ops=2)},
        ...     values={"0/3": PlannedValue(size_bytes=2**20, label="Dense_0")},
        ...     forecast=Forecast(peak_bytes=2**21, step_s=1e-3),
        ...     budget_bytes=2**21,
        ...     device="h100-sxm",
        ... )
        >>> print(plan)
        plan for 2.00 MiB on h100-sxm: 1 offload (1.00 MiB), 0 recompute (0 B), 0 keep (0 B)
        forecast: 2.00 MiB on the device, 1 ms (forecast)
        offload    0/3  1.00 MiB  window 2, ahead 0  Dense_0
    """

    decisions: Mapping[str, Decision] = field(hash=False)
    values: Mapping[str, PlannedValue] = field(hash=False)
    forecast: Forecast
    budget_bytes: int
    host_budget_bytes: int | None = None
    device: str
    planner: str = ""
    seed: int = 0
    fingerprint: str = ""
    always_kept: tuple[str, ...] = ()
    is_confirmed: bool = False
    compiled_bytes: int | None = None
    replayed_s: float | None = None
    overlaps: bool = True
    rest_as_written: bool = False
    hints: Mapping[str, float] = field(default_factory=dict, hash=False, repr=False)
    limit_bytes: int | None = None
    memory_bytes: int = 0
    fixed_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("decisions", "values", "hints"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple[Any, ...]:
        # Read-only mappings do not copy by themselves.
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
        return _rebuild, (plain,)

    @property
    def is_empty(self) -> bool:
        """Whether everything is kept: the step stays as it is."""
        return all(decision.action == "keep" for decision in self.decisions.values())

    @property
    def all_decisions(self) -> dict[str, Decision]:
        """What `apply` is told: the decisions, and "keep" for what is always kept."""
        kept = dict.fromkeys(self.always_kept, Decision(action="keep"))
        return kept | dict(self.decisions)

    def names(self, action: str) -> tuple[str, ...]:
        """The values for which `action` was decided, in program order."""
        return tuple(n for n, decision in self.decisions.items() if decision.action == action)

    def size_bytes(self, action: str) -> int:
        """The bytes of the values for which `action` was decided."""
        return sum(self.values[name].size_bytes for name in self.names(action))

    def policy(self) -> Any:
        """A policy for `jax.checkpoint`, by name: saves what is kept, offloads what is offloaded.

        It knows values by the names of `jax.ad_checkpoint.checkpoint_name`, which have to be
        those of the plan. Windows and reload distances have no place in it.
        """
        import jax

        return jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=list(self.names("keep")),
            names_which_can_be_offloaded=list(self.names("offload")),
            offload_src="device",
            offload_dst="pinned_host",
        )

    @property
    def has_overlap(self) -> bool:
        """Whether it has copies that are to run beside compute."""
        return self.overlaps and bool(self.names("offload"))

    def compiler_options(self) -> dict[str, Any]:
        """XLA options for `jax.jit` on a GPU: its budget, and that copies may overlap compute.

        `swap_offload` passes them by itself. An empty plan needs none.
        """
        if self.is_empty:
            return {}
        in_loops = any(self.values[name].trips > 1 for name in self.names("offload"))
        overlap = overlap_options(self.hints, in_loops=in_loops) if self.has_overlap else {}
        sizes = (self.budget_bytes, self.memory_bytes, self.fixed_bytes)
        return overlap | limit_options(*sizes, self.limit_bytes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a versioned JSON file; the forecast without its curve."""
        from jaxswap.plan.plan_json import save_plan

        save_plan(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Reads what `save` wrote, and refuses anything else."""
        from jaxswap.plan.plan_json import load_plan

        return load_plan(path)

    def __str__(self) -> str:
        count = Counter(decision.action for decision in self.decisions.values())
        parts = [
            f"{count[action]} {action} ({format_bytes(self.size_bytes(action))})"
            for action in ("offload", "recompute", "keep")
        ]
        lines = [
            f"plan for {format_bytes(self.budget_bytes)} on {self.device}: {', '.join(parts)}",
            f"forecast: {self.forecast}",
        ]
        if self.forecast.baseline is not None:
            lines.append(f"unplanned: {self.forecast.baseline}")
        # One line per value, in program order: two plans of one program compare line by line.
        for name, decision in self.decisions.items():
            if decision.action != "keep":
                lines.append(self._describe(name, decision))
        return "\n".join(lines)

    def _describe(self, name: str, decision: Decision) -> str:
        value = self.values[name]
        when = ""
        if decision.action == "offload":
            when = f"window {decision.window_ops}, ahead {decision.reload_ahead_ops}"
        parts = [name, format_bytes(value.size_bytes), when, value.label, value.source]
        return f"{decision.action:<10} " + "  ".join(part for part in parts if part)


def make_plan(problem: Problem, solution: Solution, *, seed: int = 0) -> Plan:
    """The plan of a solution, with what reports say of each value."""
    program = problem.program
    decided = tighten(problem, solution.decisions)
    values, decisions = {}, {}
    for candidate, track in zip(program.candidates, problem.timeline.tracks, strict=True):
        value = program.values[candidate.value]
        decisions[value.name] = decided.get(value.name, Decision(action="keep"))
        values[value.name] = PlannedValue(
            size_bytes=track.kept_bytes,
            label=value.label,
            source=value.source,
            primitive=value.primitive,
            shape=value.shape,
            dtype=value.dtype,
            trips=value.trips,
        )
    return Plan(
        decisions=decisions,
        values=values,
        # Of this problem: the solution may be of one with another budget, or a slower link.
        forecast=simulate(program, decided, problem.device, efficiency=problem.efficiency),
        budget_bytes=problem.budget_bytes,
        host_budget_bytes=problem.host_budget_bytes,
        device=problem.device.name,
        planner=solution.planner,
        seed=seed,
        fingerprint=program.fingerprint,
        always_kept=program.kept_names,
        memory_bytes=problem.device.memory_bytes,
        fixed_bytes=program.base_bytes,
    )


def redecide(problem: Problem, plan: Plan, decisions: Mapping[str, Decision]) -> Plan:
    """The plan with other decisions, and their forecast."""
    device, efficiency = problem.device, problem.efficiency
    forecast = simulate(problem.program, decisions, device, efficiency=efficiency)
    return replace(plan, decisions=decisions, forecast=forecast)


def _rebuild(values: Mapping[str, Any]) -> Plan:
    return Plan(**values)
