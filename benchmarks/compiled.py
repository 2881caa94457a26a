"""Compiled workloads: compile once, keep the result.

Input: a workload's name and settings, and a device. Output: a `Compiled`.
Kept in `build/compiled`, by what was compiled and with what, so that a table can be made again
in seconds. Delete the folder to start afresh.
"""

import dataclasses
import hashlib
import json
import pathlib
from typing import Any

import jax

from benchmarks.models import build
from jaxswap import _compat
from jaxswap.model.presets import find_device
from jaxswap.verify.target import Compiled, as_jitted, compile_code

_FOLDER = pathlib.Path("build") / "compiled"


def compile_workload(model: str, settings: dict[str, Any], device: str, **options: Any) -> Compiled:
    """Compiles a workload for a device, or reads what an earlier run compiled."""
    workload = build(model, **settings)
    code = _compat.lower_for_gpu(
        as_jitted(workload.step, workload.donate_argnums), workload.args, {}
    )
    target = find_device(device)
    key = json.dumps([jax.__version__, target.target_config(), sorted(options.items())])
    digest = hashlib.sha256(key.encode() + code).hexdigest()[:24]
    facts_file, text_file = _FOLDER / f"{digest}.json", _FOLDER / f"{digest}.txt"
    if facts_file.exists():
        return Compiled(hlo_text=text_file.read_text(), **json.loads(facts_file.read_text()))
    compiled = compile_code(code, target, options=options)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    facts = {f.name: getattr(compiled, f.name) for f in dataclasses.fields(compiled)}
    text_file.write_text(facts.pop("hlo_text"))
    facts_file.write_text(json.dumps(facts))
    return compiled
