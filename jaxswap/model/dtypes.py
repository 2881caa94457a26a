"""Dtype classes: which units of a device compute on a dtype?

Input: a dtype, or its name in NumPy (`"bfloat16"`) or HLO (`"bf16"`). Output: a class name.
Classes are named as HLO names their usual member.
"""

import re

from jaxswap._errors import BadArgumentError

DTYPE_CLASSES = ("f64", "f32", "tf32", "f16", "bf16", "f8", "int8")
"""The classes a device has a peak rate for."""

# 4-bit floats and integers run on the 8-bit units, or faster: their class is a safe one.
_RULES = (
    (re.compile(r"f64|float64|c128|complex128"), "f64"),
    (re.compile(r"f32|float32|c64|complex64"), "f32"),
    (re.compile(r"tf32"), "tf32"),
    (re.compile(r"f16|float16"), "f16"),
    (re.compile(r"bf16|bfloat16"), "bf16"),
    (re.compile(r"(f|float)[48](_?e\w+)?"), "f8"),
    (re.compile(r"([su]|u?int)[248]"), "int8"),
    (re.compile(r"([su]|u?int)(16|32|64)|pred|bool"), "int"),
)


def classify_dtype(dtype: object) -> str:
    """The class of a dtype: one of `DTYPE_CLASSES`, or `"int"` for the wider integers.

    Args:
        dtype: a NumPy or JAX dtype or scalar type, or its name in NumPy or HLO.

    Example:
        >>> classify_dtype("float8_e4m3fn"), classify_dtype("s32")
        ('f8', 'int')
    """
    name = dtype if isinstance(dtype, str) else _name_of(dtype)
    for pattern, kind in _RULES:
        if pattern.fullmatch(name):
            return kind
    raise BadArgumentError(
        f"`dtype={dtype!r}` has no known arithmetic: give a dtype, or its name in NumPy or HLO, "
        'such as "float32" or "bf16".'
    )


def _name_of(dtype: object) -> str:
    for attribute in ("name", "__name__"):
        name = getattr(dtype, attribute, None)
        if isinstance(name, str):
            return name
    return str(dtype)
