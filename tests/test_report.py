"""What a report says: its rows against what they are made from, and its text."""

import dataclasses
import itertools

import hypothesis as hp
import hypothesis.strategies as hps
import pytest
from programs import UNIT, chain, programs
from report_samples import (
    BATCHES,
    FRONT,
    SIZE,
    make_plan,
    make_program,
    make_sample,
    module_text,
    verified_of,
)

from jaxswap.apply.decision import ACTIONS, Decision
from jaxswap.model.simulate import Forecast, simulate
from jaxswap.model.timeline import build_timeline
from jaxswap.plan.plan import Plan
from jaxswap.program.ir import Program
from jaxswap.report import Report
from jaxswap.report.build import find_floor, group_decisions
from jaxswap.report.curves import mark_recomputed, mixes_passes, streams_of_verified
from jaxswap.report.names import group_holders, group_of, shorten_op_name, shorten_source
from jaxswap.report.rows import Holder
from jaxswap.report.words import agreement, count_of, format_change, verdict


@pytest.fixture(scope="module")
def sample():
    return make_sample()


# ---- names -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "group", "block"),
    [
        ("GPT/Block_3/Dense_0", "GPT/Block_*/Dense_0", "GPT/Block_*"),
        ("GPT/Block_11", "GPT/Block_*", "GPT/Block_*"),
        ("Stage_1/Block_2/Conv_0", "Stage_*/Block_*/Conv_0", "Stage_*/Block_*"),
        ("GPT/embed", "GPT/embed", "GPT"),
        ("", "", ""),
    ],
)
def test_blocks_are_numbers_and_siblings_are_not(label, group, block):
    assert group_of(label) == (group, block)


def test_names_lose_what_only_jax_and_the_machine_care_for():
    assert shorten_op_name("jit(step)/transpose(jvp(GPT))/Block_0/mul") == "GPT/Block_0/mul"
    assert shorten_op_name("jit(step)/jvp()/checkpoint(Block)/add") == "Block/add"
    assert shorten_op_name("") == ""
    assert shorten_source("/home/ada/secret/models/gpt.py:3") == "models/gpt.py:3"
    assert shorten_source("C:\\users\\ada\\models\\gpt.py:3") == "models/gpt.py:3"


def test_what_blocks_have_in_common_is_one_row():
    holders = [
        Holder(label=label, source="a.py:1", size_bytes=size, first=0, last=1)
        for label, size in (("B_0/x", 1), ("B_1/x", 2), ("head", 7))
    ]
    assert group_holders(holders) == [(1, "head", "a.py:1", 7), (2, "B_*/x", "a.py:1", 3)]


# ---- figures and decisions -------------------------------------------------------------


def test_figures_are_those_of_the_forecast_and_the_compiler(sample):
    plan = make_plan()
    found = {(f.name, f.how): (f.before, f.after) for f in sample.figures}
    assert found["device memory", "compiled"] == (6 * SIZE, 6 * SIZE)
    assert found["device memory", "forecast"] == (9 * SIZE, plan.forecast.peak_bytes)
    assert found["step time", "forecast"] == (0.02, 0.03)
    before = verified_of(module_text(6, is_planned=False)).timeline
    after = verified_of(module_text(6, is_planned=True)).timeline
    assert found["step time", "replayed"] == (before.step_s, after.step_s)
    assert found["copied to the host", "replayed"] == (0, 3 * SIZE)
    assert ("step time", "measured") not in found


def test_the_best_figure_is_the_one_nearest_to_a_device(sample):
    assert sample.best("device memory").how == "compiled"
    assert sample.best("step time").how == "replayed"
    assert sample.best("recomputing").how == "forecast"
    assert sample.best("happiness") is None
    measured = verified_of(module_text(6, is_planned=True), time_is="measured")
    assert make_sample(after=measured, is_verified=False).best("step time").how == "measured"


def test_a_forecast_that_is_confirmed_says_so():
    plan = dataclasses.replace(make_plan(), is_confirmed=True)
    report = make_sample(is_verified=False, plan=plan)
    assert "(forecast), confirmed by the compiler when it was planned" in verdict(report)
    assert "does not fit its budget" in verdict(make_sample(plan=make_plan(budget_bytes=SIZE)))


