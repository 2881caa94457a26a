"""Remat: what does a block save for its backward pass?

Input: a block and the name of a policy. Output: the block, recomputed under that policy.
The one convention: a block names what is worth a copy; its input is among it, because what
enters a `jax.checkpoint` region is otherwise kept on the device. Transformers have `NAMES`,
convolutional networks `CONV_NAMES`: the policies that look for dots do not see convolutions.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen as nn

from jaxswap._errors import BadArgumentError

NAMES = ("input", "qkv", "attention", "hidden")
CONV_NAMES = ("input", "conv")
_ALL_NAMES = tuple(dict.fromkeys(NAMES + CONV_NAMES))
_MEMORIES = ("device", "pinned_host")
POLICIES = (
    "nothing_saveable",
    "everything_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "offload_dot_with_no_batch_dims",
    "save_names",
    "offload_names",
)


def find_policy(remat: str) -> Callable[..., Any]:
    """Turns a policy's name into a `jax.checkpoint` policy.

    Besides `POLICIES` there is any choice by name, such as `"save:qkv+attention"`,
    `"offload:conv"` or `"save:qkv/offload:input+hidden"`; all else is recomputed.
    """
    policies = jax.checkpoint_policies
    if remat == "offload_dot_with_no_batch_dims":
        return policies.offload_dot_with_no_batch_dims(*_MEMORIES)
    if remat.endswith("_names"):
        action = remat.removesuffix("_names")
        return find_policy(f"{action}:{'+'.join(_ALL_NAMES)}")
    if ":" not in remat and remat in POLICIES:
        return getattr(policies, remat)
    chosen = _parse_names(remat)
    return policies.save_and_offload_only_these_names(
        names_which_can_be_saved=chosen["save"],
        names_which_can_be_offloaded=chosen["offload"],
        offload_src=_MEMORIES[0],
        offload_dst=_MEMORIES[1],
    )


def _parse_names(remat: str) -> dict[str, list[str]]:
    """`"save:qkv/offload:hidden"` as names by action."""
    chosen: dict[str, list[str]] = {"save": [], "offload": []}
    for part in remat.split("/"):
        action, _, names = part.partition(":")
        if action not in chosen or not set(names.split("+")) <= set(_ALL_NAMES):
            raise BadArgumentError(
                f"`remat={remat!r}` is not a policy that the models have: use None, one of "
                f"{', '.join(POLICIES)}, or names to save and to offload, such as "
                f'"save:qkv/offload:input+hidden", out of {", ".join(_ALL_NAMES)}.'
            )
        chosen[action] += names.split("+")
    return chosen


def recompute_block(block: Any, remat: str | None, *, in_loop: bool = False) -> Any:
    """A block as it is for None, else one whose values are recomputed under the policy.

    The class that Flax makes has another name: name its instances as they would be without.

    Args:
        block: a module class, or a function whose first argument is the module it is in.
        remat: None, or the name of a policy.
        in_loop: inside a loop there is nothing to merge the recomputation with.
    """
    if remat is None:
        return block
    return nn.remat(block, policy=find_policy(remat), prevent_cse=not in_loop)


def stack_blocks(
    block: type[nn.Module],
    x: jax.Array,
    fields: Mapping[str, Any],
    *,
    layers: int,
    scan: bool,
    remat: str | None,
) -> jax.Array:
    """Runs `layers` blocks one after the other, inside a compact module.

    The parameters are called the same with and without `remat`.

    Args:
        block: the module; `block(**fields)(x)` is the next `x`.
        x: the first block's input.
        fields: of every block.
        layers: how many blocks.
        scan: one `nn.scan` over stacked parameters instead of a Python loop.
        remat: None, or the policy that each block is recomputed under.
    """
    block = recompute_block(block, remat, in_loop=scan)
    if not scan:
        for layer in range(layers):
            x = block(**fields, name=f"Block_{layer}")(x)
        return x
    over_layers = nn.scan(
        lambda module, carry, _: (module(carry), None),
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=layers,
    )
    # The name is part of the program: arguments are sorted by it, and XLA's schedule follows
    # their order (GPT-2 small under `nothing_saveable` needs 5 % less as "Blocks").
    return over_layers(block(**fields, name="Layers"), x, None)[0]
