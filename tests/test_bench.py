"""The benchmark harness: who runs, once, and what is kept of it."""

import inspect
import json
import shutil
import sys
import threading
from dataclasses import asdict

import pytest

from benchmarks import cell_runs, kept, sources
from benchmarks.bench import list_cells, main, parse_arguments
from benchmarks.cell_runs import Children, describe, is_done, run_cell, run_cells
from benchmarks.cells import Cell, digest_cell
from benchmarks.contenders import choose_contenders, device_for_xla, list_contenders
from benchmarks.models import WORKLOADS
from benchmarks.models._remat import find_policy
from benchmarks.panels import MODELS, Panel
from jaxswap._errors import BadArgumentError, BudgetInfeasibleError
from jaxswap.model.device import Device
from jaxswap.plan.base import planners

FIGURES = {"device_bytes": 1000, "temp_bytes": 900, "step_s": 0.5, "time_is": "replayed"}
POLICY = Cell(model="gpt-tiny", device="rtx4090", contender="nothing_saveable")
PLANNED = Cell(model="gpt-tiny", device="rtx4090", contender="genetic", share=0.5)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    return tmp_path


def keep(cell: Cell, **result) -> dict:
    return cell.write(digest_cell(cell), {"status": "ok", "wall_s": 1.0, **result})


# Contenders


def test_every_planner_is_a_contender():
    kinds = {c.name: c.kind for c in list_contenders("resnet50").values()}
    planned = {name for name, kind in kinds.items() if kind in ("paper", "jaxswap")}
    assert planned == set(planners())


@pytest.mark.parametrize("model", MODELS)
def test_every_policy_is_one_that_the_model_has(model):
    policies = [c.name for c in list_contenders(model).values() if c.kind == "policy"]
    assert len(policies) >= 2
    assert "remat" in inspect.signature(WORKLOADS[MODELS[model][0]]).parameters
    for name in policies:
        find_policy(name.removeprefix("overlapped:"))  # raises if there is none


def test_half_precision_is_the_one_of_the_gpu():
    old, new = (Panel(model="resnet50", device=name) for name in ("rtx2080ti", "h100-sxm"))
    assert (old.settings, new.settings) == ({"dtype": "f16"}, {})
    assert Panel(model="vgg16", device="rtx2080ti").settings == {}  # f32 stays


def test_xla_limits_itself_to_the_budget():
    # XLA's own rule, spelled out: temporaries get 95 % of what is left of the device.
    memory_bytes = device_for_xla(10_000_000, base_bytes=2_000_000)
    assert 2_000_000 + 0.95 * (memory_bytes - 2_000_000) == pytest.approx(10_000_000)


def test_contenders_are_chosen_by_name_and_kind():
    chosen = [c.name for c in choose_contenders("resnet50", ["xla", "save:conv", "dots_saveable"])]
    assert chosen == ["unconstrained", "save:conv", "xla", "xla-offload"]
    assert len(choose_contenders("lstm", ["all"])) == len(list_contenders("lstm"))


def test_unknown_contender_lists_the_known():
    with pytest.raises(BadArgumentError, match=r"`--contenders best` .* all, jaxswap, .*nothing_s"):
        choose_contenders("gpt2-small", ["best"])


def test_unknown_model_lists_the_known():
    with pytest.raises(BadArgumentError, match=r"`--models gpt5` is not .* it has gpt2-small, "):
        Panel(model="gpt5", device="rtx4090")


def test_planner_figures_are_those_of_the_plan(monkeypatch):
    asked = {}

    class Forecast:
        peak_bytes, host_bytes, step_s, stall_s, recompute_s, offload_bytes = 9, 7, 0.2, 0.0, 0.0, 7

    class Planned:
        forecast, compiled_bytes, replayed_s, is_confirmed = Forecast, 8, 0.25, True
        names = staticmethod(lambda action: ("x",) if action == "offload" else ())

    def plan(step, *args, **settings):
        asked.update(settings)
        return Planned

    monkeypatch.setattr("jaxswap.plan", plan)
    run = list_contenders("gpt-tiny")["exact"].run
    figures = run(PLANNED.panel, FIGURES, 12345)
    assert (asked["budget"], asked["planner"], asked["confirm"]) == (12345, "exact", True)
    own_bytes = Device.named(PLANNED.device).memory_bytes
    assert asked["device"].memory_bytes == own_bytes  # as a user's plan is compiled
    run(PLANNED.panel, FIGURES, 2 * own_bytes)
    assert asked["device"].memory_bytes == 2 * own_bytes  # a budget that this GPU does not hold
    assert (figures["device_bytes"], figures["step_s"], figures["host_bytes"]) == (8, 0.25, 7)
    assert figures["decided"] == {"keep": 0, "offload": 1, "recompute": 0}


