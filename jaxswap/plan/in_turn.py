"""In turn: which of many changes can be made together without harm?

Input: an array of choices, changes to it, and a test of many such arrays at once. Output: the
array with the changes that do no harm, one after another.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from jaxswap.model.timeline import Ints

Change = tuple[tuple[int, ...], int]
"""A place in the array, and what is to stand there."""


def change_in_turn(
    now: Ints,
    changes: Sequence[Change],
    does_harm: Callable[[Ints], NDArray[np.bool_]],
    *,
    max_harmful: int,
) -> Ints:
    """Makes changes in their order, and leaves out those that do harm on top of the others.

    All that are left are tried at once, each on top of those before it: one test per change
    that is left out, not one per change.

    Args:
        now: where to start; it does no harm itself.
        changes: what to change, in the order of importance.
        does_harm: of each of several arrays, stacked, whether it does.
        max_harmful: how many changes to leave out before giving up on the rest.

    Example:
        >>> above_2 = lambda rows: rows.sum(axis=1) > 2
        >>> ones = [((k,), 1) for k in range(3)]
        >>> change_in_turn(np.array([0, 0, 0, 1]), ones, above_2, max_harmful=2)
        array([1, 0, 0, 1])
    """
    for _ in range(max_harmful):
        if not changes:
            break
        rows = np.repeat(now[None], len(changes), axis=0)
        for row, (place, value) in enumerate(changes):
            rows[(slice(row, None), *place)] = value
        harmful = does_harm(rows)
        count = int(np.argmax(harmful)) if harmful.any() else len(changes)
        now = rows[count - 1] if count else now
        changes = changes[count + 1 :]
    return now
