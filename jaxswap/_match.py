"""Match: was this plan made for this step?

Input: a plan and the step it is applied to. Output: nothing, or an error that names the first
value that differs.
The cheap comparison comes first: names, shapes and dtypes as the step was traced. A planned
value may go by the name of another that it is an image of (a cast, say), so that a difference
is only a doubt; the step's own candidates, which take a second trace, settle it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxswap._errors import BadArgumentError
from jaxswap.apply.decision import NamedValue
from jaxswap.model.presets import devices
from jaxswap.plan.plan import Plan
from jaxswap.program.trace import trace_program

Kinds = Mapping[str, tuple[tuple[int, ...], str]]


def check_match(
    plan: Plan, values: Sequence[NamedValue], fn: Callable, args: Sequence[Any]
) -> None:
    """Checks a plan's values against those of a step.

    Args:
        plan: what is to be applied.
        values: the step's values, as `name_values` lists them.
        fn: the step.
        args: its arguments; nothing is run.

    Raises:
        BadArgumentError: the plan was made for another step, or for other shapes.
    """
    check_names(plan, values)
    kinds = {v.name: (v.shape, v.dtype) for v in values}
    doubtful = _find_different(plan, kinds)
    # What XLA fuses, and so which values there are to decide about, depends on the device. Of one
    # that is not known by name the doubt remains; any decision leaves the gradients right.
    device = devices().get(plan.device)
    if not doubtful or device is None:
        return
    program = trace_program(fn, *args, device=device)
    candidates = [program.values[c.value] for c in program.candidates]
    kinds |= {v.name: (v.shape, v.dtype) for v in candidates}
    different = [name for name in _find_different(plan, kinds) if name in doubtful]
    if not different:
        return
    name = different[0]
    planned = plan.values[name]
    where = f" ({planned.label or planned.source})" if planned.label or planned.source else ""
    raise BadArgumentError(
        f"The plan decides about {name!r}{where} as {_format(planned.shape, planned.dtype)}, and "
        f"in this step it is {_format(*kinds[name])}: the plan was made for other arguments or "
        f"another step (fingerprint {plan.fingerprint or 'unknown'}, here {program.fingerprint}). "
        "Plan this step, with these shapes."
    )


def check_names(plan: Plan, values: Sequence[NamedValue]) -> None:
    """Checks that a step has every value that a plan decides about."""
    known = {v.name for v in values}
    unknown = [name for name in plan.decisions if name not in known]
    if unknown:
        raise BadArgumentError(
            f"{len(unknown)} of the plan's {len(plan.decisions)} decisions are about values that "
            f"this step does not have, such as {unknown[0]!r}: the plan was made for another "
            f"step (fingerprint {plan.fingerprint or 'unknown'}). Plan this step, with these "
            "shapes."
        )


def _find_different(plan: Plan, kinds: Kinds) -> list[str]:
    """The planned values that are of another kind; those made by hand say nothing of theirs."""
    return [
        name
        for name, planned in plan.values.items()
        if planned.dtype and name in kinds and kinds[name] != (tuple(planned.shape), planned.dtype)
    ]


def _format(shape: Sequence[int], dtype: str) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"
