"""Presets: every figure has a source, and agrees with the facts it is made of."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import topologies

from jaxswap._errors import BadArgumentError, UnknownDeviceError
from jaxswap.model.device import Device
from jaxswap.model.presets import devices, find_device, read_data
from jaxswap.model.presets_page import render_page

NAMES = [
    *("h100-sxm", "h100-pcie", "h200", "gh200", "b200"),
    *("a100-80gb", "a100-40gb", "a100-pcie-80gb", "a100-pcie-40gb", "v100-16gb", "v100-32gb"),
    *("l40s", "l4", "a10", "t4", "rtx4090", "rtx3090ti", "rtx3090", "rtx2080ti"),
]
every_preset = pytest.mark.parametrize("preset", devices().values(), ids=lambda p: p.name)
GB_PER_S = {key: row["gbps"] for key, row in read_data()["transfer_rows"].items()}


def test_the_names_and_their_order():
    assert list(devices()) == NAMES
    assert all(name == preset.name for name, preset in devices().items())


@every_preset
def test_files_hold_presets_exactly(preset, tmp_path):
    preset.save(tmp_path / "preset.json")
    assert Device.load(tmp_path / "preset.json") == preset


@every_preset
def test_every_figure_has_a_source(preset):
    figures = {f"peak_flops_per_s.{kind}" for kind in preset.peak_flops_per_s}
    figures |= {"memory_bytes", "memory_bandwidth_bytes_per_s", "l2_cache_bytes", "to_host"}
    figures |= {"launch_overhead_s", "to_device", "compute_capability", "sm_count"}
    figures |= {"clock_rate_ghz"}
    figures |= {"sustained_fraction"} if preset.sustained_fraction != 1.0 else set()
    assert set(preset.sources) == figures
    for source in preset.sources.values():
        assert len(source) > 8
        assert "[" not in source, "a citation was not written out"


def test_every_citation_and_row_that_is_named_exists():
    data = read_data()
    sources = [source for each in data["devices"] for source in each["sources"].values()]
    named = {name for source in sources for name in re.findall(r"\[([a-z0-9-]+)\]", source)}
    assert named == set(data["citations"])
    rows = {row for source in sources for row in re.findall(r"\bX\d\d\b", source)}
    assert rows <= set(data["transfer_rows"])
    assert all(row["source"] for row in data["transfer_rows"].values())


@every_preset
def test_the_f32_peak_is_units_times_clock(preset):
    fpus = 64 if preset.compute_capability in ((7, 0), (7, 5), (8, 0)) else 128
    expected = 2 * preset.sm_count * fpus * preset.clock_rate_ghz * 1e9
    # The published 80 TFLOP/s of a B200 is rounded up from 74.
    tolerance = 0.08 if preset.name == "b200" else 0.01
    assert preset.peak_flops_per_s["f32"] == pytest.approx(expected, rel=tolerance)


@every_preset
def test_tensor_peaks_keep_their_ratios(preset):
    peaks = preset.peak_flops_per_s
    has_tf32 = preset.compute_capability >= (8, 0)
    assert ("tf32" in peaks) == ("bf16" in peaks) == has_tf32
    assert ("f8" in peaks) == (preset.compute_capability >= (8, 9))
    if has_tf32:
        assert peaks["bf16"] == peaks["f16"]
        assert peaks["tf32"] == pytest.approx(peaks["f16"] / 2, rel=0.02)
    if "f8" in peaks:
        assert peaks["f8"] == pytest.approx(2 * peaks["f16"], rel=0.02)


@every_preset
def test_tensor_peaks_are_multiply_adds_per_clock(preset):
    # f16 multiply-adds a clock and multiprocessor, f32 accumulation: V100 and T4 512, A100 1024,
    # Hopper 2048, Blackwell 4096; GA102 and AD102 512, and half of their generation's on GeForce.
    # Hopper's and Blackwell's tensor cores run below the boost clock (1.83 GHz in XLA's files).
    rates = {(7, 0): 512, (7, 5): 512, (8, 0): 1024, (8, 6): 512, (8, 9): 512}
    rates |= {(9, 0): 2048, (10, 0): 4096}
    rate = rates[preset.compute_capability] / (2 if preset.name.startswith("rtx") else 1)
    expected = 2 * rate * preset.sm_count * preset.clock_rate_ghz * 1e9
    assert preset.peak_flops_per_s["f16"] == pytest.approx(expected, rel=0.1)


@every_preset
def test_memory_is_what_the_driver_leaves_of_the_nominal(preset):
    nominal_gb = re.findall(r"(\d+) GB", preset.description)
    left = preset.memory_bytes / (int(*nominal_gb) * 2**30)
    # GDDR6 with ECC (T4, L4, A10, L40S) keeps a sixteenth; XLA's A100 PCIe file says 0.92.
    assert 0.91 < left <= 1.0


def expected_links():
    """(to device, to host) as (GB/s, fraction of it both ways), from the published rows."""
    x = GB_PER_S
    duplex_4, duplex_4_out = x["X30"] / x["X29"], x["X08"] / x["X02"]
    duplex_5, duplex_a100_out = x["X47"] / x["X45"], x["X25"] / 25.5
    middle = sorted([x["X24"], x["X29"], x["X31"], x["X32"]])[1:3]
    out_4 = ((x["X02"] + x["X33"]) / 2, duplex_4_out)
    pcie_4 = ((sum(middle) / 2, duplex_4), out_4)
    h100 = ((x["X41"], duplex_5), (x["X42"], duplex_5))
    v100 = ((x["X54"], duplex_4), (x["X55"], duplex_4))
    c2c = x["X53"] / 337.55
    links = dict.fromkeys(NAMES, pcie_4) | dict.fromkeys(["h100-sxm", "h100-pcie", "h200"], h100)
    return links | {
        "b200": ((x["X45"], duplex_5), (x["X46"], duplex_5)),
        "gh200": ((x["X48"], c2c), (x["X49"], c2c)),
        "a100-80gb": (
            (x["X24"], (x["X26"] + x["X27"]) / 2 / x["X24"]),
            (25.5, duplex_a100_out),
        ),
        "a100-40gb": ((x["X01"], x["X07"] / x["X01"]), (x["X02"], duplex_4_out)),
        "v100-16gb": v100,
        "v100-32gb": v100,
        "t4": ((x["X58"], duplex_4), (x["X59"], duplex_4)),
        "rtx2080ti": ((x["X60"], duplex_4), (x["X59"], duplex_4)),
        "a10": ((x["X31"], duplex_4), out_4),
        "rtx4090": ((x["X32"], x["X34"] / x["X32"]), (x["X33"], duplex_a100_out)),
    }


@every_preset
def test_links_follow_from_the_published_rates(preset):
    found = [
        (link.bandwidth_bytes_per_s / 1e9, link.both_fraction)
        for link in (preset.to_device, preset.to_host)
    ]
    for (rate, both), (expected_rate, expected_both) in zip(
        found, expected_links()[preset.name], strict=True
    ):
        assert rate == pytest.approx(expected_rate, rel=1e-9)
        assert both == pytest.approx(expected_both, abs=6e-4)


def test_only_power_limited_cards_are_derated_and_it_is_called_an_assumption():
    derated = {n: p for n, p in devices().items() if p.sustained_fraction != 1.0}
    assert {n: p.sustained_fraction for n, p in derated.items()} == {
        "l4": pytest.approx(1602 / 2040, abs=5e-4),
        "t4": pytest.approx(900 / 1590, abs=5e-4),
    }
    assert all("assumption" in p.sources["sustained_fraction"] for p in derated.values())


@pytest.mark.parametrize("name", ["a100-80gb", "A100-80GB", "A100 80GB", "a100_80gb", "a10080gb"])
def test_names_are_read_tolerantly(name):
    assert find_device(name) is devices()["a100-80gb"]
    assert Device.named(name) is devices()["a100-80gb"]


def test_devices_and_files_are_found(tmp_path):
    t4 = devices()["t4"]
    assert find_device(t4) is t4
    t4.save(tmp_path / "mine.JSON")
    assert find_device(tmp_path / "mine.JSON") == t4
    assert find_device(str(tmp_path / "mine.JSON")) == t4


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("h100", " (nearest: h100-sxm, h100-pcie)"),
        ("RTX 3090 TI Super", " (nearest: rtx3090ti, rtx3090, rtx4090)"),
        ("rtx4o90", " (nearest: rtx4090, rtx3090, rtx3090ti)"),
        ("v100", " (nearest: v100-16gb, v100-32gb)"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(name, nearest):
    with pytest.raises(UnknownDeviceError) as error:
        find_device(name)
    assert str(error.value) == (
        f"No device is named {name!r}{nearest}. Known are {', '.join(NAMES)}. For another one, "
        'give the path of a JSON file (`Device.save("mine.json")`), or measure it with '
        "`Device.calibrate()`."
    )


def test_other_things_are_not_devices():
    message = (
        '`device=7` is not a device: give a `Device`, a name such as "h100-sxm", or the path of '
        "a JSON file."
    )
    with pytest.raises(BadArgumentError, match=f"^{re.escape(message)}$"):
        find_device(7)  # pyright: ignore


def test_the_page_is_up_to_date():
    page = Path(__file__).parents[1] / "docs" / "devices.md"
    assert page.read_text("utf-8") == render_page(), (
        "run: python -m jaxswap.model.presets_page > docs/devices.md"
    )


def one_of_each_capability():
    return {preset.compute_capability: preset for preset in devices().values()}.values()


@pytest.mark.gpu_compile
@pytest.mark.parametrize("preset", one_of_each_capability(), ids=lambda p: p.name)
def test_the_gpu_compiler_takes_every_capability(preset):
    def loss(weights, kernel, images):
        features = jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(jnp.tanh(features.reshape(-1, weights.shape[0]) @ weights) ** 2)

    topology = topologies.get_topology_desc(
        platform="cuda", target_config=preset.target_config(), topology="1x1x1"
    )
    mesh = topologies.make_mesh(topology, (1,), ("gpu",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shapes = [(256, 512), (3, 3, 64, 64), (8, 32, 32, 64)]
    args = [jax.ShapeDtypeStruct(shape, jnp.float16, sharding=where) for shape in shapes]
    compiled = (
        jax.jit(jax.grad(loss, (0, 1)))
        .lower(*args)
        .compile(compiler_options={"xla_gpu_autotune_level": "0"})
    )
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.argument_size_in_bytes >= 2 * (256 * 512 + 9 * 64 * 64 + 8 * 32 * 32 * 64)
    assert memory.temp_size_in_bytes > 0
    text = compiled.as_text()
    assert text is not None
    assert "__cudnn$conv" in text
