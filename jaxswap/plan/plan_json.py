"""Plan files: is this text a plan, and which?

Input: a `Plan`, or the JSON text of one. Output: the other of the two, exactly, but for the
forecast's memory curve, which is not stored. Files are strict and versioned: a field that is
missing, unknown or of the wrong type is an error that names it, never a default.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NoReturn

from jaxswap._errors import BadArgumentError
from jaxswap._files import write_whole
from jaxswap.apply.decision import Decision
from jaxswap.model.device_json import read_json
from jaxswap.model.simulate import Forecast
from jaxswap.plan.plan import Plan, PlannedValue

FORMAT = "jaxswap.plan"
VERSION = 2

_FORECAST = tuple(each.name for each in fields(Forecast) if each.name != "bytes_at")
_PLAN = tuple(each.name for each in fields(Plan) if each.name != "values")
_VALUE = (
    *(each.name for each in fields(PlannedValue)),
    *(each.name for each in fields(Decision)),
)
_TYPES: Mapping[str, tuple[type, ...]] = {
    "peak_bytes": (int,), "step_s": (int, float), "host_bytes": (int,), "offload_bytes": (int,),
    "recompute_s": (int, float), "stall_s": (int, float), "peak_op": (int,), "stays": (list,),
    "baseline": (dict, type(None)), "decisions": (dict,), "forecast": (dict,),
    "budget_bytes": (int,), "host_budget_bytes": (int, type(None)), "device": (str,),
    "planner": (str,), "seed": (int,), "fingerprint": (str,), "is_confirmed": (bool,),
    "always_kept": (list,), "compiled_bytes": (int, type(None)), "hints": (dict,),
    "replayed_s": (int, float, type(None)), "overlaps": (bool,), "rest_as_written": (bool,),
    "limit_bytes": (int, type(None)), "memory_bytes": (int,), "fixed_bytes": (int,),
    "size_bytes": (int,), "label": (str,), "source": (str,), "primitive": (str,),
    "shape": (list,), "dtype": (str,), "trips": (int,), "action": (str,),
    "window_ops": (int,), "reload_ahead_ops": (int,),
}  # fmt: skip


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes a plan to a JSON file."""
    write_whole(path, dump_plan(plan))


def dump_plan(plan: Plan) -> str:
    """The text of a plan's JSON file: one line per decision, so that plans compare by line."""
    header = {"format": FORMAT, "version": VERSION}
    for name in _PLAN:
        if name not in ("decisions", "forecast"):
            stored = getattr(plan, name)
            header[name] = dict(stored) if isinstance(stored, Mapping) else stored
    header["forecast"] = _forecast_to_json(plan.forecast)
    lines = [
        f"  {json.dumps(name)}: {json.dumps(_value_to_json(plan, name), allow_nan=False)}"
        for name in plan.decisions
    ]
    text = json.dumps(header, indent=1, allow_nan=False)
    decisions = "{\n" + ",\n".join(lines) + "\n }" if lines else "{}"
    return text[:-2] + f',\n "decisions": {decisions}\n}}\n'


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan from a JSON file."""
    data = read_json(path, "plan", FORMAT, VERSION)
    body = {name: each for name, each in data.items() if name not in ("format", "version")}
    _check(body, _PLAN, f"{path}")
    decisions, values = {}, {}
    for name, each in body.pop("decisions").items():
        where = f"{path}, decision {name!r}"
        _check(each, _VALUE, where)
        parts = {field.name: each[field.name] for field in fields(Decision)}
        try:
            decisions[name] = Decision(**parts)
        except BadArgumentError as error:
            raise BadArgumentError(f"`{where}` is not possible: {error}") from error
        rest: dict[str, Any] = {f.name: each[f.name] for f in fields(PlannedValue)}
        rest["shape"] = tuple(rest["shape"])
        values[name] = PlannedValue(**rest)
    forecast = _forecast_from_json(body.pop("forecast"), f"{path}, forecast")
    body["always_kept"] = tuple(body["always_kept"])
    return Plan(decisions=decisions, values=values, forecast=forecast, **body)


def _forecast_to_json(forecast: Forecast | None) -> dict[str, Any] | None:
    if forecast is None:
        return None
    plain = {name: getattr(forecast, name) for name in _FORECAST}
    return plain | {
        "stays": list(forecast.stays),
        "baseline": _forecast_to_json(forecast.baseline),
    }


def _forecast_from_json(data: Any, where: str) -> Forecast:
    _check(data, _FORECAST, where)
    baseline = data["baseline"]
    if baseline is not None:
        baseline = _forecast_from_json(baseline, f"{where}, baseline")
    return Forecast(**(data | {"stays": tuple(data["stays"]), "baseline": baseline}))


def _value_to_json(plan: Plan, name: str) -> dict[str, Any]:
    parts = (plan.decisions[name], plan.values[name])
    return {each.name: getattr(part, each.name) for part in parts for each in fields(part)}


def _check(data: Any, names: tuple[str, ...], where: str) -> None:
    if not isinstance(data, dict):
        _refuse(where, f"is {data!r}", f"an object with the fields {', '.join(names)}")
    if missing := sorted(set(names) - set(data)):
        _refuse(where, f"lacks {', '.join(missing)}", f"all of {', '.join(names)}")
    if unknown := sorted(set(data) - set(names)):
        _refuse(where, f"has unknown {', '.join(unknown)}", f"only {', '.join(names)}")
    for name in names:
        kinds = _TYPES[name]
        is_bool = isinstance(data[name], bool) and bool not in kinds
        if not isinstance(data[name], kinds) or is_bool:
            words = " or ".join(kind.__name__ for kind in kinds)
            _refuse(where, f"has `{name}` = {data[name]!r}", f"{words} there")


def _refuse(where: str, fact: str, need: str) -> NoReturn:
    raise BadArgumentError(
        f"`{where}` is not a plan: it {fact}, and a plan has {need}. Save the plan again with "
        "`Plan.save`."
    )
