"""Twice: what if an applied step is differentiated itself?

Input: an applied step, and one like it that offloads nothing. Output: its results, of which any
derivative is taken of the other.
JAX 0.10 has no cotangents for copies to host memory, and what a step keeps for a derivative of its
own was not planned. So what was offloaded is kept there, with the same numbers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import Tracer

from jaxswap import _compat
from jaxswap.apply.jaxprs import jx


def run_applied(closed: Any, keep_all: Callable[[Sequence[Any]], Any], arrays: Sequence[Any]):
    """Runs an applied step.

    Args:
        closed: its `ClosedJaxpr`.
        keep_all: the `ClosedJaxpr` of the step without offloads, for these arrays; only asked
            for where the step is differentiated.
        arrays: what to run it on.
    """
    run = lambda *xs: jx.eval_jaxpr(closed.jaxpr, closed.consts, *xs)
    # A rule for derivatives knows of no variables from outside, nor of all side effects.
    is_closed = not any(isinstance(const, Tracer) for const in closed.consts)
    if not is_closed or not _compat.can_have_own_derivative(closed):
        return run(*arrays)
    run = jax.custom_jvp(run)

    @run.defjvp
    def differentiate(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        kept = keep_all(primals)
        evaluate = lambda *xs: jx.eval_jaxpr(kept.jaxpr, kept.consts, *xs)
        return jax.jvp(evaluate, primals, tangents)

    return run(*arrays)