def test_decisions_cost_what_their_tracks_cost(sample):
    timeline = build_timeline(make_program(), verified_of(module_text(1, is_planned=False)).device)
    for row, track in zip(sample.decisions, timeline.tracks, strict=True):
        expected = {"offload": track.out_s + track.in_s, "recompute": track.recompute_s, "keep": 0}
        assert row.seconds == expected[row.action]
        assert row.window_ops == (2 if row.action == "offload" else 0)
    assert [row.source for row in sample.decisions][:2] == ["nets/net.py:40", "nets/net.py:41"]


def test_groups_hold_every_decision_once(sample):
    assert sum(g.count for g in sample.groups) == len(sample.decisions)
    assert sum(g.size_bytes for g in sample.groups) == sum(r.size_bytes for r in sample.decisions)
    first = sample.groups[0]
    assert (first.action, first.count, first.label) == ("offload", 3, "Net/Block_*/Dense_0")


def test_a_block_that_does_not_repeat_goes_by_its_own_name():
    plan = make_plan(1, label="Net/Head_{}/Dense_7")
    report = Report.of(program=make_program(1), plan=plan)
    assert [g.block for g in group_decisions(report.decisions)] == ["Net/Head_0"]


def test_an_unknown_device_leaves_seconds_and_floor_open():
    plan = dataclasses.replace(make_plan(), device="a box under my desk")
    report = Report.of(program=make_program(), plan=plan)
    assert report.floor is None
    assert report.decisions[0].seconds is None
    assert "–" in report.to_text()


def test_refusals_are_counted_by_reason():
    refused = {f"0/{i}": f"made again from '0/{i + 9}' by what reads it" for i in range(4)}
    program = dataclasses.replace(make_program(), refused={**refused, "a0": "a result of the step"})
    report = Report.of(program=program, plan=make_plan())
    assert [(r.count, r.size_bytes) for r in report.refusals] == [(1, SIZE), (4, 0)]
    assert report.refusals[1].reason == "made again from another value by what reads it"
    assert report.refusals[0].examples[0].startswith("a0")
    text = report.to_text()
    assert "Not decided about" in text
    assert "a result of the step" in text


# ---- floor -----------------------------------------------------------------------------


@hp.given(hps.data())
def test_no_plan_goes_below_the_floor(data):
    program = data.draw(programs())
    actions = hps.builds(
        Decision,
        action=hps.sampled_from(ACTIONS),
        window_ops=hps.integers(1, 3),
        reload_ahead_ops=hps.integers(0, 2),
    )
    decisions = {name: data.draw(actions) for name in program.candidate_names}
    floor = find_floor(program, build_timeline(program, UNIT))
    assert floor.size_bytes <= simulate(program, decisions, UNIT).peak_bytes
    assert floor.size_bytes >= program.base_bytes or any(o.scratch_bytes < 0 for o in program.ops)


def test_the_floor_of_a_chain_is_one_layer_with_its_neighbour():
    floor = find_floor(chain([5, 8, 2], base_bytes=100), build_timeline(chain([5, 8, 2]), UNIT))
    assert floor.size_bytes - 5 - 8 in (0, 100)
    assert floor.name in ("f1", "b1", "b0")
    assert sum(h.size_bytes for h in floor.holders) >= 13


# ---- curves ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_verified", [True, False])
def test_curves_run_forward_in_time(is_verified):
    report = make_sample(is_verified=is_verified)
    for curve in (report.curve_before, report.curve_after):
        assert len(curve.names) == len(curve.bytes_at) == len(curve.starts_s)
        assert all(a <= b for a, b in itertools.pairwise(curve.starts_s))
        assert curve.starts_s[-1] <= curve.step_s
        assert curve.how == ("replayed" if is_verified else "forecast")


def test_a_compiled_curve_is_the_sum_of_what_is_alive(sample):
    for curve in (sample.curve_before, sample.curve_after):
        for op, size_bytes in enumerate(curve.bytes_at):
            alive = sum(holder.size_bytes for holder in curve.alive_at(op))
            assert size_bytes == curve.base_bytes + alive


def test_a_plan_from_a_file_gets_its_curve_again(tmp_path):
    program = chain([SIZE] * 4)
    forecast = simulate(program, {}, verified_of(module_text(1, is_planned=False)).device)
    made = dataclasses.replace(make_plan(4), forecast=forecast, decisions={}, values={})
    made.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.forecast.bytes_at == ()
    report = Report.of(program=program, plan=loaded)
    assert report.curve_after.bytes_at == forecast.bytes_at


