"""The batch table: what is read from a choice, and when a row is good."""

import pytest

from benchmarks import batch_table, kept
from benchmarks.batch_table import format_table, is_good, main, summarise
from jaxswap._batch_choice import BatchChoice, BatchRow
from jaxswap.model.simulate import Forecast
from jaxswap.plan.plan import Plan


def make_row(size, *, fits, replayed=None):
    return BatchRow(
        batch_size=size, unplanned_bytes=size, fits=fits, min_swap_bytes=0, unplanned=1.0,
        ideal=1.0, replayed=replayed,
    )  # fmt: skip


def make_choice(rows, chosen):
    plan = Plan(decisions={}, values={}, forecast=Forecast(peak_bytes=1, step_s=1.0),
                budget_bytes=1, device="t4")  # fmt: skip
    return BatchChoice(batch_size=chosen, plan=plan, min_swap_bytes=0, table=tuple(rows),
                       reason="because", budget_bytes=1, device="t4")  # fmt: skip


def make_line(**changes):
    line = {"model": "m", "device": "t4", "largest": 16, "before": 100.0, "chosen": 24,
            "after": 120.0, "spent_s": 9.0}  # fmt: skip
    return line | changes


def test_the_largest_that_fits_is_one_that_was_compiled():
    rows = [make_row(8, fits=True, replayed=90.0), make_row(16, fits=True, replayed=100.0),
            make_row(20, fits=True), make_row(24, fits=False, replayed=120.0)]  # fmt: skip
    found = summarise(make_choice(rows, 24))
    assert (found["largest"], found["before"]) == (16, 100.0)
    assert (found["chosen"], found["after"], found["compiled"]) == (24, 120.0, 3)


def test_where_nothing_fits_as_it_is_there_is_no_gain_to_tell():
    found = summarise(make_choice([make_row(8, fits=False, replayed=5.0)], 8))
    assert (found["largest"], found["before"]) == (None, None)
    assert "| none |" in format_table([make_line(largest=None, before=None)])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"after": 99.9}, False),  # less than without a plan
        ({"rates": {16: 100.0, 32: 122.0}}, True),
        ({"rates": {16: 100.0, 32: 123.0}}, False),
    ],
)
def test_a_row_is_good_if_nothing_is_lost(changes, expected):
    assert is_good(make_line(**changes)) == expected


def test_the_table_says_what_was_gained():
    text = format_table([make_line(), make_line(chosen=16, after=100.0, rates={16: 100.0})])
    assert "| m | t4 | 16 | 100.0 | 24 | 120.0 | +20.0% |  | 9 s |" in text
    assert "a larger batch than fits pays in 1" in text
    assert "from +0.0% to +20.0%" in text
    assert "1 of 1 rows" in text


def test_nothing_runs_where_only_the_table_is_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    assert main(["--table"]) == 0
    assert "0 rows" in capsys.readouterr().out


def test_rows_are_kept_and_all_sizes_added_to_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    line = make_line(model="vgg16", planner="exact", sizes=[16, 24], reason="because")
    monkeypatch.setattr(batch_table, "measure", lambda panel, planner: line)
    monkeypatch.setattr(batch_table, "measure_all", lambda panel, row: {"24": 121.0})
    asked = ["--models", "vgg16", "--devices", "t4"]
    assert main(asked) == 0
    monkeypatch.setattr(batch_table, "measure", None)  # it is not asked again
    assert "because" in capsys.readouterr().out
    assert main([*asked, "--exhaustive"]) == 0
    assert "| 24: 121.0, of 1 |" in capsys.readouterr().out
    monkeypatch.setattr(batch_table, "digest_jaxswap", lambda: "changed")
    assert main([*asked, "--table"]) == 0
    assert "1 rows are of older sources" in capsys.readouterr().out
