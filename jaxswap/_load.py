"""Targets: which step does `MODULE:FUNCTION` on the command line mean?

Input: `package.module:function` or `path/file.py:function`, and keyword settings.
Output: a `Target`.
The convention: the function takes only keywords and returns `(step, args)`, or
`(step, args, donate_argnums)`. `args` are the step's arguments, arrays or shapes.
"""

import importlib
import importlib.util
import inspect
import pathlib
import sys
import traceback
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxswap._errors import TargetError

_CONVENTION = "a function that returns `(step, args)` or `(step, args, donate_argnums)`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A step and what to call it with."""

    name: str
    step: Callable
    args: tuple
    donate_argnums: tuple[int, ...]


def load_target(spec: str, settings: Mapping[str, Any]) -> Target:
    """Imports the function that `spec` names and calls it with `settings`."""
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise TargetError(
            f"{spec!r} names no function: write MODULE:FUNCTION or path/file.py:FUNCTION."
        )
    module = _import_file(place) if place.endswith(".py") else _import_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        known = [n for n, v in vars(module).items() if inspect.isfunction(v) and n[0] != "_"]
        listed = ", ".join(known) or "none"
        raise TargetError(f"{place} has no function {name!r}. It has: {listed}.")
    return _as_target(spec, _call(spec, function, settings))


def parse_settings(items: Sequence[str]) -> dict[str, Any]:
    """Reads `key=value` items; values are Python literals, or text where they are not."""
    settings: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key.isidentifier():
            raise TargetError(f"`--set {item}` is not KEY=VALUE, such as `--set batch=32`.")
        try:
            settings[key] = literal_eval(text)
        except (ValueError, SyntaxError):
            settings[key] = text
    return settings


def _import_module(name: str) -> Any:
    # A console script's path starts with its own folder, not with the user's.
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        reason = _one_line(error)
        raise TargetError(f"Module {name!r} does not import: {reason}") from error
    finally:
        sys.path.remove("")


def _import_file(path: str) -> Any:
    file = pathlib.Path(path)
    if not file.is_file():
        raise TargetError(f"There is no file {path!r}.")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The file's neighbours are importable from it, as when it is run as a script.
    sys.path.insert(0, str(file.parent.resolve()))
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        reason = _one_line(error)
        raise TargetError(f"{path!r} does not import: {reason}") from error
    finally:
        sys.path.remove(str(file.parent.resolve()))
    return module


def _call(spec: str, function: Callable, settings: Mapping[str, Any]) -> Any:
    try:
        inspect.signature(function).bind(**settings)
    except TypeError as error:
        given = ", ".join(f"{k}={v!r}" for k, v in settings.items()) or "no settings"
        signature = inspect.signature(function)
        raise TargetError(
            f"{spec}{signature} cannot be called with {given}: {error}. Give its keywords "
            "with `--set KEY=VALUE`."
        ) from error
    try:
        return function(**settings)
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise TargetError(
            f"{spec} raised {_one_line(error)} (in {pathlib.Path(frame.filename).name}:"
            f"{frame.lineno})"
        ) from error


def _one_line(error: BaseException) -> str:
    """What went wrong, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _as_target(spec: str, answer: Any) -> Target:
    if not isinstance(answer, tuple) or len(answer) not in (2, 3) or not callable(answer[0]):
        raise TargetError(
            f"{spec} returned {type(answer).__name__}, not a step with its arguments: it has to "
            f"be {_CONVENTION}."
        )
    step, args, *donated = answer
    if not isinstance(args, tuple | list):
        raise TargetError(
            f"{spec} returned `args` of type {type(args).__name__}: it has to be a tuple with one "
            "item per argument of the step."
        )
    donate = donated[0] if donated else ()
    return Target(
        name=spec,
        step=step,
        args=tuple(args),
        donate_argnums=(donate,) if isinstance(donate, int) else tuple(donate),
    )
