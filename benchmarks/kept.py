"""Kept: where is the result of a run, and is it still true?

Input: a result's name, and a digest of all that it depends on (`sources.py`). Output: the result, a
JSON file in `benchmarks/results`, with its digest, versions and commit.
The one convention: a file per name, in the repository. A newer run takes the place of an older one;
a result of another digest is *older*, and is shown as such until it is run again.
"""

import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from functools import cache
from typing import Any

from benchmarks.sources import BENCHMARKS

FOLDER = BENCHMARKS / "results"
Result = dict[str, Any]
_PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin", "flax", "optax", "numpy", "scipy", "pygad")


def read_kept(name: str, sources: str) -> Result | None:
    """The result of the present sources; None if there is none."""
    found = read_newest(name, sources)
    return None if found is None or found.get("is_older") else found


def read_newest(name: str, sources: str) -> Result | None:
    """The result of whatever sources it is, marked "is_older" if not of the present ones."""
    try:
        found = json.loads(path_of(name).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return found if found.get("sources") == sources else {**found, "is_older": True}


def write_kept(name: str, sources: str, result: Result) -> Result:
    """Writes a result in one go, a reader sees all of it or nothing, and returns it."""
    path = path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    full = {**result, "sources": sources, **_circumstances()}
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(_without_places(json.dumps(full, indent=1)) + "\n")
    part.replace(path)
    return full


def _without_places(text: str) -> str:
    """Without where this machine has its packages and this repository: an error may name a file."""
    for place in (sys.prefix, str(BENCHMARKS.parent)):
        text = text.replace(f"{place}{os.sep}", "")
    return text


def path_of(name: str) -> pathlib.Path:
    """The file of a result, such as `bench/resnet50/t4/genetic@0.5`."""
    safe = "".join(c if c.isalnum() or c in "@.-/" else "_" for c in name)
    return FOLDER / f"{safe}.json"


def find_version(package: str) -> str:
    """Of an installed package; "" if it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _circumstances() -> Result:
    versions = {name: find_version(name) for name in _PACKAGES}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "commit": _commit(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@cache
def _commit() -> str:
    """The commit, with "-dirty" where sources differ from it; "" outside a repository."""
    ask = lambda *command: subprocess.run(
        ["git", *command], cwd=BENCHMARKS, capture_output=True, text=True, check=False
    )
    try:
        commit = ask("rev-parse", "--short=12", "HEAD").stdout.strip()
        differs = ask("diff", "--quiet", "HEAD", "--", "../jaxswap", "*.py").returncode
    except FileNotFoundError:
        return ""
    return f"{commit}-dirty" if commit and differs else commit