# Cells


def test_cells_are_the_product_and_the_unconstrained_come_first():
    found = list_cells(["gpt-tiny", "lstm"], ["t4", "l4"], [0.5, 0.25], ["xla"])
    assert [cell.contender for cell in found[:4]] == ["unconstrained"] * 4
    assert len(found) == len(set(found)) == 4 + 2 * 2 * 2 * 2
    assert {cell.share for cell in found[4:]} == {0.5, 0.25}


def test_a_result_comes_back_with_its_circumstances():
    keep(POLICY, figures=FIGURES)
    result = POLICY.read()
    assert result is not None
    assert result["cell"] == asdict(POLICY)
    assert result["figures"] == FIGURES
    assert result["versions"]["jax"]
    assert {"commit", "finished"} <= set(result)


def test_half_a_file_is_no_result():
    keep(POLICY)
    kept.path_of(POLICY.name).write_text('{"status": "o')
    assert POLICY.read() is None
    assert POLICY.read_newest() is None


def test_names_with_slashes_and_a_common_start_have_files_of_their_own():
    names = list_contenders("gpt-tiny")
    paths = {
        kept.path_of(Cell(model="gpt-tiny", device="rtx4090", contender=name, share=share).name)
        for name in names
        for share in (None, 0.5, 0.25)
    }
    assert len(paths) == 3 * len(names)
    assert {path.parent for path in paths} == {kept.path_of(POLICY.name).parent}


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of jaxswap's sources that a test may change."""
    copy = tmp_path / "jaxswap"
    shutil.copytree(sources.JAXSWAP, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sources, "JAXSWAP", copy)
    return copy


def change(path) -> None:
    path.write_text(path.read_text() + "\nCHANGED = True\n")


@pytest.mark.parametrize(
    ("changed", "policy_stays", "plan_stays"),
    [
        ("plan/greedy.py", True, False),
        ("apply/order.py", True, False),
        ("report/text.py", True, True),
        ("verify/replay.py", False, False),
    ],
)
def test_a_cell_is_as_old_as_what_it_depends_on(copied, changed, policy_stays, plan_stays):
    before = digest_cell(POLICY), digest_cell(PLANNED)
    change(copied / changed)
    after = digest_cell(POLICY), digest_cell(PLANNED)
    assert (before[0] == after[0], before[1] == after[1]) == (policy_stays, plan_stays)


def test_what_sources_say_to_their_readers_does_not_count(copied):
    before = digest_cell(PLANNED)
    path = copied / "plan" / "greedy.py"
    code = path.read_text().split('"""', 2)[2]
    path.write_text('"""Another opening."""\n# And a comment.\n\n' + code)
    assert digest_cell(PLANNED) == before


def test_a_result_of_older_sources_is_shown_as_such(copied):
    keep(PLANNED, figures=FIGURES)
    assert "is_older" not in (PLANNED.read_newest() or {})
    change(copied / "plan" / "greedy.py")
    assert PLANNED.read() is None
    assert (PLANNED.read_newest() or {})["is_older"]
    assert POLICY.read_newest() is None


# Runs


@pytest.mark.parametrize(
    ("result", "done", "done_with_retry"),
    [
        ({"status": "ok"}, True, False),
        ({"status": "infeasible"}, True, False),
        ({"status": "error"}, False, False),
        ({"status": "timeout", "wall_s": 600.0}, True, False),
        ({"status": "timeout", "wall_s": 60.0}, False, False),  # more time may do
    ],
)
def test_what_is_run_again(result, done, done_with_retry):
    POLICY.write(digest_cell(POLICY), result)
    assert is_done(POLICY, timeout_s=600.0, retry=False) == done
    assert is_done(POLICY, timeout_s=600.0, retry=True) == done_with_retry


def test_nothing_is_done_without_a_result():
    assert not is_done(POLICY, timeout_s=600.0, retry=False)


def fake_children(code: str) -> Children:
    return Children([sys.executable, "-c", code])


def test_a_child_that_takes_too_long_is_ended_and_recorded():
    result = fake_children("import threading; threading.Event().wait()").run(POLICY, 0.2)
    assert (result["status"], result["wall_s"]) == ("timeout", 0.2)
    assert POLICY.read() == result


def test_a_child_that_dies_is_recorded_with_its_last_words():
    result = fake_children("import sys; print('out of memory'); sys.exit(3)").run(POLICY, 60.0)
    assert result["status"] == "error"
    assert "exit code 3" in result["message"]
    assert result["traceback"] == ["out of memory"]
    assert not is_done(POLICY, timeout_s=60.0, retry=False)


