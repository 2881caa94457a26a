"""Arguments: what does `jit` make of the arguments of a call?

Input: a function, the arguments of a call and the keywords of `jax.jit`. Output: a `Call`,
the arrays apart from all that is static; or an error that names the argument `jit` cannot take.
`jit` itself is asked, with a function that does nothing: there is no second opinion here on
what is static, or on what a Python number becomes.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.core import Tracer

from jaxswap._differentiate import as_shape
from jaxswap._errors import BadArgumentError
from jaxswap.apply.jaxprs import jx

_OF_RESULTS = ("out_shardings", "donate_argnums", "donate_argnames", "keep_unused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a function, as `jit` sees it.

    Attributes:
        key: equal for calls that `jit` compiles once.
        shapes: of its arrays, flattened.
        donated: which of these `jit` may overwrite.
        rebuild: makes the arguments from arrays: `args, kwargs = rebuild(arrays)`.
    """

    key: Any
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    donated: tuple[int, ...]
    rebuild: Callable[[Sequence[Any]], tuple[tuple, dict]]


def describe_call(fn: Callable, args: tuple, kwargs: dict, jit_kwargs: Mapping[str, Any]) -> Call:
    """Describes a call from inside a trace of `jit`, where every array is a tracer."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    is_array = [isinstance(x, Tracer) for x in leaves]
    kinds = tuple(
        jax.typeof(x) if ok else (type(x), x) for ok, x in zip(is_array, leaves, strict=True)
    )
    flags = _flag_donated(fn, args, kwargs, jit_kwargs)
    arrays = [(x, flag) for ok, x, flag in zip(is_array, leaves, flags, strict=True) if ok]

    def rebuild(new: Sequence[Any]) -> tuple[tuple, dict]:
        rest = iter(new)
        merged = [next(rest) if ok else x for ok, x in zip(is_array, leaves, strict=True)]
        return jax.tree.unflatten(tree, merged)

    return Call(
        key=(tree, kinds),
        shapes=tuple(as_shape(x) for x, _ in arrays),
        donated=tuple(k for k, (_, flag) in enumerate(arrays) if flag),
        rebuild=rebuild,
    )


def trace_call(fn: Callable, args: tuple, kwargs: dict, jit_kwargs: Mapping[str, Any]) -> Call:
    """Describes a call from its arguments, arrays or shapes; `fn` is not traced."""
    found: list[Call] = []

    @functools.wraps(fn)  # `jit` finds the names of static arguments in the signature
    def probe(*inner_args: Any, **inner_kwargs: Any) -> tuple:
        found.append(describe_call(fn, inner_args, inner_kwargs, jit_kwargs))
        return ()

    settings = {k: v for k, v in jit_kwargs.items() if k not in _OF_RESULTS}
    jax.jit(probe, **settings).trace(*args, **kwargs)
    return found[0]


def explain_bad_argument(
    fn: Callable, args: tuple, kwargs: dict, jit_kwargs: Mapping[str, Any]
) -> BadArgumentError | None:
    """The error for the first argument that is no array, or None if there is no such one."""
    names = _name_parameters(fn)
    static = _find_arguments(names, len(args), jit_kwargs, "static")
    given: dict[str | int, Any] = dict(enumerate(args)) | kwargs
    for where, each in given.items():
        name = names[where] if isinstance(where, int) and where < len(names) else where
        if where in static or name in static:
            continue
        for path, leaf in jax.tree.leaves_with_path(each):
            if not (jx.valid_jaxtype(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)):
                return _explain(fn, name, jax.tree_util.keystr(path), leaf)
    return None


def _explain(fn: Callable, name: str | int, path: str, leaf: Any) -> BadArgumentError:
    is_named = isinstance(name, str)
    setting = f'static_argnames="{name}"' if is_named else f"static_argnums={name}"
    shown = f"`{name}{path}`" if is_named else f"Argument {name}{path}"
    text = repr(leaf)
    text = text if len(text) <= 60 else text[:57] + "…"
    return BadArgumentError(
        f"{shown} of `{getattr(fn, '__name__', 'step')}` is {text}, of type "
        f"`{type(leaf).__name__}`, and a jitted step takes arrays and numbers. If it is a "
        f"setting, say so with `{setting}`, or let the step close over it."
    )


def commit_donated(
    fn: Callable, args: tuple, kwargs: dict, jit_kwargs: Mapping[str, Any]
) -> tuple[tuple, dict]:
    """The arguments, with the donated arrays committed to the device that they are on.

    What a step with offloads returns is committed, and `jit` compiles anew for it: a state that
    is committed from the start is compiled for once. Nothing is copied, and nothing is done where
    `jit` might run the step on another device.
    """
    leaves = jax.tree.leaves((args, kwargs))
    if any(isinstance(x, Tracer) for x in leaves) or getattr(
        jax.config, "jax_default_device", None
    ):
        return args, kwargs
    arrays = [x for x in leaves if isinstance(x, jax.Array)]
    used = set().union(*(x.devices() for x in arrays if x.committed))

    def commit(x: Any) -> Any:
        is_loose = isinstance(x, jax.Array) and not x.committed and used <= x.devices()
        return jax.device_put(x, x.sharding) if is_loose else x

    donated = _find_arguments(_name_parameters(fn), len(args), jit_kwargs, "donate")
    # What is static stays the object that it is.
    commit_all = lambda key, each: jax.tree.map(commit, each) if key in donated else each
    return (
        tuple(commit_all(k, each) for k, each in enumerate(args)),
        {k: commit_all(k, each) for k, each in kwargs.items()},
    )


def _flag_donated(
    fn: Callable, args: tuple, kwargs: dict, jit_kwargs: Mapping[str, Any]
) -> list[bool]:
    """For each leaf of the arguments, whether `jit` may overwrite it."""
    names = _name_parameters(fn)
    donated = _find_arguments(names, len(args), jit_kwargs, "donate")
    return [
        *(k in donated for k, each in enumerate(args) for _ in jax.tree.leaves(each)),
        *(k in donated for k, each in sorted(kwargs.items()) for _ in jax.tree.leaves(each)),
    ]


def _find_arguments(
    names: Sequence[str], num_args: int, jit_kwargs: Mapping[str, Any], kind: str
) -> set[int | str]:
    """Positions and names that `static_…` or `donate_…` mean; each stands for the other."""
    numbers = jit_kwargs.get(f"{kind}_argnums")
    named = jit_kwargs.get(f"{kind}_argnames")
    numbers = {numbers} if isinstance(numbers, int) else set(numbers or ())
    named = {named} if isinstance(named, str) else set(named or ())
    numbers = {k + num_args if k < 0 else k for k in numbers}
    found = numbers | {k for k, name in enumerate(names) if name in named}
    return found | named | {names[k] for k in numbers if k < len(names)}


def _name_parameters(fn: Callable) -> list[str]:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in positional]
