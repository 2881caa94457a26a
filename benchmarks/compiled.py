"""Compiled workloads: compile once, keep the result.

Input: a workload's name and settings, and a device. Output: a `Compiled`.
Kept in `build/compiled`, by the lowered program and what it was compiled with, so that a table
can be made again in seconds. Lowering takes seconds too: which program a request lowers to is
kept as long as no model's source changes. Delete the folder to start afresh.
"""

import dataclasses
import hashlib
import json
import pathlib
from functools import cache
from typing import Any

import jax

from benchmarks import models
from jaxswap import _compat
from jaxswap.model.presets import find_device
from jaxswap.verify.target import Compiled, as_jitted, compile_lowered

_FOLDER = pathlib.Path("build") / "compiled"


def compile_workload(model: str, settings: dict[str, Any], device: str, **options: Any) -> Compiled:
    """Compiles a workload for a device, or reads what an earlier run compiled."""
    target = find_device(device)
    asked = json.dumps([jax.__version__, target.target_config(), sorted(options.items())])
    request = json.dumps([asked, model, sorted(settings.items()), _models_digest()])
    pointer = _FOLDER / f"{_digest(request.encode())}.request"
    if pointer.exists():
        return _read(pointer.read_text())
    workload = models.build(model, **settings)
    jitted = as_jitted(workload.step, workload.donate_argnums)
    lowered = _compat.lower_for_gpu(jitted, workload.args)
    digest = _digest((asked + lowered.as_text()).encode())
    if not (_FOLDER / f"{digest}.json").exists():
        _write(digest, compile_lowered(lowered, target, options=options))
    pointer.write_text(digest)
    return _read(digest)


def _read(digest: str) -> Compiled:
    facts = json.loads((_FOLDER / f"{digest}.json").read_text())
    return Compiled(hlo_text=(_FOLDER / f"{digest}.txt").read_text(), **facts)


def _write(digest: str, compiled: Compiled) -> None:
    _FOLDER.mkdir(parents=True, exist_ok=True)
    facts = {f.name: getattr(compiled, f.name) for f in dataclasses.fields(compiled)}
    (_FOLDER / f"{digest}.txt").write_text(facts.pop("hlo_text"))
    (_FOLDER / f"{digest}.json").write_text(json.dumps(facts))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


@cache
def _models_digest() -> str:
    """Changes when any model's source does."""
    files = sorted(pathlib.Path(models.__file__).parent.glob("*.py"))
    return _digest(b"".join(f.read_bytes() for f in files))
