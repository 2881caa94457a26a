"""Transfers: a start and a rate per direction, fitted to published sweeps."""

import re

import hypothesis as hp
import hypothesis.strategies as hps
import numpy as np
import pytest

from jaxswap._errors import BadArgumentError
from jaxswap.model.presets import devices, read_data
from jaxswap.model.transfer import Link, fit_start_and_rate, transfer_s

DIRECTIONS = {"to_device": "H2D", "to_host": "D2H"}
PRESETS = list(devices())
# bandwidthTest's D2H rate falls from 25.4 to 22.4 GB/s between 4 MiB and 256 MiB where another
# tool sees 26.1 (X02), and the source calls its 32 MB figure (X04) an artefact of the tool.
ARTEFACT = "X23"


def sweep(direction):
    """The published size sweep of one direction: row ids, sizes in bytes, times in seconds."""
    rows = {
        key: row
        for key, row in read_data()["transfer_rows"].items()
        if "size sweep" in row["mode"] and row["direction"] == DIRECTIONS[direction]
    }
    sizes = [int(r["size"].split()[0]) * {"KiB": 2**10, "MiB": 2**20}[r["size"].split()[1]]
             for r in rows.values()]  # fmt: skip
    times = [size / (1e9 * r["gbps"]) for size, r in zip(sizes, rows.values(), strict=True)]
    return list(rows), np.array(sizes), np.array(times)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_sweep_is_the_published_one(direction):
    ids, sizes, _ = sweep(direction)
    assert ids == [f"X{n}" for n in range(10 if direction == "to_device" else 11, 24, 2)]
    assert list(sizes) == [4096, 16384, 65536, 262144, 2**20, 2**22, 2**28]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_a100_reproduces_the_published_sweep(direction):
    ids, sizes, times = sweep(direction)
    error = transfer_s(devices()["a100-40gb"], sizes, direction) / times - 1
    for key, each in zip(ids, error, strict=True):
        assert abs(each) < (0.15 if key == ARTEFACT else 0.10), key


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_latencies_are_those_of_the_fit(direction):
    ids, sizes, times = sweep(direction)
    chosen = [key != ARTEFACT for key in ids]
    latency_s, bandwidth = fit_start_and_rate(sizes[chosen], times[chosen])
    assert 25e9 < bandwidth < 27e9
    for preset in devices().values():
        assert preset.link(direction).latency_s == pytest.approx(latency_s, rel=2e-3)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("both", [False, True])
def test_larger_copies_take_longer(name, direction, both):
    times = np.asarray(transfer_s(devices()[name], np.arange(0, 2**20, 977), direction, both))
    assert times[0] == 0.0
    assert np.all(np.diff(times) > 0)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_copy_is_never_faster_in_company(name, direction):
    sizes = np.logspace(0, 10, 50)
    device = devices()[name]
    assert np.all(
        transfer_s(device, sizes, direction, both=True) >= transfer_s(device, sizes, direction)
    )


@hp.given(
    sizes=hps.lists(hps.integers(0, 2**40), max_size=20),
    latency_s=hps.floats(0, 1e-3),
    rate=hps.floats(1e6, 1e12),
    fraction=hps.floats(0.05, 1.0),
    both=hps.booleans(),
)
def test_an_array_of_sizes_is_one_copy_each(sizes, latency_s, rate, fraction, both):
    link = Link(latency_s=latency_s, bandwidth_bytes_per_s=rate, both_fraction=fraction)
    expected = [
        0.0 if size == 0 else latency_s + size / (rate * (fraction if both else 1.0))
        for size in sizes
    ]
    np.testing.assert_allclose(link.seconds(np.array(sizes), both=both), expected, rtol=1e-12)
    for size, each in zip(sizes, expected, strict=True):
        alone = link.seconds(size, both=both)
        assert type(alone) is float
        assert alone == pytest.approx(each, rel=1e-12)


def test_shapes_are_kept():
    sizes = np.full((2, 3, 4), 2**20)
    assert np.shape(transfer_s(devices()["t4"], sizes, "to_host")) == (2, 3, 4)


@hp.given(
    start_s=hps.floats(1e-7, 1e-3),
    rate=hps.floats(1e6, 1e15),
    work=hps.lists(hps.floats(1e3, 1e12), min_size=2, max_size=12, unique=True),
)
def test_a_fit_finds_the_line_it_was_given(start_s, rate, work):
    amounts = np.array(work)
    times = start_s + amounts / rate
    # Two unknowns can be told apart only where both show in the times.
    share = start_s / times
    hp.assume(share.max() > 0.1 and share.min() < 0.9 and share.max() - share.min() > 0.05)
    fitted_start_s, fitted_rate = fit_start_and_rate(amounts, times)
    assert fitted_start_s == pytest.approx(start_s, rel=1e-5)
    assert fitted_rate == pytest.approx(rate, rel=1e-5)


@hp.given(
    points=hps.lists(
        hps.tuples(hps.floats(1e3, 1e12), hps.floats(1e-7, 1e2)), min_size=1, max_size=8
    )
)
def test_a_fit_is_possible_whatever_the_noise(points):
    work, times = zip(*points, strict=True)
    start_s, rate = fit_start_and_rate(work, times)
    assert start_s >= 0
    assert np.isfinite(start_s)
    assert rate > 0
    assert np.isfinite(rate)


def test_falling_times_fit_the_best_rate_seen():
    assert fit_start_and_rate([1.0, 2.0], [4.0, 1.0]) == (0.0, 2.0)


@pytest.mark.parametrize(("work", "times"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0])])
def test_a_fit_needs_measurements(work, times):
    message = (
        f"A line cannot be fitted to {len(work)} amounts and {len(times)} times: give as many "
        "times as amounts, at least one, all above zero."
    )
    with pytest.raises(BadArgumentError, match=f"^{re.escape(message)}$"):
        fit_start_and_rate(work, times)


@pytest.mark.parametrize("sizes", [-1, [4, -4], float("nan")])
def test_impossible_sizes_are_refused(sizes):
    message = f"`size_bytes={sizes!r}` has a size that no copy can have: give sizes of zero bytes"
    with pytest.raises(BadArgumentError, match=re.escape(message)):
        transfer_s(devices()["t4"], sizes, "to_host")


def test_unknown_directions_are_refused():
    message = (
        "`direction='up'` is not a direction of the link: it is "
        '"to_host" (offload) or "to_device" (reload).'
    )
    with pytest.raises(BadArgumentError, match=re.escape(message)):
        transfer_s(devices()["t4"], 1, "up")  # pyright: ignore


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("latency_s", -1e-6, "a number of seconds, zero or more"),
        ("latency_s", True, "a number of seconds, zero or more"),
        ("bandwidth_bytes_per_s", 0.0, "a number of bytes/s above zero"),
        ("bandwidth_bytes_per_s", float("inf"), "a number of bytes/s above zero"),
        ("bandwidth_bytes_per_s", "25GB", "a number of bytes/s above zero"),
        ("both_fraction", 0.0, "a fraction above 0, at most 1"),
        ("both_fraction", 1.5, "a fraction above 0, at most 1"),
    ],
)
def test_impossible_links_are_refused(field, value, rule):
    values = {"latency_s": 1e-6, "bandwidth_bytes_per_s": 1e9, "both_fraction": 1.0}
    message = f"`Link.{field}={value!r}` is not possible: it is {rule}."
    with pytest.raises(BadArgumentError, match=f"^{re.escape(message)}$"):
        Link(**values | {field: value})
