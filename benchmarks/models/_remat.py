"""Remat: what does a transformer block save for its backward pass?

Input: a block, how many of it, and the name of a policy. Output: what the last one gives.
The one convention: a block names the four values that are worth a copy, `NAMES`; its input is
one of them, because what enters a `jax.checkpoint` region is otherwise kept on the device.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import linen as nn

from jaxswap._errors import BadArgumentError

NAMES = ("input", "qkv", "attention", "hidden")
_MEMORIES = ("device", "pinned_host")
POLICIES = (
    "nothing_saveable",
    "everything_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "offload_dot_with_no_batch_dims",
    "offload_names",
)


def find_policy(remat: str) -> Callable[..., Any]:
    """Turns a policy's name into a `jax.checkpoint` policy."""
    if remat not in POLICIES:
        raise BadArgumentError(
            f"`remat={remat!r}` is not a policy that the models have: "
            f"use None or one of {', '.join(POLICIES)}."
        )
    policies = jax.checkpoint_policies
    if remat == "offload_dot_with_no_batch_dims":
        return policies.offload_dot_with_no_batch_dims(*_MEMORIES)
    if remat == "offload_names":
        return policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=list(NAMES),
            offload_src=_MEMORIES[0],
            offload_dst=_MEMORIES[1],
        )
    return getattr(policies, remat)


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
    if remat is not None:
        # Inside a loop there is nothing to merge the recomputation with.
        block = nn.remat(block, policy=find_policy(remat), prevent_cse=not scan)
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
