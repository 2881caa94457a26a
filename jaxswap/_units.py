"""Units: read and write byte counts and times the way people do.

`"10GiB"` is binary (2**30), `"10GB"` is decimal (10**9); numbers are bytes.
"""

import re

from jaxswap._errors import BadArgumentError

_UNIT_BYTES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str, *, name: str = "size") -> int:
    """Turns `"10GiB"`, `"1.5 GB"` or `"2048"` into a number of bytes.

    Args:
        text: a number with an optional unit: B, KB, MB, GB, TB, or KiB, MiB, GiB, TiB.
        name: how the caller calls the argument, for the error message.

    Example:
        >>> parse_bytes("1.5 KiB")
        1536
    """
    match = _QUANTITY.fullmatch(text)
    unit_bytes = _UNIT_BYTES.get(match[2].upper()) if match else None
    if match is None or unit_bytes is None:
        raise BadArgumentError(
            f"`{name}={text!r}` is not a size: write a number and a unit, such as "
            '"10GiB" (2**30 bytes each), "10GB" (10**9) or "512MiB".'
        )
    return int(float(match[1]) * unit_bytes)


def format_bytes(size_bytes: float) -> str:
    """Writes a byte count in the largest binary unit that keeps it above one.

    Example:
        >>> format_bytes(1536)
        '1.50 KiB'
    """
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size_bytes) >= scale:
            return f"{size_bytes / scale:.2f} {unit}"
    return f"{size_bytes:.0f} B"


def format_seconds(seconds: float) -> str:
    """Writes a duration with three significant digits and a fitting unit.

    Example:
        >>> format_seconds(0.0569)
        '56.9 ms'
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.2g} µs" if seconds else "0 s"