def test_ended_children_leave_no_result_and_none_starts_after():
    children, raised = fake_children("import threading; threading.Event().wait()"), []

    def run():
        try:
            children.run(POLICY, 60.0)
        except KeyboardInterrupt as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not children._running:
        thread.join(0.01)
    (child,) = children._running
    children.end()
    thread.join(10.0)
    assert len(raised) == 1
    assert child.poll() is not None
    assert POLICY.read() is None
    with pytest.raises(KeyboardInterrupt):
        children.run(POLICY, 60.0)


class FakeChildren:
    """Answers at once, and notes who asked."""

    asked: list[Cell]

    def run(self, cell: Cell, timeout_s: float) -> dict:
        self.asked.append(cell)
        return keep(cell, figures=FIGURES)


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_second_run_runs_nothing(monkeypatch, capsys, jobs):
    monkeypatch.setattr(FakeChildren, "asked", [], raising=False)
    monkeypatch.setattr(cell_runs, "Children", FakeChildren)
    todo = list_cells(["gpt-tiny"], ["rtx4090"], [0.5], ["xla", "policy"])
    assert run_cells(todo, jobs=jobs, timeout_s=60.0) == 0
    assert sorted(c.label for c in FakeChildren.asked) == sorted(c.label for c in todo)
    assert FakeChildren.asked[0].contender == "unconstrained"
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(todo)
    assert "gpt-tiny rtx4090 unconstrained: 0.00 GB, 500.0 ms replayed (1 s)" in lines
    assert run_cells(todo, jobs=jobs, timeout_s=60.0) == 0
    assert len(FakeChildren.asked) == len(todo)
    assert capsys.readouterr().err == ""


def test_errors_are_counted(monkeypatch):
    monkeypatch.setattr(cell_runs, "Children", lambda: fake_children("raise SystemExit(1)"))
    assert run_cells([POLICY], jobs=1, timeout_s=60.0) == 1
    assert main(["--models", "gpt-tiny", "--devices", "t4", "--contenders", "unconstrained"]) == 1


def test_ctrl_c_says_how_to_go_on(monkeypatch, capsys):
    def interrupt(self, cell, timeout_s):
        raise KeyboardInterrupt

    monkeypatch.setattr(Children, "run", interrupt)
    assert main(["--models", "gpt-tiny", "--devices", "t4", "--contenders", "xla"]) == 130
    assert "the same command goes on" in capsys.readouterr().err


@pytest.mark.parametrize("also", [[], ["--table"]])
def test_a_wrong_name_is_said_without_a_traceback(capsys, also):
    assert main(["--models", "gpt5", *also]) == 2
    assert "`--models gpt5`" in capsys.readouterr().err
    assert main(["--models", "gpt-tiny", "--devices", "rtx9999", *also]) == 2
    assert "rtx9999" in capsys.readouterr().err


def test_a_budget_needs_the_unconstrained_step():
    result = run_cell(PLANNED)
    assert result["status"] == "error"
    assert "Run `--contenders unconstrained` first" in result["message"]


def test_infeasible_is_a_result(monkeypatch):
    keep(Cell(model="gpt-tiny", device="rtx4090", contender="unconstrained"), figures=FIGURES)

    def refuse(*args, budget, **settings):
        raise BudgetInfeasibleError(f"No plan fits {budget}.", floor_bytes=700)

    monkeypatch.setattr("jaxswap.plan", refuse)
    result = run_cell(PLANNED)
    assert (result["status"], result["floor_bytes"]) == ("infeasible", 700)
    assert result["message"] == "No plan fits 500."
    assert describe(result) == "infeasible: No plan fits 500."


def test_the_grid_is_the_default():
    arguments = parse_arguments([])
    assert arguments.shares == [0.75, 0.5, 0.35, 0.25]
    assert len(arguments.models) * len(arguments.devices) == 24
    assert arguments.contenders == ["all"]


@pytest.mark.gpu_compile
def test_a_policy_is_compiled_and_needs_less():
    # In this process, so that the results stay in this test's folder.
    unplanned = Cell(model="gpt-tiny", device="rtx4090", contender="unconstrained")
    found = {cell: run_cell(cell) for cell in (unplanned, POLICY)}
    assert {result["status"] for result in found.values()} == {"ok"}
    plain, again = (result["figures"] for result in found.values())
    assert again["device_bytes"] < plain["device_bytes"]
    assert again["step_s"] > plain["step_s"]
    json.dumps(found[POLICY])  # plain data


def test_what_is_kept_names_no_place_of_the_machine():
    said = f"{sys.prefix}/lib/pool.py:73 and {kept.BENCHMARKS.parent}/jaxswap/cli.py"
    kept.write_kept("bench/x", "s", {"said": said})
    assert kept.read_kept("bench/x", "s")["said"] == "lib/pool.py:73 and jaxswap/cli.py"
