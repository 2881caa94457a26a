"""Limit: how is XLA told how many bytes a plan's step may need?

Input: a budget, the device's memory, and the bytes of arguments and outputs. Output: an XLA option
for the compiler.

XLA:GPU schedules for a limit of its own: 95 % of what arguments and outputs leave of 80 % of the
device (`GetSchedulerMemoryLimit`). Above it, it rematerialises: a plan that fills the device would
be recomputed once more, for nothing. Far below it, its latency-hiding scheduler takes memory as
free, and holds what a plan wants gone. So a planned step's limit is its budget.
"""

from typing import Any

_OPTION = "xla_gpu_memory_limit_slop_factor"
_XLAS_SHARE = 0.8  # of the device
_MAX_PERCENT = 1000


def find_limit_percent(budget_bytes: int, memory_bytes: int, fixed_bytes: int) -> int:
    """The budget in percent of what XLA takes as there; 0 where that cannot be told it.

    Args:
        budget_bytes: what the step may need.
        memory_bytes: of the device.
        fixed_bytes: arguments + outputs − aliased.

    Example:
        >>> find_limit_percent(90, 100, 10)
        114
    """
    there = _XLAS_SHARE * memory_bytes - fixed_bytes
    percent = int(100 * (budget_bytes - fixed_bytes) / there) if there > 0 else 0
    return percent if 1 <= percent <= _MAX_PERCENT else 0


def limit_options(percent: int) -> dict[str, Any]:
    """The XLA option that sets the limit; none for 0.

    Example:
        >>> limit_options(0)
        {}
    """
    return {_OPTION: percent} if percent else {}
