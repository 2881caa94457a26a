"""Shortcuts: how does the compiler lose no time on code that never runs?

Input: the target that is compiled for. Output: XLA options.
A step is compiled to see its schedule and its buffers. The code of its kernels comes after both
and takes a good half of the time: here it is not optimised, and what was made for another plan of
the same step, in this process or before, is taken from a file. Each compilation has a copy of that
file, and puts it back in one move: two processes at once lose kernels, at worst, and time.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxswap._config import cache_dir, find_versions

_UNOPTIMISED = {
    "xla_backend_optimization_level": 0,
    "xla_gpu_disable_gpuasm_optimizations": True,
    "xla_gpu_enable_llvm_module_compilation_parallelism": True,  # kernels are kept one by one
}
_FILE = "xla_gpu_kernel_cache_file"
_MAX_FILE_BYTES = 2**28  # XLA reads all of it, and drops nothing


@contextlib.contextmanager
def shortcut_options(target: str) -> Iterator[dict[str, Any]]:
    """What makes the compiler faster, and changes neither schedule nor buffers.

    Where the compiler fails all the same, the file is taken away: it may be why.
    """
    kept = _kernels_path(target)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="compiling-", dir=kept.parent)
    except OSError:  # nothing can be kept here
        yield dict(_UNOPTIMISED)
        return
    own = Path(folder) / "kernels"
    try:
        with contextlib.suppress(OSError):
            if kept.stat().st_size <= _MAX_FILE_BYTES:
                shutil.copyfile(kept, own)
        yield {**_UNOPTIMISED, _FILE: str(own)}
    except BaseException:
        with contextlib.suppress(OSError):
            kept.unlink(missing_ok=True)
        raise
    else:
        with contextlib.suppress(OSError):
            os.replace(own, kept)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _kernels_path(target: str) -> Path:
    versions = find_versions()
    parts = (target, versions["jax"], versions["jaxlib"])
    return cache_dir() / "kernels" / hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
