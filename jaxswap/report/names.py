"""Names: what are ops, values and blocks called in a report?

Input: XLA's op names, module paths and source paths. Output: what people read.
A source keeps the last two parts of its path: enough to find it, and no one's home folder.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from jaxswap.report.rows import Holder, Phase

_WRAPPER = re.compile(
    r"\b(?:jvp|transpose|vmap|jit|pjit|checkpoint|rematted_computation)\(([^()]*)\)"
)
_JITTED = re.compile(r"^jit\([^()]*\)/")
_NUMBER = re.compile(r"\d+")


@lru_cache(maxsize=2**16)
def shorten_source(source: str) -> str:
    """`file.py:line` with at most one folder in front.

    Example:
        >>> shorten_source("/home/ada/project/models/gpt.py:41")
        'models/gpt.py:41'
    """
    return "/".join(source.replace("\\", "/").split("/")[-2:])


@lru_cache(maxsize=2**16)
def shorten_op_name(op_name: str) -> str:
    """A module path from XLA's op name, without what JAX's transformations add.

    Example:
        >>> shorten_op_name("jit(step)/transpose(jvp(GPT))/Block_3/Dense_0/dot_general")
        'GPT/Block_3/Dense_0/dot_general'
    """
    text, found = _JITTED.sub("", op_name), 1
    while found:
        text, found = _WRAPPER.subn(r"\1", text)
    return "/".join(part for part in text.split("/") if part)


def phase_of(op_name: str) -> Phase:
    """Which pass an instruction belongs to, by its op name."""
    if "transpose(" in op_name:
        return "backward"
    return "forward" if "jvp(" in op_name else "update"


@lru_cache(maxsize=2**16)
def group_of(label: str) -> tuple[str, str]:
    """A label with `*` for the numbers of repeated blocks, and the part up to the block.

    A number in the last part tells siblings of one block apart, unless it is the only number
    there is.

    Example:
        >>> group_of("GPT/Block_3/Dense_0")
        ('GPT/Block_*/Dense_0', 'GPT/Block_*')
        >>> group_of("GPT/Block_3")
        ('GPT/Block_*', 'GPT/Block_*')
    """
    parts = label.split("/")
    numbered = [at for at, part in enumerate(parts) if _NUMBER.search(part)]
    if numbered and numbered[-1] == len(parts) - 1 and len(numbered) > 1:
        numbered.pop()
    for at in numbered:
        parts[at] = _NUMBER.sub("*", parts[at])
    block = parts[: numbered[-1] + 1] if numbered else parts[:-1]
    return "/".join(parts), "/".join(block)


def group_holders(holders: Iterable[Holder]) -> list[tuple[int, str, str, int]]:
    """What repeated blocks have on the device in common, the most bytes first.

    Returns:
        How many, label, source and bytes together of each group.
    """
    groups: dict[tuple[str, str], list[Holder]] = {}
    for holder in holders:
        groups.setdefault((group_of(holder.label)[0], holder.source), []).append(holder)
    rows = [
        (
            len(members),
            label if len({m.label for m in members}) > 1 else members[0].label,
            source,
            sum(m.size_bytes for m in members),
        )
        for (label, source), members in groups.items()
    ]
    return sorted(rows, key=lambda row: -row[3])


def type_of(dtype: str, shape: Sequence[int]) -> str:
    """A type the way XLA writes it: `bfloat16[8,1024]`."""
    return f"{dtype}[{','.join(map(str, shape))}]" if dtype else ""


def where_of(label: str, source: str) -> str:
    """A place for people: `GPT/Block_3 (models/gpt.py:41)`, or what is known of it."""
    if label and source:
        return f"{label} ({source})"
    return label or source
