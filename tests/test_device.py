"""Device: what it computes, what it refuses, and that its files are exact."""

import copy
import pickle
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxswap
from jaxswap._errors import BadArgumentError
from jaxswap.model.capability import CORE_LIMITS, compiled_as, explain_compiled_as
from jaxswap.model.device import RAMP_S, Device
from jaxswap.model.dtypes import DTYPE_CLASSES, classify_dtype
from jaxswap.model.presets import devices
from jaxswap.model.transfer import Link

LINK = Link(latency_s=1e-6, bandwidth_bytes_per_s=1e9, both_fraction=0.5)
VALUES = {
    "name": "toy",
    "description": "A toy",
    "memory_bytes": 1000,
    "peak_flops_per_s": {"f32": 100.0},
    "memory_bandwidth_bytes_per_s": 10.0,
    "l2_cache_bytes": 0,
    "launch_overhead_s": 0.0,
    "to_host": LINK,
    "to_device": LINK,
}
TOY = Device(**VALUES)


def raises(message):
    return pytest.raises(BadArgumentError, match=f"^{re.escape(message)}$")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("f32", "f32"),
        (np.float32, "f32"),
        (np.dtype("complex64"), "f32"),
        (jnp.bfloat16, "bf16"),
        (jnp.dtype("bfloat16"), "bf16"),
        ("f16", "f16"),
        ("float64", "f64"),
        ("tf32", "tf32"),
        (jnp.float8_e4m3fn, "f8"),
        ("f8e5m2", "f8"),
        ("f4e2m1fn", "f8"),
        (np.uint8, "int8"),
        ("s4", "int8"),
        ("s32", "int"),
        (np.int64, "int"),
        ("pred", "int"),
        (bool, "int"),
    ],
)
def test_dtypes_have_classes(dtype, expected):
    assert classify_dtype(dtype) == expected


def test_other_dtypes_are_refused():
    with raises(
        "`dtype='f33'` has no known arithmetic: give a dtype, or its name in NumPy or HLO, such "
        'as "float32" or "bf16".'
    ):
        TOY.dot_flops_per_s("f33")


def test_dots_run_at_the_best_rate_the_default_precision_gets():
    peaks = {k: float(10**n) for n, k in enumerate(DTYPE_CLASSES)}
    rich = replace(TOY, peak_flops_per_s=peaks, sustained_fraction=0.5)
    for kind in DTYPE_CLASSES:
        peak = peaks["tf32" if kind == "f32" else kind]
        assert rich.dot_flops_per_s(kind) == 0.5 * peak
    assert rich.dot_flops_per_s("s32") == rich.vector_flops_per_s == 0.5 * peaks["f32"]


def test_dots_without_units_of_their_own_run_as_what_they_are_widened_to():
    poor = replace(TOY, peak_flops_per_s={"f32": 100.0, "f16": 800.0})
    rates = {kind: poor.dot_flops_per_s(kind) for kind in DTYPE_CLASSES}
    assert rates == {
        "f64": 50.0,
        "f32": 100.0,
        "tf32": 100.0,
        "f16": 800.0,
        "bf16": 100.0,
        "f8": 800.0,
        "int8": 100.0,
    }


def test_half_work_is_the_given_one_or_the_ramp_at_the_peak():
    given = replace(TOY, half_work_flops={"f32": 7.0})
    assert given.dot_half_work_flops("f32") == 7.0
    assert TOY.dot_half_work_flops("f32") == 100.0 * RAMP_S


def test_the_ramp_is_what_small_dots_show_on_an_h100():
    # (m, n, k) and the FLOP/s that XLA's matmul_interpolator_data.h holds for bf16, b = 1.
    measured = {
        (256, 512, 256): 11459846994535,
        (256, 1024, 256): 22671913513513,
        (1024, 2048, 256): 139519467775467,
        (1024, 1024, 2048): 349981037809648,
        (1024, 2048, 2048): 524288000000000,
        (2048, 2048, 2048): 631984593290170,
        (4096, 4096, 4096): 783328793548203,
    }
    for (m, n, k), rate in measured.items():
        work = 2 * m * n * k
        assert RAMP_S + work / 797e12 == pytest.approx(work / rate, rel=0.08)


def test_devices_are_values():
    same = Device(**VALUES)
    assert same == TOY
    assert hash(TOY) == hash(same)
    assert replace(TOY, peak_flops_per_s={"f32": 101.0}) != TOY
    for device in (TOY, devices()["t4"]):
        assert pickle.loads(pickle.dumps(device)) == device
        assert copy.deepcopy(device) == device
    with pytest.raises(FrozenInstanceError):
        TOY.memory_bytes = 1  # pyright: ignore
    with pytest.raises(TypeError):
        TOY.peak_flops_per_s["f32"] = 1.0  # pyright: ignore
    with pytest.raises(TypeError):
        Device("toy")  # pyright: ignore


def test_a_device_keeps_its_own_copy_of_its_mappings():
    peaks = {"f32": 100.0}
    device = replace(TOY, peak_flops_per_s=peaks)
    peaks["f32"] = 1.0
    assert device.peak_flops_per_s["f32"] == 100.0


