"""Overlap: how is XLA told to let copies run beside kernels?

Input: hints (`hints.py`), where a compiled schedule was replayed. Output: XLA options for the
compiler.

By default XLA:GPU orders a program for memory alone, and waits for every copy right behind its
start. Its latency-hiding scheduler moves start and wait apart, within what the order pinned in
`order.py` allows, but believes that any copy is over after one library call. *Hints* tell it
better: microseconds of every kernel and copy, as a profile of the kind that XLA takes from a
profiler. They are found by compiling once without, and replaying. A name that the next
compilation does not have is no harm: XLA goes back to its own guess.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxswap._files import write_whole

_SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"
_PROFILE = "xla_gpu_pgle_profile_file_or_directory_path"
_STRICTNESS = "xla_gpu_pgle_accuracy_checker"
_IN_FLIGHT = "xla_gpu_experimental_parallel_async_compute_limit"
# More than a loop's body has. By default XLA has 2: it waits for one copy to start a third, and
# lets none run beside a loop whose body has copies of its own. Where no loop has copies, order and
# windows are made for these two (`segments.py`).
_AMPLE = 64


def overlap_options(hints: Mapping[str, float], *, in_loops: bool = False) -> dict[str, Any]:
    """The XLA options under which copies overlap compute; hints go into a file of their own.

    Args:
        hints: microseconds of kernels and copies, by instruction.
        in_loops: whether there are copies in bodies of loops.

    Example:
        >>> overlap_options({})
        {'xla_gpu_enable_latency_hiding_scheduler': True}
    """
    options: dict[str, Any] = {_SCHEDULER: True} | ({_IN_FLIGHT: _AMPLE} if in_loops else {})
    if not hints:
        return options
    lines = [
        f'costs {{ name: "{name}" cost_us: {micros} }}'
        for hinted, micros in hints.items()
        for name in _spellings(hinted)
    ]
    path = _write_once("\n".join(lines) + "\n")
    # XLA would warn of every instruction that the profile does not name.
    return options | {_PROFILE: str(path), _STRICTNESS: "PGLE_STRICTNESS_LEVEL_OFF"}


def _spellings(name: str) -> tuple[str, ...]:
    """An instruction's name, and the one that it has while it is scheduled."""
    return (name, name.removesuffix(".0")) if name.endswith(".0") else (name,)


def _write_once(text: str) -> Path:
    """A file with that text. Its name is its content's: XLA is given the name alone."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"jaxswap-profiles-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{digest}.pbtxt"
    if not path.exists():
        write_whole(path, text)
    return path
