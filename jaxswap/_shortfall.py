"""Shortfall: how much device memory was missing when a step ran out of it?

Input: the error of JAX's runtime, and what the allocator says. Output: bytes to plan with less.
XLA asks for all temporaries of a step at once, so that the request less what was free is what
the plan lacks; where that is not known, or not above zero (fragmentation), a share of the
budget is given up.
"""

import re
from typing import Any

import jax

_REQUEST = re.compile(r"allocat\w+\s+(?:[a-z ]*?)([\d.]+)\s*(bytes|B|[KMGT]iB)\b", re.I)
_UNITS = {"bytes": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
# Given up where the error does not say how much was missing, and at least otherwise.
UNKNOWN_SHARE = 0.1
LEAST_SHARE = 0.02


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of JAX's runtime, or of its compiler, says that memory ran out."""
    text = str(error)
    return "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()


def parse_request(text: str) -> int | None:
    """The bytes that an allocation asked for, if the message says.

    Example:
        >>> parse_request("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12 bytes.")
        12
    """
    match = _REQUEST.search(text)
    return int(float(match[1]) * _UNITS[match[2].lower()]) if match else None


def find_shortfall(error: BaseException, budget_bytes: int, device: Any = None) -> int:
    """Bytes by which to lower a budget after running out of memory.

    Args:
        error: what JAX raised.
        budget_bytes: what the step was planned for.
        device: the JAX device; the first one by default.
    """
    request = parse_request(str(error))
    stats = (device or jax.local_devices()[0]).memory_stats() or {}
    least = int(LEAST_SHARE * budget_bytes)
    if request is not None and "bytes_limit" in stats:
        free = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
        return min(max(request - free, least), budget_bytes)
    if request is not None and request < budget_bytes:
        return max(request, least)
    return int(UNKNOWN_SHARE * budget_bytes)
