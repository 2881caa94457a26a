"""Make: a report from a step.

Input: a step, its arguments and a plan for it. Output: a `Report`.
The step is traced and, if asked, compiled twice: as written and as planned. What this process
has compiled a moment ago is not compiled again.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jaxswap.model.device import Device, Progress
from jaxswap.model.presets import find_device
from jaxswap.plan.plan import Plan
from jaxswap.program.trace import trace_program
from jaxswap.report.front import find_front
from jaxswap.report.report import Report
from jaxswap.report.rows import BatchRow, FrontPoint
from jaxswap.verify.verify import verify as verify_step

NUM_BUDGETS = 8


def make_report(
    fn: Callable,
    *args: Any,
    plan: Plan,
    device: Device | str | None = None,
    donate_argnums: int | tuple[int, ...] = (),
    verify: bool = True,
    num_budgets: int = NUM_BUDGETS,
    fronts: Sequence[FrontPoint] = (),
    batches: Sequence[BatchRow] | None = None,
    title: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Builds the report of a step and its plan.

    Args:
        fn: the step that the plan was made for.
        *args: its arguments, arrays or `jax.ShapeDtypeStruct`s. Nothing runs.
        plan: what was decided.
        device: what it was planned for; the plan's own by default.
        donate_argnums: as in `jax.jit`.
        verify: compile the step as written and as planned, for the compiler's bytes and the
            replayed timeline. Without, every figure is forecast.
        num_budgets: how many other budgets to plan for, quickly, on the front of bytes against
            step time. The step as written, this plan and JAX's policies are there anyway.
        fronts: more points of it, such as policies on blocks that were compiled.
        batches: throughput against batch size, if that is known.
        title: what the step is called; the function's name by default.
        progress: called as `progress(done, total, label)`.

    Example:
        >>> import jax, jax.numpy as jnp, jaxswap
        >>> step = jax.grad(lambda w: jnp.sum(jnp.tanh(w @ w)))
        >>> w = jax.ShapeDtypeStruct((256, 256), jnp.float32)
        >>> plan = jaxswap.plan(step, w, budget="1GiB", device="t4", confirm=False)
        >>> make_report(step, w, plan=plan, verify=False).fits
        True
    """
    target = find_device(plan.device if device is None else device)
    donated = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    tell = progress or (lambda done, total, label: None)
    tell(0, 4, "tracing")
    program = trace_program(fn, *args, donate_argnums=donated, device=target)
    before = after = None
    if verify:
        tell(1, 4, "compiling the step as written")
        before = verify_step(fn, *args, device=target, donate_argnums=donated)
        tell(2, 4, "compiling the planned step")
        after = before if plan.is_empty else verify_step(
            fn, *args, device=target, plan=plan, donate_argnums=donated
        )  # fmt: skip
    tell(3, 4, "planning for other budgets")
    front = find_front(program, target, plan, num_budgets=num_budgets)
    tell(4, 4, "done")
    return Report.of(
        program=program,
        plan=plan,
        before=before,
        after=after,
        fronts=(*front, *fronts),
        batches=batches,
        device=target,
        title=title or getattr(fn, "__name__", "training step"),
    )
