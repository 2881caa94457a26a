"""The benchmark's tables and figures, against results made up for them."""

import math
from xml.etree import ElementTree

import hypothesis as hp
import hypothesis.strategies as hps
import pytest

from benchmarks import bench_page
from benchmarks.bench_page import BEGIN, END, make_page, make_summary, write_page
from benchmarks.bench_results import PanelResults, Row, geometric_mean
from benchmarks.panels import Panel
from benchmarks.pareto import draw_pareto, find_front, list_ticks

SHARES = (0.75, 0.5, 0.25)


def row(name: str, kind, gigabytes: float, millis: float, share=None, **extra) -> Row:
    figures = {"device_bytes": int(gigabytes * 1e9), "step_s": millis / 1e3,
               "host_bytes": 0, "stall_s": 0.0}  # fmt: skip
    return Row(
        name=name, kind=kind, share=share, result={"status": "ok", "figures": figures, **extra}
    )


def failed(name: str, kind, share, **result) -> Row:
    return Row(name=name, kind=kind, share=share, result=result)


UNPLANNED = row("unconstrained", "unplanned", 20.0, 100.0)
POLICIES = (
    row("dots_saveable", "policy", 12.0, 110.0),
    row("nothing_saveable", "policy", 6.0, 130.0),
    row("offload_names", "policy", 9.0, 200.0),
)


def results(*rows: Row) -> PanelResults:
    panel = Panel(model="gpt2-small", device="rtx4090")
    return PanelResults(panel=panel, unplanned=UNPLANNED, rows=(UNPLANNED, *POLICIES, *rows))


OWN = (
    row("genetic", "jaxswap", 14.9, 102.0, share=0.75),
    row("genetic", "jaxswap", 9.8, 143.0, share=0.5),
    failed("genetic", "jaxswap", 0.25, status="infeasible", floor_bytes=int(5.5e9)),
)


def test_the_fastest_policy_that_fits_is_compared_with():
    names = [results(*OWN).compare(share).policy for share in SHARES]
    assert [policy and policy.name for policy in names] == [
        "dots_saveable",
        "nothing_saveable",
        None,
    ]


def test_speed_is_only_that_of_plans_within_the_budget():
    over = row("genetic", "jaxswap", 15.1, 50.0, share=0.75)
    cells = [results(own).compare(0.75) for own in (OWN[0], over)]
    assert [cell.is_within for cell in cells] == [True, False]
    assert cells[0].speed_up == pytest.approx(110 / 102)
    assert cells[1].speed_up is None


def test_summary_counts_what_was_run():
    text = make_summary([results(*OWN)], SHARES)
    assert "as compiled: 2 of 3 cells; 1 are infeasible and no policy fits" in text
    assert "(0 cells of the grid were not run)" in text
    assert "fits: 1 of 2 cells where one fits" in text
    mean = math.sqrt((110 / 102) * (130 / 143))
    assert f"geometric mean of 2 cells: {mean:.3f}x" in text
    assert "At 75% of the bytes, the step over the unconstrained one: geometric mean +2.0%" in text


def test_summary_lists_every_loss():
    text = make_summary([results(*OWN)], SHARES)
    assert "gpt2-small on rtx4090 at 50%: `nothing_saveable` is faster, 130.0 against 143.0" in text
    assert "at 25%: infeasible (floor 5.50); no policy fits either" in text
    assert "at 75%" not in text
    over = row("genetic", "jaxswap", 16.5, 50.0, share=0.75)
    assert "at 75%: 10.0% over the budget; `dots_saveable` fits." in make_summary(
        [results(over)], SHARES
    )


def test_summary_counts_a_policy_that_fits_where_jaxswap_does_not_as_a_loss():
    missed = failed("genetic", "jaxswap", 0.5, status="timeout", wall_s=600.0)
    text = make_summary([results(missed)], SHARES)
    assert "fits: 0 of 1 cells where one fits" in text
    assert "Speed over that policy" not in text


def test_summary_says_what_was_not_run_and_what_is_old():
    assert "jaxswap was not run" in make_summary([results()], SHARES)
    old = row("xla", "xla", 9.0, 120.0, share=0.5, is_older=True)
    assert "1 results are of older sources" in make_summary([results(old)], SHARES)