def test_forward_kernels_behind_the_turn_are_recomputed(sample):
    phases = {s.name: s.phase for s in sample.streams_after.slices}
    assert {n for n, p in phases.items() if p == "recompute"} == {"r1", "r3"}
    assert phases["f0"] == "forward"
    assert phases["b0"] == "backward"
    assert phases["update"] == "update"
    # The last layer is made again before the first backward kernel: it counts as forward.
    assert phases["r5"] == "forward"


def test_a_step_that_mixes_its_passes_is_left_alone():
    after = streams_of_verified(verified_of(module_text(6, is_planned=True)))
    program = make_program()
    assert not mixes_passes(program)
    mixed = dataclasses.replace(program, ops=program.ops + program.ops)
    assert mixes_passes(mixed)
    assert mark_recomputed(after, mixed) == after
    assert mark_recomputed(after, program) != after
    assert not mixes_passes(Program(ops=(), values=(), candidates=()))


# ---- text ------------------------------------------------------------------------------


def test_the_text_answers_every_question(sample):
    text = sample.to_text()
    for said in (
        "fits its budget: 96.00 MiB of 96.00 MiB (compiled)",
        "device memory (compiled)",
        "step time (replayed)",
        "Peak, as written",
        "Peak, planned",
        "7 ×  Net/Block_*/dot_general",
        "offload    3 values, 48.00 MiB",
        "nets/net.py:40",
        "The floor",
        "No plan goes below",
        "How far is it true",
    ):
        assert said in text
    assert "\x1b" not in text
    assert str(sample) == text  # standard output is no terminal here


def test_a_terminal_gets_styles(sample, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in str(sample)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in str(sample)


def test_forecast_and_compiled_stand_side_by_side(sample):
    rows = {(name, step): row for name, step, *row in agreement(sample)}
    # The forecast was 80 MiB and the compiler says 96.
    assert rows["device memory", "planned"] == [
        "80.00 MiB", "96.00 MiB (compiled)", "–", "−16.7 %",
    ]  # fmt: skip
    assert not agreement(make_sample(is_verified=False))


def test_an_empty_plan_says_that_nothing_changes():
    plan = Plan(
        decisions={}, values={}, forecast=Forecast(peak_bytes=7, step_s=1e-3), budget_bytes=8,
        device="t4",
    )  # fmt: skip
    report = Report.of(program=Program(ops=(), values=(), candidates=(), base_bytes=7), plan=plan)
    assert "There was nothing to decide about." in report.to_text()
    kept = dataclasses.replace(make_plan(1), decisions=dict(make_plan(1).decisions))
    assert "nothing is changed" in Report.of(program=make_program(1), plan=kept).to_text()


def test_markup_in_a_label_is_text():
    plan = make_plan(2, label="[bold]x[/bold]_{}")
    assert "[bold]x" in Report.of(program=make_program(2), plan=plan).to_text()


def test_notes_say_what_is_not_exact():
    stays = dataclasses.replace(make_plan().forecast, stays=("a0",))
    report = make_sample(is_verified=False, plan=dataclasses.replace(make_plan(), forecast=stays))
    assert any("was not compiled" in note for note in report.notes)
    assert "1 value stays although decided otherwise: wanted before leaving" in report.notes
    assert report.decisions[0].stays
    large = dataclasses.replace(make_plan().forecast.baseline, peak_bytes=2**50)
    forecast = dataclasses.replace(make_plan().forecast, baseline=large)
    report = make_sample(plan=dataclasses.replace(make_plan(), forecast=forecast))
    assert any("XLA's own rematerialisation" in note for note in report.notes)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (2, 3, "+50.0 %"),
        (4, 3, "−25.0 %"),
        (0, 3, ""),
        (None, 3, ""),
        (2, None, ""),
        (2, 2, "+0.0 %"),
    ],
)
def test_changes_are_in_percent_of_what_was(before, after, said):
    assert format_change(before, after) == said


def test_counts_are_english():
    assert [count_of(n, "value") for n in (0, 1, 2)] == ["0 values", "1 value", "2 values"]


def test_fronts_and_batches_are_kept_as_given(sample):
    assert sample.fronts == FRONT
    assert sample.batches == BATCHES
