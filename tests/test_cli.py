"""The command line, called as a user calls it: what it prints and how it exits."""

import json
import os
import subprocess
import sys

import pytest

from jaxswap._plan_commands import read_budget
from jaxswap.cli import main

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

def deep(layers=12, batch=4096, width=512):
    def loss(ws, x):
        for k, w in enumerate(ws):
            with jax.named_scope(f"Block_{k}"):
                x = jnp.tanh(x @ w)
        return jnp.sum(x * x)
    shape = jax.ShapeDtypeStruct((width, width), jnp.float32)
    x = jax.ShapeDtypeStruct((batch, width), jnp.float32)
    step = lambda ws, x: jax.tree.map(lambda w, g: w - g, ws, jax.grad(loss)(ws, x))
    return step, ([shape] * layers, x), (0,)

def interrupted():
    import os, signal
    # A shell that starts the tests in the background has them ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    def train(w):
        os.kill(os.getpid(), signal.SIGINT)
        return jax.grad(lambda w: jnp.sum(w * w))(w)
    return train, (jax.ShapeDtypeStruct((8, 8), jnp.float32),)

def fails():
    raise ValueError("no data\\nin sight")

needs = lambda batch: None
number = 3
"""


@pytest.fixture
def targets(tmp_path, monkeypatch):
    (tmp_path / "steps.py").write_text(TARGETS)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "marks.py").write_text("open('imported', 'w').close()\n")
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
        (["verify", "exits.py:step"], "does not import: SystemExit: 3"),
        (
            ["plan", "steps.py:fails"],
            "steps.py:fails raised ValueError: no data in sight (in steps.py:",
        ),
        (["plan", "no_such_module:step"], "Module 'no_such_module' does not import"),
        (["plan", "steps.py:not_a_step"], "returned int, not a step with its arguments"),
        (["plan", "steps.py:step", "--device", "h10"], "No device is named 'h10'"),
        (["plan", "steps.py:deep", "--device", "t4", "--budget", "lots"], "is not a size"),
        (
            ["plan", "steps.py:deep", "--device", "t4", "--planner", "me"],
            "is not known: write one of",
        ),
        (["plan", "marks.py:step", "--report", "r.pdf"], "a report is saved as one of *.html"),
        (["plan", "marks.py:step", "--report", "no/such/r.html"], "there is no folder 'no/such'"),
        (["plan", "marks.py:step", "--save", "no/such/p.json"], "there is no folder 'no/such'"),
        (["verify", "marks.py:step", "--hlo", "no/such/m.txt"], "there is no folder 'no/such'"),
        (["verify", "marks.py:step", "--plan", "absent.json"], "absent.json"),
        (["calibrate", "--out", "no/such/d.json"], "there is no folder 'no/such'"),
        (["demo", "--report", "no/such/r.html"], "there is no folder 'no/such'"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(targets, capsys, arguments, message):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.startswith("jaxswap: ")
    assert printed.err.count("\n") == 1
    assert not (targets / "imported").exists()  # paths are tried before the work


# ---- plan ------------------------------------------------------------------------------

PLAN = ["plan", "steps.py:deep", "--device", "t4", "--planner", "greedy", "--no-confirm"]


def test_plan_prints_a_report(targets, capsys):
    assert main([*PLAN, "--budget", "80MiB"]) == 0
    printed = capsys.readouterr()
    assert "fits its budget" in printed.out
    assert "Block_*" in printed.out
    assert "(forecast)" in printed.out
    assert printed.err == ""  # no progress where nobody looks


def test_plan_as_json_with_everything_written(targets, capsys):
    more = ["--budget", "0.9", "--host-budget", "1GiB", "--seed", "4", "--set", "layers=3"]
    files = ["--save", "plan.json", "--report", "r.html"]
    assert main([*PLAN, *more, *files, "--json"]) == 0
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert facts["budget_bytes"] == int(0.9 * facts["device_memory_bytes"])
    assert (facts["seed"], facts["host_budget_bytes"]) == (4, 2**30)
    assert printed.err.splitlines() == ["wrote plan.json", "wrote r.html"]
    assert json.loads((targets / "plan.json").read_text())["format"] == "jaxswap.plan"
    assert (targets / "r.html").read_text().startswith("<!doctype html>")


def test_a_picture_that_cannot_be_drawn_is_said_before_the_work(targets, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    assert main(["plan", "marks.py:step", "--report", "r.png"]) == 2
    assert "pip install 'jaxswap[report]'" in capsys.readouterr().err
    assert not (targets / "imported").exists()


def test_a_budget_that_no_plan_fits_exits_with_1(targets, capsys):
    assert main([*PLAN, "--budget", "8MiB", "--save", "plan.json", "--report", "r.html"]) == 1
    printed = capsys.readouterr()
    assert "No plan of `greedy` fits `budget=8.00 MiB`" in printed.err
    assert printed.err.count("\n") == 1
    assert not {"plan.json", "r.html"} & {p.name for p in targets.iterdir()}


@pytest.mark.parametrize(
    ("text", "budget"),
    [(None, None), ("0.8", 0.8), ("1", 1.0), ("10GiB", "10GiB"), ("2048", "2048"), ("-1", "-1")],
)
def test_a_share_is_a_number_up_to_one(text, budget):
    assert read_budget(text) == budget


def test_ctrl_c_exits_with_130_and_leaves_no_file(targets):
    arguments = [sys.executable, "-m", "jaxswap", "plan", "steps.py:interrupted", "--device", "t4",
                 "--no-confirm", "--save", "plan.json", "--report", "r.html"]  # fmt: skip
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    before = {p.name for p in targets.iterdir()}
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment)
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == "jaxswap: interrupted"
    assert {p.name for p in targets.iterdir()} - before <= {"__pycache__"}


@pytest.mark.gpu_compile
def test_a_confirmed_plan_is_reported_and_verifies(targets, capsys):
    plan = [word for word in PLAN if word != "--no-confirm"]
    files = ["--save", "plan.json", "--report", "r.json"]
    assert main([*plan, "--budget", "90MiB", *files]) == 0
    assert "(compiled)" in capsys.readouterr().out
    facts = json.loads((targets / "r.json").read_text())
    assert facts["is_confirmed"] is True
    assert {"as written", "planned"} == {row["step"] for row in facts["tables"]["timeline"]}
    assert any(row["kind"] == "chosen" for row in facts["tables"]["front"])
    arguments = ["verify", "steps.py:deep", "--device", "t4", "--json"]
    assert main([*arguments, "--plan", "plan.json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert main(arguments) == 0
    assert planned["device_bytes"] <= 90 * 2**20
    assert planned["device_bytes"] < json.loads(capsys.readouterr().out)["device_bytes"]


def test_the_demo_plans_its_own_step(targets, capsys):
    small = ["layers=2", "width=256", "heads=4", "vocab=512", "seq=256", "batch=8"]
    settings = [word for item in small for word in ("--set", item)]
    arguments = ["demo", "--no-confirm", "--planner", "greedy", "--budget", "48MiB", *settings]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "jaxswap.demo:step on rtx3090" in printed
    assert printed.splitlines()[-1] == "wrote jaxswap-demo.html"
    assert (targets / "jaxswap-demo.html").exists()


# ---- bench and batch -------------------------------------------------------------------


BENCH = ["bench", "steps.py:deep", "--device", "t4", "--budgets", "90MiB,1MiB"]


def test_bench_has_a_row_per_budget_and_planner(targets, capsys):
    assert main([*BENCH, "--planners", "greedy,chen", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["target"], found["device"]) == ("steps.py:deep", "t4")
    by_name = {(row["budget_bytes"], row["planner"]): row for row in found["rows"]}
    fits = by_name[90 * 2**20, "greedy"]
    assert fits["device_bytes"] <= 90 * 2**20
    assert (fits["bytes_are"], fits["time_is"]) == ("forecast", "forecast")
    assert "Raise `budget`" in by_name[2**20, "chen"]["why_not"]
    assert len(found["rows"]) == 4


def test_bench_prints_a_table(targets, capsys):
    assert main([*BENCH, "--planners", "greedy"]) == 0
    printed = capsys.readouterr().out
    assert "steps.py:deep on t4" in printed
    assert "(forecast)" in printed
    assert "does not fit" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*BENCH, "--planners", "best"], "`planner='best'` is not known"),
        (["batch", "steps.py:deep", "--device", "t4", "--sizes", "8,x"], "is no list of batch"),
        (["batch", "steps.py:deep", "--device", "t4", "--argument", "nope"], "nope"),
    ],
)
def test_what_bench_and_batch_cannot_do_is_one_line(targets, capsys, arguments, message):
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.gpu_compile
def test_batch_prints_the_table_and_writes_the_curve(targets, capsys):
    arguments = ["batch", "steps.py:deep", "--device", "t4", "--budget", "70MiB", "--planner",
                 "greedy", "--sizes", "1024,2048,4096"]  # fmt: skip
    assert main([*arguments, "--report", "batch.html"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Batch ")
    assert printed.splitlines()[-1] == "wrote batch.html"
    assert "Throughput against batch size" in (targets / "batch.html").read_text()
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["batch_size"] for row in found["table"]] == [1024, 2048, 4096]


# ---- the rest --------------------------------------------------------------------------


def test_calibrate_writes_a_device_that_reads_back(targets, capsys):
    assert main(["calibrate", "--quick", "--out", "mine.json"]) == 0
    assert "wrote mine.json" in capsys.readouterr().out
    assert main(["devices", "mine.json"]) == 0


@pytest.mark.parametrize(
    "command", ["", "plan", "batch", "bench", "verify", "devices", "calibrate", "demo"]
)
def test_help_has_an_example(command):
    arguments = [sys.executable, "-m", "jaxswap", *command.split(), "--help"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
    assert "usage: jaxswap" in done.stdout
    assert not command or "example:" in done.stdout