def test_a_plan_is_beaten_in_both_bytes_and_time():
    beaten = row("genetic", "jaxswap", 9.8, 143.0, share=0.5)  # by nothing_saveable
    equal = row("genetic", "jaxswap", 12.0, 110.0, share=0.75)  # on the front
    pairs = results(beaten, equal).find_dominated()
    assert [(own.share, other.name) for own, other in pairs] == [(0.5, "nothing_saveable")]


def test_tables_say_what_became_of_each_cell():
    page = make_page(
        [results(*OWN, row("xla", "xla", 10.2, 120.0, share=0.5),
                 failed("exact", "jaxswap", 0.5, status="timeout", wall_s=600.0))],
        SHARES,
    )  # fmt: skip
    assert (
        "| 75% | 15.00 | 14.90 | 102.0 | 1.020x | `dots_saveable` | 12.00 | 110.0 | 1.078x |"
        in page
    )
    assert "| `xla` | not run | 10.20 (over), 120.0 | not run |" in page
    assert "| `exact` | not run | timeout | not run |" in page
    assert "| `genetic` | 14.90, 102.0 | 9.80, 143.0 | infeasible (floor 5.50) |" in page
    widths = [line.count("|") for line in page.splitlines() if line.startswith("| 75%")]
    assert widths == [10]


def test_no_results_is_said():
    assert "No results yet" in make_page([], SHARES)


def test_writing_keeps_what_is_outside_the_markers(tmp_path, monkeypatch):
    doc = tmp_path / "page.md"
    monkeypatch.setattr(bench_page, "FIGURES", tmp_path / "benchmarks")
    monkeypatch.setattr(bench_page, "load_panels", lambda *asked: [results(*OWN)])
    doc.write_text(f"# Mine\n\n{BEGIN}\nold\n{END}\n\nMine too.\n")
    for _ in range(2):
        write_page(["gpt2-small"], ["rtx4090"], SHARES, doc)
    text = doc.read_text()
    assert text.startswith("# Mine\n")
    assert text.endswith(f"{END}\n\nMine too.\n")
    assert "old" not in text
    assert text.count("## Summary") == 1
    name = "benchmarks/gpt2-small-rtx4090.svg"
    assert f"]({name})" in text
    assert (tmp_path / name).read_text().startswith("<svg")


# Figures


@hp.given(hps.lists(hps.tuples(hps.integers(1, 20), hps.integers(1, 20)), min_size=1, max_size=12))
def test_front_is_what_nobody_beats(points):
    rows = [row(str(i), "policy", gb, ms) for i, (gb, ms) in enumerate(points)]
    front = {(r.device_bytes, r.step_s) for r in find_front(rows)}
    # The definition, spelled out: nobody else is as small and as fast.
    places = {(r.device_bytes, r.step_s) for r in rows}
    nobody_beats = {
        p for p in places if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in places)
    }
    assert front == nobody_beats


@hp.given(hps.floats(0.01, 1e4), hps.floats(0.0, 0.99))
def test_ticks_cover_the_values_and_are_few(highest, part):
    lowest = part * highest
    ticks = list_ticks(highest, lowest)
    assert ticks[0] <= lowest
    assert ticks[-1] >= highest
    assert 2 <= len(ticks) <= 9
    assert ticks == sorted(set(ticks))


def test_figure_has_a_mark_for_every_compiled_step():
    drawn = results(*OWN)
    svg = ElementTree.fromstring(draw_pareto(drawn))
    space = "{http://www.w3.org/2000/svg}"
    titles = [title.text for title in svg.iter(f"{space}title")]
    assert len(titles) == sum(r.is_ok for r in drawn.rows)
    assert "genetic at 75%: 14.90 GB, 102.0 ms" in titles
    width, height = (float(x) for x in svg.attrib["viewBox"].split()[2:])
    for circle in svg.iter(f"{space}circle"):
        assert 0 < float(circle.attrib["cx"]) < width
        assert 0 < float(circle.attrib["cy"]) < height
    left_to_right = {c.attrib["cx"] for c in svg.iter(f"{space}circle")}
    assert len(left_to_right) == 3  # the legend's and the two plans'


def test_geometric_mean():
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert math.isnan(geometric_mean([]))
