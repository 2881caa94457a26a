"""Decisions: what may be done with a value, and what is there to decide about?

Input: nothing. Output: the vocabulary between the planner, which decides, and `apply`, which
carries it out. No JAX here: planners are plain Python.

A value is known by its *name*, a path given while the step is traced: `"0/37"` is output 0 of
equation 37 of differentiated function 0, after inlining calls; `"0/37:1"` its second output;
`"0/in2"` the third input of that function; `"0/12.body/5"` a value of the body of the loop at
equation 12, and `"0/12.body/in0"` the carry that body starts from.
"""

from dataclasses import dataclass
from typing import Literal

from jaxswap._errors import BadArgumentError

Action = Literal["keep", "offload", "recompute"]
ACTIONS: tuple[Action, ...] = ("keep", "offload", "recompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is done with one value between the forward and the backward pass.

    Attributes:
        action: `"keep"` it on the device, `"offload"` it to host memory and reload it, or
            forget it and `"recompute"` it.
        window_ops: how many heavy ops the copy to the host may take before its bytes must
            be gone. At 1 the next heavy op waits for it.
        reload_ahead_ops: how many heavy ops before its first use in the backward pass the
            reload starts. At 0 it starts when all else that the use needs is there. Where
            that is more than its iteration of a loop has, the iteration before reloads it.

    Example:
        >>> Decision(action="offload", window_ops=3).window_ops
        3
    """

    action: Action
    window_ops: int = 1
    reload_ahead_ops: int = 0

    def __post_init__(self):
        if self.action not in ACTIONS:
            raise BadArgumentError(
                f"`action={self.action!r}` is not something that can be done with a value: "
                f"write one of {', '.join(map(repr, ACTIONS))}."
            )
        if self.window_ops < 1 or self.reload_ahead_ops < 0:
            raise BadArgumentError(
                f"`window_ops={self.window_ops}`, `reload_ahead_ops={self.reload_ahead_ops}`: "
                "a copy takes at least one op and a reload cannot start after its use; "
                "write `window_ops >= 1` and `reload_ahead_ops >= 0`."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedValue:
    """One value of a differentiated function, as the planner sees it.

    Attributes:
        name: its path, the key of the decisions.
        shape: of the array; inside a loop, of one iteration's.
        dtype: by name, such as `"bfloat16"`.
        size_bytes: of one such array.
        primitive: what makes it, such as `"dot_general"`; `"input"` for inputs.
        source: file and line of the user's code, or an empty string.
        module_path: JAX's name stack, such as `"GPT/Block_0/Dense_1"`.
        user_name: the name given with `jax.ad_checkpoint.checkpoint_name`, if any.
        scope: the loop bodies it is in, outermost first, by path: `("0/12.body",)`.
        length: how many of it there are: the product of the loops' trip counts.
        actions: what may be decided about it. Outputs of loops and of ops with side effects
            cannot be recomputed.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    primitive: str
    source: str
    module_path: str
    user_name: str | None
    scope: tuple[str, ...]
    length: int
    actions: tuple[Action, ...]
