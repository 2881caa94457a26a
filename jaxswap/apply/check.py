"""Check: does an applied step do what was decided, and compute what the original computes?

Input: a step, its decisions, its arguments. Output: nothing, or an error that says which
value or which result is wrong.
`check_applied` looks at the program, `self_check` runs it. XLA versions have had offloads
that silently did nothing, and some with wrong gradients: neither is taken on trust.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxswap import _compat
from jaxswap._errors import JaxswapError
from jaxswap.apply import jaxprs
from jaxswap.apply.decision import Decision
from jaxswap.apply.jaxprs import jx
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
    """

    is_identical: bool
    max_relative_error: float


def count_offloads(closed: Any) -> int:
    """Counts the equations that copy to host memory, in loop bodies too."""
    total = 0
    for eqn in closed.jaxpr.eqns if isinstance(closed, jx.ClosedJaxpr) else closed.eqns:
        is_copy = eqn.primitive is jx.device_put_p
        total += is_copy and any(_compat.is_on_host(v.aval) for v in eqn.outvars)
        total += sum(count_offloads(body) for body in jaxprs.bodies(eqn))
    return total


def check_applied(step: AppliedStep, decisions: Mapping[str, Decision], original: Any) -> None:
    """Checks a rewritten step against its decisions and the original.

    Args:
        step: from `rewrite_step`.
        decisions: what it was made with.
        original: the `ClosedJaxpr` of the step as written, over the same flat arguments.

    Raises:
        CheckError: an offload is missing, or the types of the results differ.
    """
    found = count_offloads(step.closed)
    if found != len(step.offloaded):
        raise CheckError(
            f"{len(step.offloaded)} values were to be offloaded, but the program has {found} "
            "copies to host memory. This is a bug in jaxswap; please report the step."
        )
    extra = set(step.offloaded) - {v.name for v in step.values}
    if extra:
        raise CheckError(f"{sorted(extra)} are offloaded, but are not values of the step.")
    wanted, got = (
        [(a.shape, str(a.dtype)) for a in closed.out_avals] for closed in (original, step.closed)
    )
    if wanted != got:
        raise CheckError(
            f"The step returns {wanted}, but as applied {got}. This is a bug in jaxswap; "
            "please report the step."
        )
    lost = [n for n in step.offloaded if n in decisions and decisions[n].action != "offload"]
    if lost:
        raise CheckError(f"{lost} are offloaded, but were decided otherwise.")


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
    expected = jax.tree.leaves(jax.jit(lambda *xs: fn(*xs))(*args))
    found = jax.tree.leaves(jax.jit(lambda *xs: applied(*xs))(*args))
    pairs = list(zip(map(_as_numpy, expected), map(_as_numpy, found), strict=True))
    result = SelfCheck(
        is_identical=all(a.tobytes() == b.tobytes() for a, b in pairs),
        max_relative_error=max((_relative_error(a, b) for a, b in pairs), default=0.0),
    )
    if (exact and not result.is_identical) or not result.max_relative_error <= rtol:
        allowed = "every bit was to be the same" if exact else f"{rtol:.1e} was allowed"
        raise CheckError(
            f"The applied step is off by {result.max_relative_error:.1e} (relative to the "
            f"largest number of a result), where {allowed}. If its offloads are in loops, "
            "this may be a fault of this version of XLA: keep or recompute there."
        )
    return result


def _as_numpy(x: Any) -> np.ndarray:
    is_key = jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def _relative_error(a: np.ndarray, b: np.ndarray) -> float:
    if a.size == 0 or a.dtype == jax.dtypes.float0:
        return 0.0
    x, y = a.astype(np.float64), b.astype(np.float64)
    scale = np.max(np.abs(x)) or 1.0
    return float(np.max(np.abs(x - y)) / scale)
