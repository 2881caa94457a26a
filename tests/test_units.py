"""Units: what people write is read, and what is written is read back."""

import math

import hypothesis as hp
import hypothesis.strategies as hps
import pytest

from jaxswap._errors import BadArgumentError, JaxswapError
from jaxswap._units import format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("2048", 2048),
        ("2048B", 2048),
        ("10GB", 10 * 10**9),
        ("10GiB", 10 * 2**30),
        ("10gib", 10 * 2**30),
        (" 1.5 KiB ", 1536),
        (".5MB", 500_000),
        ("1e3kb", 10**6),
        ("2.5e-1 TiB", 2**38),
        ("3TB", 3 * 10**12),
        ("512MiB", 2**29),
    ],
)
def test_sizes_are_read(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "10 GiBs", "ten", "1..5GB", "-1GB", "10Gb/s", "∞"])
def test_other_text_is_refused(text):
    with pytest.raises(BadArgumentError) as error:
        parse_bytes(text, name="budget")
    assert str(error.value) == (
        f"`budget={text!r}` is not a size: write a number and a unit, such as "
        '"10GiB" (2**30 bytes each), "10GB" (10**9) or "512MiB".'
    )
    assert isinstance(error.value, JaxswapError)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 * 2**30, "10.00 GiB"),
        (2**50, "1024.00 TiB"),
        (-(2**20), "-1.00 MiB"),
    ],
)
def test_sizes_are_written(size, expected):
    assert format_bytes(size) == expected


@hp.given(hps.integers(0, 2**60))
def test_a_written_size_is_read_back_to_its_last_digit(size):
    written = format_bytes(size)
    unit = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[written.split()[1]]
    assert abs(parse_bytes(written) - size) <= 0.005 * unit + 1


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, "0 s"),
        (1.0, "1 s"),
        (75.25, "75.2 s"),
        (0.0569, "56.9 ms"),
        (0.001, "1 ms"),
        (2.5e-6, "2.5 µs"),
        (4.2e-7, "0.42 µs"),
        (-0.25, "-250 ms"),
    ],
)
def test_times_are_written(seconds, expected):
    assert format_seconds(seconds) == expected


@hp.given(hps.floats(1e-6, 999.0))
def test_a_written_time_has_three_digits(seconds):
    number, unit = format_seconds(seconds).split()
    scale = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}[unit]
    assert math.isclose(float(number) * scale, seconds, rel_tol=5.01e-3)
