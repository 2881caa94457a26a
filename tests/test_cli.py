"""The command line, called as a user calls it: what it prints and how it exits."""

import json
import os
import subprocess
import sys

import pytest

from jaxswap.cli import main, write_whole

TARGETS = """\
import jax, jax.numpy as jnp

def step(batch=8, name="x"):
    def train(w, x):
        return w - jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    w = jax.ShapeDtypeStruct((32, 32), jnp.float32)
    return train, (w, jax.ShapeDtypeStruct((batch, 32), jnp.float32)), (0,)

def not_a_step():
    return 3

def args_not_a_tuple():
    return (lambda x: x), jax.ShapeDtypeStruct((2,), jnp.float32)

needs = lambda batch: None
number = 3
"""


@pytest.fixture
def targets(tmp_path, monkeypatch):
    (tmp_path / "steps.py").write_text(TARGETS)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_devices_lists_every_preset(capsys):
    assert main(["devices"]) == 0
    printed = capsys.readouterr().out
    for name in ("h100-sxm", "a100-40gb", "v100-16gb", "rtx4090", "rtx2080ti", "l4", "t4"):
        assert name in printed


def test_one_device_shows_its_sources(capsys):
    assert main(["devices", "rtx4090"]) == 0
    printed = capsys.readouterr().out
    assert "memory_bandwidth_bytes_per_s: 1008" in printed
    assert "sources:" in printed


def test_devices_as_json_reads_back(capsys):
    assert main(["devices", "t4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"]["name"] == "t4"
    assert main(["devices", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) >= 9


@pytest.mark.gpu_compile
@pytest.mark.parametrize("spec", ["steps.py:step", "steps:step"])
def test_verify_prints_bytes_and_writes_the_module(targets, capsys, spec):
    arguments = ["verify", spec, "--device", "t4", "--set", "batch=64", "--hlo", "module.txt"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "(compiled), fits" in printed
    assert "(replayed)" in printed
    assert "largest temporaries at the peak" in printed
    assert (targets / "module.txt").read_text().startswith("HloModule")


@pytest.mark.gpu_compile
def test_verify_as_json_takes_settings(targets, capsys):
    assert main(["verify", "steps.py:step", "--device", "t4", "--json", "--set", "batch=64"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["fits"] is True
    assert facts["time_is"] == "replayed"
    assert facts["device_bytes"] >= (32 * 32 + 64 * 32) * 4


@pytest.mark.gpu_compile
def test_a_step_that_does_not_fit_exits_with_1(targets, capsys):
    main(["devices", "t4", "--json"])
    small = json.loads(capsys.readouterr().out)
    small["device"] |= {"memory_bytes": 4096, "name": "small"}
    (targets / "small.json").write_text(json.dumps(small))
    assert main(["verify", "steps.py:step", "--device", "small.json"]) == 1
    assert "does not fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "steps.py"], "names no function: write MODULE:FUNCTION"),
        (["verify", "absent.py:step"], "There is no file 'absent.py'"),
        (["verify", "no_such_module:step"], "Module 'no_such_module' does not import"),
        (["verify", "broken.py:step"], "does not import: ModuleNotFoundError"),
        (["verify", "steps.py:absent"], "has no function 'absent'. It has: step, not_a_step"),
        (["verify", "steps.py:number"], "has no function 'number'"),
        (["verify", "steps.py:not_a_step"], "returned int, not a step with its arguments"),
        (["verify", "steps.py:args_not_a_tuple"], "`args` of type ShapeDtypeStruct"),
        (["verify", "steps.py:needs"], "missing a required argument: 'batch'"),
        (["verify", "steps.py:step", "--set", "size=3"], "unexpected keyword argument 'size'"),
        (["verify", "steps.py:step", "--set", "batch"], "is not KEY=VALUE"),
        (["verify", "steps.py:step", "--device", "h10"], "No device is named 'h10'"),
        (["devices", "nope.json"], "nope.json"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(targets, capsys, arguments, message):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.startswith("jaxswap: ")
    assert printed.err.count("\n") == 1


@pytest.mark.gpu_compile
def test_an_unwritable_path_is_one_line(targets, capsys):
    arguments = ["verify", "steps.py:step", "--device", "t4", "--hlo", "no/such/folder/m.txt"]
    assert main(arguments) == 2
    assert "cannot write" in capsys.readouterr().err


def test_calibrate_writes_a_device_that_reads_back(targets, capsys):
    assert main(["calibrate", "--quick", "--out", "mine.json"]) == 0
    assert "wrote mine.json" in capsys.readouterr().out
    assert main(["devices", "mine.json"]) == 0


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "report.txt"
    path.write_text("old")
    with pytest.raises(TypeError):
        write_whole(str(path), None)  # type: ignore[arg-type]
    assert [p.name for p in tmp_path.iterdir()] == ["report.txt"]
    assert path.read_text() == "old"
    write_whole(str(path), "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("command", ["", "devices", "verify", "calibrate"])
def test_help_has_an_example(command):
    arguments = [sys.executable, "-m", "jaxswap", *command.split(), "--help"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
    assert "usage: jaxswap" in done.stdout
    assert not command or "example:" in done.stdout
