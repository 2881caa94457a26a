"""Check: does an applied step do what was decided, and compute what the original computes?

Input: a step, its decisions, its arguments. Output: nothing, or an error that says which
value or which result is wrong.
`check_applied` looks at the program, `self_check` runs it. XLA versions have had offloads
that silently did nothing, and some with wrong gradients: neither is taken on trust.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxswap import _compat
from jaxswap._errors import JaxswapError
from jaxswap.apply import jaxprs
from jaxswap.apply.decision import Decision
from jaxswap.apply.jaxprs import jx

if TYPE_CHECKING:
    from jaxswap.apply.step import AppliedStep


class CheckError(JaxswapError, AssertionError):
    """An applied step is not what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheck:
    """How far an applied step's results are from the original's.

    Attributes:
        is_identical: whether every bit of every result is the same.
        max_relative_error: the largest difference, relative to the largest number in the
            same array.
        worst_result: where in the results that is, such as `"[0]['w']"`.
    """

    is_identical: bool
    max_relative_error: float
    worst_result: str = ""


def count_offloads(closed: Any) -> int:
    """Counts the equations that copy to host memory, in loop bodies too."""
    total = 0
    for eqn in closed.jaxpr.eqns if isinstance(closed, jx.ClosedJaxpr) else closed.eqns:
        is_copy = eqn.primitive is jx.device_put_p
        total += is_copy and any(_compat.is_on_host(v.aval) for v in eqn.outvars)
        total += sum(count_offloads(body) for body in jaxprs.bodies(eqn))
    return total


def check_applied(step: AppliedStep, decisions: Mapping[str, Decision], original: Any) -> None:
    """Checks a rewritten step against its decisions and the original; runs nothing.

    Args:
        step: from `rewrite_step`.
        decisions: what it was made with.
        original: the `ClosedJaxpr` of the step as written, over the same flat arguments.

    Raises:
        CheckError: an offload is missing, or the types of the arguments or results differ.
    """
    _check_copies(step, count_offloads(step.closed), count_offloads(original))
    extra = set(step.offloaded) - {v.name for v in step.values}
    if extra:
        raise CheckError(f"{sorted(extra)} are offloaded, but are not values of the step.")
    for verb, wanted, got in (
        ("takes", original.in_avals, step.closed.in_avals),
        ("returns", original.out_avals, step.closed.out_avals),
    ):
        wanted, got = ([(a.shape, str(a.dtype)) for a in avals] for avals in (wanted, got))
        if wanted != got:
            raise CheckError(
                f"The step {verb} {wanted}, but as applied {got}. This is a bug in jaxswap; "
                "please report the step."
            )
    lost = [n for n in step.offloaded if n in decisions and decisions[n].action != "offload"]
    if lost:
        raise CheckError(f"{lost} are offloaded, but were decided otherwise.")
    planned = {n for n, d in decisions.items() if d.action == "offload"}
    silent = planned - set(step.offloaded) - set(step.demoted)
    if silent:
        raise CheckError(
            f"{sorted(silent)} were to be offloaded, are not, and no reason is given. This is a "
            "bug in jaxswap; please report the step."
        )


def _check_copies(step: AppliedStep, found: int, own: int) -> None:
    """Every offload is one copy to the host; the step as written may have its own."""
    wanted = len(step.offloaded)
    # What the user's own policies offload may be treated otherwise, and is not counted.
    if found < wanted or (own == 0 and found > wanted):
        raise CheckError(
            f"{wanted} values were to be offloaded, but the program has {found} "
            "copies to host memory. This is a bug in jaxswap; please report the step."
        )


def self_check(
    fn: Callable, applied: Callable, *args: Any, rtol: float = 1e-6, exact: bool = False
) -> SelfCheck:
    """Runs a step both ways on this machine and compares every result.

    Args:
        fn: the step as written.
        applied: the step with its decisions.
        *args: arrays to run both on.
        rtol: the largest error allowed, relative to the largest number in the same array.
        exact: whether every bit has to be the same: so it should be where f32 values are
            only kept or offloaded.

    Raises:
        CheckError: the results differ by more than that.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxswap.apply import apply_decisions
        >>> step = jax.grad(lambda w: jnp.sum(jnp.tanh(w @ w)))
        >>> self_check(step, apply_decisions(step, {}), jnp.eye(2)).max_relative_error <= 1e-6
        True
    """
    expected = jax.jit(lambda *xs: fn(*xs))(*args)
    found = jax.jit(lambda *xs: applied(*xs))(*args)
    return compare_results(expected, found, rtol=rtol, exact=exact)


def compare_results(expected: Any, found: Any, *, rtol: float, exact: bool = False) -> SelfCheck:
    """Compares the results of a step as written and as applied; see `self_check`."""
    leaves = jax.tree.leaves_with_path(expected)
    pairs = [
        (_as_numpy(a), _as_numpy(b))
        for (_, a), b in zip(leaves, jax.tree.leaves(found), strict=True)
    ]
    if not pairs:
        return SelfCheck(is_identical=True, max_relative_error=0.0)
    errors = [_relative_error(a, b) for a, b in pairs]
    worst = int(np.argmax(np.nan_to_num(errors, nan=np.inf)))
    result = SelfCheck(
        is_identical=all(a.tobytes() == b.tobytes() for a, b in pairs),
        max_relative_error=errors[worst],
        worst_result=jax.tree_util.keystr(leaves[worst][0]),
    )
    if (exact and not result.is_identical) or not result.max_relative_error <= rtol:
        allowed = "every bit was to be the same" if exact else f"{rtol:.1e} was allowed"
        where = f"result{result.worst_result}"
        raise CheckError(
            f"The applied step is off by {result.max_relative_error:.1e} in `{where}` (relative "
            f"to its largest number), where {allowed}. If its offloads are in loops, "
            "this may be a fault of this version of XLA: keep or recompute there."
        )
    return result


def _as_numpy(x: Any) -> np.ndarray:
    is_key = jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def _relative_error(a: np.ndarray, b: np.ndarray) -> float:
    if a.size == 0 or a.dtype == jax.dtypes.float0:
        return 0.0
    kind = np.complex128 if np.iscomplexobj(a) else np.float64
    x, y = a.astype(kind), b.astype(kind)
    is_same = (x == y) | (np.isnan(x) & np.isnan(y))
    finite = np.abs(x[np.isfinite(x)])
    scale = np.max(finite, initial=0.0) or 1.0
    with np.errstate(invalid="ignore"):
        return float(np.max(np.where(is_same, 0.0, np.abs(x - y))) / scale)
