"""Cells: where is the result of one contender kept, and is it still true?

Input: a `Cell` (model, GPU, contender, share of the unplanned bytes). Output: its result, a JSON
file in `build/bench`, written by a child process or by whoever gave up on it.
The one convention: a file's name ends in a digest of all that its result depends on. A policy
depends on its model and on the judge (compiler, replay, devices); what jaxswap plans also
depends on every source of jaxswap but its reports. Sources are read anew each time: they may
change while a long benchmark runs.
"""

import hashlib
import importlib.metadata
import inspect
import json
import os
import pathlib
import platform
import subprocess
import time
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from typing import Any

import benchmarks
from benchmarks.contenders import Contender, list_contenders
from benchmarks.models import WORKLOADS
from benchmarks.panels import MODELS, Panel
from jaxswap.model.presets import find_device

FOLDER = pathlib.Path("build") / "bench"
Result = dict[str, Any]

_BENCHMARKS = pathlib.Path(benchmarks.__file__).parent
_JAXSWAP = _BENCHMARKS.parent / "jaxswap"
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
_PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin", "flax", "optax", "numpy", "scipy", "pygad")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One configuration: it is run in a process of its own, once.

    Attributes:
        model: a key of `contenders.MODELS`.
        device: a preset's name.
        contender: its name.
        share: the budget as a share of the unconstrained step's bytes; None without a budget.
    """

    model: str
    device: str
    contender: str
    share: float | None = None

    @property
    def panel(self) -> Panel:
        """The model on the GPU."""
        return Panel(model=self.model, device=self.device)

    def find(self) -> Contender:
        """The contender itself."""
        return list_contenders(self.model)[self.contender]

    @property
    def label(self) -> str:
        """`resnet50 rtx4090 genetic@0.5`."""
        share = "" if self.share is None else f"@{self.share:g}"
        return f"{self.model} {self.device} {self.contender}{share}"

    @property
    def path(self) -> pathlib.Path:
        """Where the result of the present sources is, or would be."""
        return FOLDER / self.model / self.device / f"{self._stem}-{digest_cell(self)}.json"

    @property
    def _stem(self) -> str:
        name = self.label.split(" ")[2]
        return "".join(c if c.isalnum() or c in "@.-" else "_" for c in name)

    def read(self) -> Result | None:
        """The result of the present sources, else None."""
        return read_result(self.path)

    def read_newest(self) -> Result | None:
        """The result of the present sources, else the newest of any others, marked "is_older"."""
        if (present := self.read()) is not None:
            return present
        # A digest has no "-", so that a longer name is not taken for this one.
        pattern = f"{self._stem}-{'[0-9a-f]' * _DIGITS}.json"
        results = [read_result(path) for path in self.path.parent.glob(pattern)]
        dated = [result for result in results if result is not None]
        return {**max(dated, key=lambda r: r["finished"]), "is_older": True} if dated else None


def read_result(path: pathlib.Path) -> Result | None:
    """What a file says; None if there is none, or one that is no JSON."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def write_result(cell: Cell, path: pathlib.Path, result: Result) -> Result:
    """Writes a result in one go, a reader sees all of it or nothing, and returns it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    full = {"cell": asdict(cell), **result, **_circumstances()}
    part.write_text(json.dumps(full, indent=1))
    part.replace(path)
    return full


def _circumstances() -> Result:
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "commit": _commit(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def _commit() -> str:
    """The commit, with "-dirty" where files differ from it; "" outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, cwd=_BENCHMARKS, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


_DIGITS = 12


def digest_cell(cell: Cell) -> str:
    """Changes when anything does that the cell's result depends on."""
    plans = cell.find().kind in ("paper", "jaxswap")
    parts = [
        json.dumps(asdict(cell)),
        _version("jax"),
        repr(find_device(cell.device)),
        json.dumps(MODELS[cell.model]),
        digest_model(MODELS[cell.model][0]),
        _digest_files(tuple(str(_JAXSWAP / name) for name in _JUDGE)),
        digest_jaxswap() if plans else "",
    ]
    return _digest("\n".join(parts).encode())


def digest_model(workload: str) -> str:
    """Of the file that builds the workload and of those that all models share."""
    built_by = pathlib.Path(inspect.getfile(WORKLOADS[workload].func))  # pyright: ignore
    shared = sorted(str(path) for path in built_by.parent.glob("_*.py"))
    return _digest_files((str(built_by), *(s for s in shared if not s.endswith("__init__.py"))))


def digest_jaxswap() -> str:
    """Of all that a plan comes from; reports come after it."""
    sources = (path for path in _JAXSWAP.rglob("*.py") if "report" not in path.parts)
    return _digest_files(tuple(sorted(str(path) for path in sources)))


def _digest_files(paths: tuple[str, ...]) -> str:
    stats = (os.stat(path) for path in paths)
    return _digest_unchanged(paths, tuple((stat.st_mtime_ns, stat.st_size) for stat in stats))


@lru_cache(maxsize=64)
def _digest_unchanged(paths: tuple[str, ...], stamps: tuple[tuple[int, int], ...]) -> str:
    """Of files that are not read again as long as their stamps are the same."""
    return _digest(b"\n".join(pathlib.Path(path).read_bytes() for path in paths))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGITS]