CLASSES = "by dtype class (f64, f32, tf32, f16, bf16, f8, int8)"
IMPOSSIBLE = [
    ("name", "", "text that is not empty"),
    ("description", None, "text"),
    ("memory_bytes", 0, "a whole number above zero"),
    ("memory_bytes", -5, "a whole number above zero"),
    ("memory_bytes", 1.5, "a whole number above zero"),
    ("memory_bytes", True, "a whole number above zero"),
    ("peak_flops_per_s", {}, f"numbers above zero {CLASSES}, f32 among them"),
    ("peak_flops_per_s", {"f16": 1.0}, f"numbers above zero {CLASSES}, f32 among them"),
    (
        "peak_flops_per_s",
        {"f32": 1.0, "f9": 1.0},
        f"numbers above zero {CLASSES}, f32 among them",
    ),
    ("peak_flops_per_s", {"f32": 0.0}, f"numbers above zero {CLASSES}, f32 among them"),
    ("memory_bandwidth_bytes_per_s", "1TB/s", "a number above zero"),
    ("memory_bandwidth_bytes_per_s", float("nan"), "a number above zero"),
    ("l2_cache_bytes", -1, "a whole number, zero or more"),
    ("launch_overhead_s", -1e-6, "a number, zero or more"),
    ("to_host", 25e9, "a link: latency, bandwidth, both_fraction"),
    ("sustained_fraction", 1.5, "a fraction above 0, at most 1"),
    ("half_work_flops", {"f32": -1.0}, f"numbers, zero or more, {CLASSES}"),
    ("host_memory_bytes", 0, "a whole number above zero"),
    ("compute_capability", 8.0, "a pair of whole numbers such as (8, 0)"),
    ("compute_capability", (8,), "a pair of whole numbers such as (8, 0)"),
    ("sm_count", 0, "a whole number above zero"),
    ("clock_rate_ghz", 0.0, "a number above zero"),
    ("measured", {"x": float("inf")}, "numbers by name"),
    ("sources", {"x": 1}, "texts by field"),
]


@pytest.mark.parametrize(("field", "value", "rule"), IMPOSSIBLE)
def test_impossible_fields_are_refused(field, value, rule):
    with raises(f"`Device.{field}={value!r}` is not possible: it is {rule}."):
        Device(**VALUES | {field: value})


def test_a_capability_takes_what_the_compiler_needs():
    with raises(
        "A `Device` with a `compute_capability` can be compiled for, which also takes `sm_count` "
        "and `clock_rate_ghz`: `toy` has 4 and None. Give both, or no compute capability."
    ):
        replace(TOY, compute_capability=(8, 0), sm_count=4)


def test_what_has_no_capability_is_not_compiled_for():
    refusal = raises(
        "Device `toy` cannot be compiled for: it has no CUDA compute capability, so it serves for "
        'forecasts only. To compile, pass a GPU by name, such as "h100-sxm".'
    )
    with refusal:
        TOY.target_config()
    with refusal:
        _ = TOY.compiled_as
    with refusal:
        _ = TOY.compile_note


def test_every_known_capability_is_compiled_as_itself():
    for capability in CORE_LIMITS:
        assert compiled_as(capability) == capability
        assert explain_compiled_as(capability) is None


def test_volta_is_compiled_as_turing_and_says_so():
    v100 = devices()["v100-16gb"]
    assert v100.compute_capability == (7, 0)
    assert v100.compiled_as == (7, 5)
    assert v100.core_limits == CORE_LIMITS[7, 5]
    assert v100.compile_note == (
        "compiled for compute capability 7.5: CUDA 13 no longer compiles for 7.0. Buffer sizes "
        "are those of the 7.5 build."
    )
    assert "cuda_compute_capability { major: 7 minor: 5 " in v100.target_config()


def test_unknown_capabilities_are_refused():
    with raises(
        "Compute capability 6.0 cannot be compiled for: its limits are not known here. Known are "
        "7.5, 8.0, 8.6, 8.9, 9.0, 10.0, 12.0; 7.0 and 7.2 are compiled as 7.5."
    ):
        compiled_as((6, 0))


def test_the_target_text_says_what_the_device_is():
    text = devices()["a100-40gb"].target_config()
    values = dict(re.findall(r"(\w+): (\S+)", text))
    assert values["core_count"] == "108"
    assert values["fpus_per_core"] == "64"
    assert values["shared_memory_per_core"] == "167936"
    assert values["shared_memory_per_block_optin"] == "166912"
    assert values["threads_per_core_limit"] == "2048"
    assert values["memory_bandwidth"] == "1555200000000"
    assert values["l2_cache_size"] == str(40 * 2**20)
    assert float(values["device_memory_size"]) * 0.8 == pytest.approx(42331013120)
    assert values["clock_rate_ghz"] == "1.41"
    assert values["feature_extension"] == "NONE"
    assert 'device_description_str: "NVIDIA A100 SXM4, 40 GB HBM2"' in text


def test_devices_need_no_jax():
    # The package's own `__init__` may import JAX, so it is stood in for.
    code = (
        "import sys, types\n"
        "package = types.ModuleType('jaxswap')\n"
        f"package.__path__ = [{str(Path(jaxswap.__file__).parent)!r}]\n"
        "sys.modules['jaxswap'] = package\n"
        "import jaxswap.model.detect, jaxswap.model.presets_page\n"
        "import jaxswap.model.transfer, jaxswap.model.device\n"
        "jaxswap.model.presets_page.render_page()\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib')]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
