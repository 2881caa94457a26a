"""Limit: how is XLA told how many bytes a plan's step may need?

Input: a budget, the device's memory, and the bytes of arguments and outputs. Output: an XLA option
for the compiler.

XLA:GPU schedules for a limit of its own: 95 % of what arguments and outputs leave of the memory
that JAX may use (`GetSchedulerMemoryLimit`). Above it, it rematerialises: a plan that fills the
device would be recomputed once more, for nothing. Far below it, its latency-hiding scheduler takes
memory as free, and holds what a plan wants gone. So a planned step's limit is its budget, and some
more: XLA counts more bytes before it has assigned buffers than after, and recomputes what a plan
keeps if that is above the limit. A scheduler that knows how long copies take reloads as early as
its limit lets it: where that is too early, the limit is the budget itself. XLA is told in whole
percents of the memory: on a large device a small budget's limit is well above it.
"""

import math
from typing import Any

_OPTION = "xla_gpu_memory_limit_slop_factor"
_MAX_PERCENT = 1000
# GPT-2-small, planned for 10.38 GB on an H100, needs 10.37; with 1.0 and 1.1 XLA recomputes.
_SLACK = 1.2


def limit_options(
    budget_bytes: int, memory_bytes: int, fixed_bytes: int, limit_bytes: int | None = None
) -> dict[str, Any]:
    """The XLA option that sets the limit; none where XLA cannot be told.

    Args:
        budget_bytes: what the step may need.
        memory_bytes: of the device, as far as JAX may use it.
        fixed_bytes: arguments + outputs − aliased.
        limit_bytes: what XLA is told; by default the budget and some more.

    Example:
        >>> limit_options(55, 100, 10)
        {'xla_gpu_memory_limit_slop_factor': 60}
        >>> limit_options(55, 100, 10, limit_bytes=55)
        {'xla_gpu_memory_limit_slop_factor': 50}
    """
    there = memory_bytes - fixed_bytes
    temporaries = _SLACK * (budget_bytes - fixed_bytes)
    if limit_bytes is not None:
        temporaries = limit_bytes - fixed_bytes
    if there <= 0 or temporaries <= 0:
        return {}
    return {_OPTION: min(math.ceil(100 * temporaries / there), _MAX_PERCENT)}
