"""Repeats: which candidates are the same value of equal blocks?

Input: a sequence of keys, one per candidate, equal where two candidates are alike. Output: a
number per candidate; equal numbers are the same place of blocks that follow one another.
A plan for one block is then a plan for all of them, and the search has less to decide.
"""

from collections.abc import Hashable, Sequence


def number_repeats(keys: Sequence[Hashable]) -> list[int]:
    """Numbers candidates so that equal places of repeated blocks share a number.

    Goes through the sequence once; where a block starts that comes again right behind
    itself, takes the one whose repetitions cover most (of several, the shortest).

    Example:
        >>> number_repeats(["in", "a", "b", "a", "b", "a", "b", "out"])
        [0, 1, 2, 1, 2, 1, 2, 3]
    """
    ids = {key: k for k, key in enumerate(dict.fromkeys(keys))}
    row = [ids[key] for key in keys]
    numbers: list[int] = []
    start, fresh = 0, 0
    while start < len(row):
        period, times = _find_block(row, start)
        numbers += [fresh + k for k in range(period)] * times
        fresh += period
        start += period * times
    return numbers


def _find_block(row: Sequence[int], start: int) -> tuple[int, int]:
    """The length of the block that starts here, and how often it stands in a row."""
    best, cover = (1, 1), 1
    for period in range(1, (len(row) - start) // 2 + 1):
        if row[start] != row[start + period]:
            continue
        block = row[start : start + period]
        times = 1
        while row[start + times * period : start + (times + 1) * period] == block:
            times += 1
        if times > 1 and times * period > cover:
            best, cover = (period, times), times * period
    return best
