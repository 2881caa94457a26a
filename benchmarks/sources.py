"""Sources: what does a result depend on, and did any of it change?

Input: the name of a workload, or nothing. Output: a digest of the code that a result comes from:
comments, docstrings and layout do not count.
Sources are read anew each time: they may change while a long benchmark runs.
"""

import ast
import hashlib
import inspect
import os
import pathlib
from functools import lru_cache

import benchmarks
from benchmarks.models import WORKLOADS

BENCHMARKS = pathlib.Path(benchmarks.__file__).parent
JAXSWAP = BENCHMARKS.parent / "jaxswap"
# What the figures of a compiled step come from, whoever planned it.
_JUDGE = (
    "verify/target.py",
    "verify/hlo.py",
    "verify/cost.py",
    "verify/replay.py",
    "model/kernel.py",
    "model/device.py",
    "model/dtypes.py",
    "model/transfer.py",
    "model/capability.py",
)
_DIGITS = 12
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def digest_model(workload: str) -> str:
    """Of the file that builds the workload and of those that all models share."""
    built_by = pathlib.Path(inspect.getfile(WORKLOADS[workload].func))  # pyright: ignore
    shared = sorted(str(path) for path in built_by.parent.glob("_*.py"))
    return _digest_files((str(built_by), *(s for s in shared if not s.endswith("__init__.py"))))


def digest_judge() -> str:
    """Of all that the figures of a compiled step come from."""
    return _digest_files(tuple(str(JAXSWAP / name) for name in _JUDGE))


def digest_jaxswap() -> str:
    """Of all that a plan comes from; reports come after it."""
    sources = (path for path in JAXSWAP.rglob("*.py") if "report" not in path.parts)
    return _digest_files(tuple(sorted(str(path) for path in sources)))


def digest_text(text: str) -> str:
    """Of anything that can be written down."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _digest_files(paths: tuple[str, ...]) -> str:
    stats = (os.stat(path) for path in paths)
    return _digest_unchanged(paths, tuple((stat.st_mtime_ns, stat.st_size) for stat in stats))


@lru_cache(maxsize=64)
def _digest_unchanged(paths: tuple[str, ...], stamps: tuple[tuple[int, int], ...]) -> str:
    """Of files that are not read again as long as their stamps are the same."""
    return digest_text("\n".join(_find_code(pathlib.Path(path).read_text()) for path in paths))


def _find_code(source: str) -> str:
    """What a source says to Python, in one way of writing it, without what it says to readers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)
