"""The planner table: what counts as near enough, as beaten and as no answer."""

import math

import pytest

from benchmarks import kept, planner_table
from benchmarks.panels import Panel


def make_row(bound_s=None, best_paper=None, **seconds):
    return {
        "model": "m", "device": "t4", "share": 0.5, "unplanned_s": 1.0, "seconds": seconds,
        "bound_s": bound_s, "best_paper": best_paper,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (make_row(genetic=1.1, exact=1.0), 0.1),
        (make_row(bound_s=0.99, genetic=0.99, exact=1.0), 0.0),  # closed: the bound counts
        (make_row(bound_s=0.5, genetic=1.0, exact=1.0), 0.0),  # open: it does not
        (make_row(exact=1.0), math.inf),
        (make_row(genetic=1.0), None),
        (make_row(), None),
    ],
)
def test_excess_is_over_the_better_of_exact_and_its_closed_bound(row, expected):
    assert planner_table.excess(row) == (None if expected is None else pytest.approx(expected))


def test_a_paper_beats_what_is_slower_or_does_not_fit():
    assert planner_table.is_beaten(make_row(best_paper="lms", genetic=1.1, lms=1.0))
    assert planner_table.is_beaten(make_row(best_paper="lms", lms=1.0))
    assert not planner_table.is_beaten(make_row(best_paper="lms", genetic=1.0, lms=1.0))
    assert not planner_table.is_beaten(make_row(genetic=1.0))


def test_the_table_says_what_it_comes_to():
    rows = [make_row(best_paper="lms", genetic=1.1, exact=1.0, lms=1.05), make_row()]
    text = planner_table.format_table(rows)
    assert "| m | t4 | 50% | 1000.0 | 1100.0 | 1000.0 |  | `lms` 1050.0 |" in text
    assert "2 problems; 1 have no plan that fits." in text
    assert "0 of 1; worst +10.0%" in text
    assert "faster than `genetic`: 1." in text


def test_a_small_panel_is_measured_and_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    monkeypatch.setattr(planner_table, "PAPERS", ("chen",))
    asked = ["--models", "gpt-tiny", "--devices", "t4", "--shares", "0.8"]
    planner_table.main(asked)
    first = capsys.readouterr().out
    assert "gpt-tiny on t4" in first
    planner_table.main(asked)
    assert capsys.readouterr().out == first.split("\n", 1)[1]
    (row,) = planner_table.measure(Panel(model="gpt-tiny", device="t4"), [0.8])
    assert row["seconds"]["genetic"] <= row["seconds"]["exact"] * (1 + 1e-9)
    assert row["seconds"]["genetic"] >= row["bound_s"] * (1 - 1e-9)
