"""What a report writes: every form reads back, and a file is there whole or not at all."""

import csv
import dataclasses
import io
import itertools
import json
import pathlib
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict

import hypothesis as hp
import hypothesis.strategies as hps
import pytest
from report_samples import FRONT, NASTY, SIZE, make_plan, make_program, make_sample

from jaxswap._errors import BadArgumentError
from jaxswap._files import write_whole
from jaxswap.model.simulate import Forecast
from jaxswap.plan.plan import Plan
from jaxswap.program.ir import Program
from jaxswap.report import Report
from jaxswap.report.figures import FIGURES, draw
from jaxswap.report.plots import Frame, nice_ticks, place_labels, thin_steps
from jaxswap.report.rows import Slice, Streams
from jaxswap.report.tables import TABLES, table_of, to_csv, to_json
from jaxswap.report.trace_events import THREADS, to_trace_json


@pytest.fixture(scope="module")
def sample():
    return make_sample()


@pytest.fixture
def empty():
    forecast = Forecast(peak_bytes=7, step_s=1e-3)
    plan = Plan(decisions={}, values={}, forecast=forecast, budget_bytes=8, device="no such device")
    program = Program(ops=(), values=(), candidates=(), base_bytes=7)
    return Report.of(program=program, plan=plan)


# ---- files -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["r.html", "r.json", "r.csv", "r.trace.json", "r.svg", "R.SVG"])
def test_the_suffix_says_what_is_written(sample, tmp_path, name):
    sample.save(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    text = (tmp_path / name).read_text("utf-8")
    starts = {".html": "<!doctype html>", ".csv": "name,action", ".svg": "<svg ", ".json": "{"}
    assert text.startswith(starts[pathlib.Path(name).suffix.lower()])
    assert ("traceEvents" in text) == (name == "r.trace.json")


@pytest.mark.parametrize("name", ["report.pdf", "report", ".html", "html"])
def test_another_suffix_is_an_error_that_names_those_there_are(sample, tmp_path, name):
    with pytest.raises(BadArgumentError, match=r"saved as one of \*\.html, \*\.json, \*\.csv"):
        sample.save(tmp_path / name)


def test_a_path_that_cannot_be_written_is_an_error_that_says_why(sample, tmp_path):
    with pytest.raises(BadArgumentError, match=r"there is no folder '.*absent': make it first"):
        sample.save(tmp_path / "absent" / "r.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(BadArgumentError, match="it is a folder: give the name of a file in it"):
        sample.save(tmp_path / "folder.html")


def test_a_folder_that_is_not_writable_is_an_error(sample):
    if not pathlib.Path("/proc/self").exists():
        pytest.skip("needs a folder that nobody can write to")
    with pytest.raises(BadArgumentError, match=r"'/proc' is not writable for you .*choose another"):
        sample.save("/proc/r.html")


def test_an_interrupted_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "r.html"
    path.write_text("old")
    whole = pathlib.Path.write_bytes

    def half(self, data):
        whole(self, data[: len(data) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(pathlib.Path, "write_bytes", half)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new text")
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]
    assert path.read_text() == "old"


def test_a_file_is_as_readable_as_any_other(tmp_path):
    write_whole(tmp_path / "ours", "x")
    (tmp_path / "theirs").write_text("x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


# ---- tables ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_every_table_reads_back_from_csv_and_json(sample, name):
    headings, rows = table_of(sample, name)
    read = list(csv.reader(io.StringIO(to_csv(sample, name))))
    assert read[0] == list(headings)
    assert len(read) - 1 == len(rows) == len(json.loads(to_json(sample))["tables"][name])


def test_json_has_the_facts(sample):
    facts = json.loads(to_json(sample, with_ops=False))
    assert facts["format"] == "jaxswap-report"
    assert facts["fits"] is True
    assert facts["budget_bytes"] == 6 * SIZE
    assert "memory" not in facts["tables"]
    assert facts["tables"]["decisions"][0]["action"] == "offload"


def test_a_spreadsheet_runs_nothing():
    plan = make_plan(2, label="=HYPERLINK(1)_{}")
    text = to_csv(Report.of(program=make_program(2), plan=plan))
    assert "'=HYPERLINK(1)_0" in text


@pytest.mark.parametrize(
    ("name", "part", "message"),
    [
        ("r.csv", "nothing", "is no table of a report: write one of 'decisions', 'groups'"),
        ("r.svg", "nothing", "is no figure of a report: write one of 'memory', 'timeline'"),
        ("r.html", "memory", "only a table .* or a figure .* is saved alone; leave `part` out"),
    ],
)
def test_an_unknown_part_is_an_error(sample, tmp_path, name, part, message):
    with pytest.raises(BadArgumentError, match=message):
        sample.save(tmp_path / name, part=part)


def test_a_table_of_ones_own_choice(sample, tmp_path):
    sample.save(tmp_path / "peak.csv", part="peak")
    assert "arguments and outputs" in (tmp_path / "peak.csv").read_text()


# ---- figures ---------------------------------------------------------------------------


@pytest.mark.parametrize("part", [None, *FIGURES])
def test_every_figure_is_well_formed_and_within_its_frame(sample, part):
    root = ET.fromstring(draw(sample, part))
    assert root.attrib["height"] == str(360 * (4 if part is None else 1))
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        if rect.attrib["width"] != "100%":
            assert float(rect.attrib["width"]) >= 0
            assert float(rect.attrib["x"]) + float(rect.attrib["width"]) <= 960 + 1e-6


def test_what_shares_half_a_pixel_is_drawn_once():
    few = draw(make_sample(), "timeline").count("<rect")
    plan = make_plan(3000)
    many = draw(make_sample(3000, plan=plan), "timeline").count("<rect")
    assert few < 40
    assert many < 3 * 2 * 960


def test_figures_have_the_budget_and_the_peaks(sample):
    text = draw(sample, "memory")
    assert "budget 96.00 MiB" in text
    assert "as written: 144.00 MiB (replayed)" in text
    assert "does not fit as written" in draw(sample, "batches")
    assert "dots_saveable" in draw(sample, "front")


def test_a_report_without_figures_says_so(empty):
    with pytest.raises(BadArgumentError, match="has nothing to draw"):
        draw(empty)
    with pytest.raises(BadArgumentError, match="has no figure 'front'"):
        draw(empty, "front")


@hp.given(hps.lists(hps.tuples(hps.floats(0, 1), hps.floats(0, 1)), max_size=6))
def test_labels_stay_in_the_frame_and_do_not_cover_each_other(points):
    frame = Frame(right=1.0, top=1.0)
    anchors = [(frame.x(x), frame.y(y), f"policy {k}") for k, (x, y) in enumerate(points)]
    boxes = []
    for (_, _, text), (left, base) in zip(anchors, place_labels(anchors, frame), strict=True):
        assert frame.left <= left
        assert left + 6.6 * len(text) <= frame.end + 1e-6
        boxes.append((left, base, left + 6.6 * len(text)))
    # Few labels always find a place, however close their points are.
    for a, b in itertools.combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or abs(a[1] - b[1]) >= 13


def test_the_legend_of_the_front_says_that_policies_are_forecast(sample):
    drawn = draw(sample, "front")
    assert "JAX&#x27;s policies (forecast, at best)" in drawn
    compiled = dataclasses.replace(FRONT[2], how="compiled")
    both = draw(make_sample(fronts=[*FRONT, compiled]), "front")
    assert "JAX&#x27;s policies (forecast, at best; compiled)" in both


def test_a_policy_that_is_far_slower_is_at_the_edge_and_says_its_time():
    slow = dataclasses.replace(FRONT[2], step_s=1.0)
    drawn = draw(make_sample(fronts=[FRONT[0], slow, FRONT[3]]), "front")
    assert "dots_saveable ↑ 1 s" in drawn
    assert "↑" not in draw(make_sample(), "front")


def test_figures_escape_labels():
    point = dataclasses.replace(make_sample().fronts[2], label=NASTY)
    figure = ET.fromstring(draw(make_sample(fronts=[point]), "front"))
    # It is there as text, and nothing of it became an element or an attribute.
    assert NASTY in "".join(figure.itertext())
    assert not [e for e in figure.iter() if "script" in e.tag or "onerror" in e.attrib]


def test_png_is_a_picture_twice_the_size(sample, tmp_path):
    pytest.importorskip("resvg_py", reason="needs the extra `report`")
    sample.save(tmp_path / "r.png", part="memory")
    data = (tmp_path / "r.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (1920, 720)


def test_png_without_its_package_says_what_to_install(sample, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(BadArgumentError, match=r"pip install 'jaxswap\[report\]'.*save as \.svg"):
        sample.save(tmp_path / "r.png")
    assert not list(tmp_path.iterdir())


@hp.given(hps.lists(hps.tuples(hps.floats(0, 1e-3), hps.integers(0, 9)), min_size=1, max_size=60))
def test_thinned_curves_keep_their_extremes(steps):
    steps = steps * 60  # enough to be thinned
    starts = list(itertools.accumulate(gap for gap, _ in steps))
    heights = [height for _, height in steps]
    points = thin_steps(starts, heights)
    assert {min(heights), max(heights)} <= {y for _, y in points}
    assert points == sorted(points, key=lambda p: p[0])
    assert points[-1] == (starts[-1], heights[-1])
    assert set(points) <= set(zip(starts, map(float, heights), strict=True))


@hp.given(hps.floats(0, 1e6), hps.floats(1e-6, 1e6))
def test_ticks_are_few_and_inside(low, span):
    found = nice_ticks(low, low + span)
    assert len(found) <= 8
    assert all(low - 1e-6 * (low + span) <= t <= (low + span) * (1 + 1e-6) for t in found)


# ---- notebooks -------------------------------------------------------------------------


def test_a_notebook_gets_markup_without_code(sample, empty):
    shown = sample._repr_html_()
    assert 'src="data:image/svg+xml;base64,' in shown
    assert "<script" not in shown
    assert "<style" not in shown
    assert "96.00 MiB" in shown
    assert "<img" not in empty._repr_html_()
    assert "<script" not in make_sample(title=NASTY)._repr_html_()


# ---- trace events ----------------------------------------------------------------------


def check_trace(text):
    """The trace-event format, as far as we use it; and no two slices of a thread overlap."""
    data = json.loads(text)
    assert set(data) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert data["displayTimeUnit"] in ("ms", "ns")
    slices = defaultdict(list)
    for event in data["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        kind = event["ph"]
        if kind == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            assert set(event["args"]) <= {"name", "sort_index"}
            continue
        assert event["ts"] >= 0
        if kind == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
        else:
            assert kind == "X"
            assert event["dur"] >= 0
            slices[event["pid"], event["tid"]].append(event)
    for events in slices.values():
        for first, second in itertools.pairwise(sorted(events, key=lambda e: e["ts"])):
            assert first["ts"] + first["dur"] <= second["ts"] + 1e-6
    return slices


def test_the_trace_has_a_thread_per_stream(sample):
    slices = check_trace(to_trace_json(sample))
    assert set(slices) == {(1, 1), (2, THREADS["compute"]), (2, THREADS["to_host"]),
                           (2, THREADS["to_device"])}  # fmt: skip
    assert len(slices[2, THREADS["to_host"]]) == 3
    total_us = sum(e["dur"] for e in slices[1, 1])
    expected = sum(s.duration_s for s in sample.streams_before.slices)
    assert total_us == pytest.approx(expected * 1e6)


def test_a_forecast_has_a_trace_with_the_same_threads():
    text = to_trace_json(make_sample(is_verified=False))
    slices = check_trace(text)
    assert set(slices) == {(1, 1), (2, THREADS["compute"]), (2, THREADS["to_host"]),
                           (2, THREADS["to_device"])}  # fmt: skip
    names = [e["args"]["name"] for e in json.loads(text)["traceEvents"]
             if e["name"] == "process_name"]  # fmt: skip
    assert names == ["as written (forecast)", "planned (forecast)"]


@hp.given(hps.lists(hps.tuples(hps.floats(0, 1e-4), hps.floats(0, 1e-4)), max_size=30))
def test_rounding_makes_no_slices_overlap(gaps):
    slices, now_s = [], 0.0
    for gap_s, duration_s in gaps:
        now_s += gap_s
        slices.append(
            Slice(stream="compute", name="k", label="", source="", phase="forward",
                  start_s=now_s, duration_s=duration_s, size_bytes=1)
        )  # fmt: skip
        now_s += duration_s
    streams = Streams(how="replayed", step_s=now_s, slices=tuple(slices))
    report = dataclasses.replace(make_sample(is_verified=False), streams_before=streams)
    check_trace(to_trace_json(report))
