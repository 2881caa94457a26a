"""Compiled steps for tests of the loops that compile plans: figures, and nothing behind."""

from dataclasses import dataclass

from jaxswap.apply.decision import Decision
from jaxswap.model.simulate import Forecast
from jaxswap.plan.plan import Plan, PlannedValue


@dataclass
class Event:
    name: str
    stream: str
    duration_s: float
    is_blocking: bool = False
    size_bytes: float = 0.0
    start_s: float = 0.0


@dataclass
class Timeline:
    step_s: float
    stall_s: float = 0.0
    events: tuple = ()
    waits: tuple = ()
    to_host_bytes: float = 0.0
    to_device_bytes: float = 0.0


class Compiled:
    """What the loop reads of a `Verified`."""

    def __init__(self, device_bytes, step_s=1.0, stall_s=0.0, events=(), waits=()):
        self.device_bytes, self.step_s = device_bytes, step_s
        self.timeline = Timeline(step_s, stall_s, events, waits)


def make_plan(budget_bytes=100, action="keep"):
    return Plan(
        decisions={"0/0": Decision(action=action)},
        values={"0/0": PlannedValue(size_bytes=1)},
        forecast=Forecast(peak_bytes=100, step_s=1.0),
        budget_bytes=budget_bytes,
        device="t4",
    )


def one_by_one(compile_plan):
    """What compiles several plans, from what compiles one."""
    return lambda plans: [compile_plan(plan) for plan in plans]
