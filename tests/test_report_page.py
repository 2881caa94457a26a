"""The page, opened in a real browser: it draws, answers to the mouse, sorts, and stays alone."""

import dataclasses
import json
import re

import pytest
from report_samples import NASTY, make_plan, make_sample, module_text, verified_of

from benchmarks.browser import Browser, find_chromium
from jaxswap.report.html import render_page
from jaxswap.report.page_data import to_page_json
from jaxswap.report.rows import DecisionRow

NUM_LARGE_LAYERS = 6000


@pytest.fixture(scope="module")
def browser():
    executable = find_chromium()
    if executable is None:
        pytest.skip("needs Chromium on this machine: `apt-get install chromium`")
    with Browser(executable) as started:
        yield started


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("page") / "report.html"
    make_sample().save(found)
    return found


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A step of more than 20 000 instructions, with 6 000 decisions."""
    plan = make_plan(NUM_LARGE_LAYERS, label="Net/Stage_{}/Dense_0")
    found = tmp_path_factory.mktemp("large") / "report.html"
    report = make_sample(NUM_LARGE_LAYERS, plan=plan)
    assert len(report.curve_after.names) > 20_000
    report.save(found)
    return found


def box_of(page, element):
    expression = f"(() => {{ const e = document.getElementById('{element}'); e.scrollIntoView(); "
    expression += (
        "const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()"
    )
    return page.evaluate(expression)


def point_at(page, element, share):
    left, top, width, height = box_of(page, element)
    page.mouse("mouseMoved", left + share * width, top + height / 2)


def text_of(page, element):
    return page.evaluate(f"document.getElementById('{element}').innerText")


def cells(page, column):
    expression = "[...document.querySelectorAll('#rows tr')].map((r) => r.cells[{}].textContent)"
    return page.evaluate(expression.format(column))


# ---- without a browser -----------------------------------------------------------------


def test_the_page_names_no_address_and_is_one_file(path):
    text = path.read_text("utf-8")
    without_names = text.replace("http://www.w3.org/2000/svg", "")  # a namespace, never loaded
    assert not re.search(r"https?://|src=|@import|url\((?!#)", without_names)
    assert "default-src 'none'" in text


def test_no_text_can_end_the_data():
    plan = make_plan(3, label=NASTY + "_{}")
    data = to_page_json(make_sample(3, plan=plan, title=NASTY))
    assert "<" not in data
    assert "\u2028" not in data
    read = json.loads(data)
    fields = [field.name for field in dataclasses.fields(DecisionRow)]
    assert read["decisions"][0][fields.index("label")] == NASTY + "_0"


def test_every_number_of_a_card_says_how_it_was_found(path):
    cards = path.read_text("utf-8").split('<div class="card">')[1:]
    assert len(cards) == 4
    for card in cards:
        assert re.search(r'class="how (compiled|replayed|forecast|measured)"', card)


# ---- in a browser ----------------------------------------------------------------------


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_draws_without_an_error_and_without_a_request(browser, path, width, is_dark):
    page = browser.open(path, width=width, is_dark=is_dark)
    assert page.evaluate("document.documentElement.dataset.ready") == "yes"
    for side in ("before", "after"):
        assert page.evaluate(f"document.getElementById('line-{side}').getBBox().height") > 20
    assert page.evaluate("document.querySelectorAll('#streams-plot rect.to_host').length") == 3
    assert page.evaluate("document.querySelectorAll('#front circle').length") == 4
    assert page.evaluate("document.querySelectorAll('#batches path').length") > 2
    # Nothing is wider than the window: a phone scrolls in one direction only.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.errors == []
    assert page.requests == []


def test_dark_mode_is_dark(browser, path):
    expression = "getComputedStyle(document.body).backgroundColor"
    light = browser.open(path).evaluate(expression)
    dark = browser.open(path, is_dark=True).evaluate(expression)
    assert light == "rgb(246, 247, 250)"
    assert dark == "rgb(15, 19, 26)"


def test_pointing_at_the_curve_says_which_op_runs_and_what_is_alive(browser, path):
    page = browser.open(path)
    at_rest = text_of(page, "readout")
    assert "at its peak (replayed)" in at_rest
    # The middle of the planned step is within its backward pass.
    point_at(page, "memory-plot", 0.05 + 104 / 1200)
    early = text_of(page, "readout")
    point_at(page, "memory-plot", 0.9)
    late = text_of(page, "readout")
    assert early != at_rest
    assert "Net/Block_0/dot_general" in early
    assert "arguments and outputs" in early
    assert "the step ended at" in late  # the step as written is over by then
    assert (
        page.evaluate("document.querySelector('#memory-plot .cursor').getAttribute('visibility')")
        == "visible"
    )
    assert page.errors == []


def test_pointing_at_the_streams_says_what_runs(browser, path):
    page = browser.open(path)
    assert text_of(page, "slice").startswith("Point at the timeline")
    point_at(page, "streams-plot", 0.5)
    said = text_of(page, "slice")
    assert re.match(r"At .* \(replayed\): compute: .*to the host: .*to the device: ", said)
    page.evaluate("document.querySelector('[data-side=before]').click()")
    assert "to the host" not in text_of(page, "slice")


def test_dragging_zooms_and_a_button_goes_back(browser, path):
    page = browser.open(path)
    whole = page.evaluate("document.getElementById('line-before').getAttribute('d')")
    left, top, width, height = box_of(page, "memory-plot")
    y = top + height / 2
    page.mouse("mousePressed", left + 0.15 * width, y, button="left", clickCount=1)
    page.mouse("mouseMoved", left + 0.2 * width, y, button="left")
    page.mouse("mouseReleased", left + 0.2 * width, y, button="left", clickCount=1)
    assert page.evaluate("document.getElementById('line-before').getAttribute('d')") != whole
    page.evaluate("document.querySelector('[data-zoom=\"0\"]').click()")
    assert page.evaluate("document.getElementById('line-before').getAttribute('d')") == whole


def test_the_arrow_keys_move_the_cursor(browser, path):
    page = browser.open(path)
    page.evaluate("document.getElementById('memory-plot').focus()")
    before = text_of(page, "readout")
    for kind in ("keyDown", "keyUp"):
        page.send("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight")
    assert text_of(page, "readout") != before


def test_the_table_sorts_by_a_column_and_back(browser, path):
    page = browser.open(path)
    assert len(cells(page, 0)) == 6
    sizes = (
        "[...document.querySelectorAll('#head button')].find((b) => b.textContent === '{}').click()"
    )
    page.evaluate(sizes.format("where"))
    assert cells(page, 1) == [f"Net/Block_{i}/Dense_0" for i in range(6)]
    page.evaluate(sizes.format("where"))
    assert cells(page, 1) == [f"Net/Block_{i}/Dense_0" for i in reversed(range(6))]
    page.evaluate(sizes.format("decision"))
    assert cells(page, 0) == sorted(cells(page, 0))
    sorted_by = "[...document.querySelectorAll('#head th')].map((t) => t.getAttribute('aria-sort'))"
    assert page.evaluate(sorted_by)[0] == "ascending"
    # Bytes: the largest first, as a number and not as text.
    page.evaluate(sizes.format("bytes"))
    assert cells(page, 1)[0] == "Net/Block_5/Dense_0"


def test_the_table_filters_by_words_and_by_decision(browser, path):
    page = browser.open(path)
    typed = "(() => {{ const f = document.getElementById('filter'); f.value = '{}'; "
    typed += "f.dispatchEvent(new Event('input')); }})()"
    page.evaluate(typed.format("block_3 DENSE"))
    assert cells(page, 1) == ["Net/Block_3/Dense_0"]
    assert text_of(page, "count").startswith("1 of 6 values")
    page.evaluate(typed.format("nothing of that name"))
    assert cells(page, 1) == []
    page.evaluate(typed.format(""))
    page.evaluate("document.querySelector('[data-action=offload]').click()")
    assert cells(page, 0) == ["offload"] * 3


def test_names_from_the_program_are_text(browser, tmp_path):
    plan = make_plan(3, label=NASTY + "_{}")
    point = dataclasses.replace(make_sample().fronts[2], label=NASTY)
    make_sample(3, plan=plan, title=NASTY, fronts=[point]).save(tmp_path / "r.html")
    page = browser.open(tmp_path / "r.html")
    assert page.evaluate("document.documentElement.dataset.ready") == "yes"
    assert page.evaluate("document.querySelector('h1').textContent") == NASTY
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert cells(page, 1)[0] == NASTY + "_0"
    assert page.errors == []


def test_a_forecast_alone_makes_a_page(browser, tmp_path):
    make_sample(is_verified=False, fronts=(), batches=None).save(tmp_path / "r.html")
    page = browser.open(tmp_path / "r.html")
    assert page.evaluate("document.documentElement.dataset.ready") == "yes"
    assert "was not compiled" in page.evaluate("document.body.innerText")
    assert page.evaluate("document.getElementById('front')") is None
    # Both timelines are the simulator's, copies included.
    sides = "[...document.querySelectorAll('[data-side]')].map((b) => b.textContent)"
    assert page.evaluate(sides) == ["as written", "planned"]
    assert page.evaluate("document.querySelectorAll('#streams-plot .to_host').length") > 0
    point_at(page, "streams-plot", 0.3)
    assert "(forecast): compute" in text_of(page, "slice")
    assert page.errors == []


def test_the_front_and_the_batches_are_there_in_numbers(browser, path):
    page = browser.open(path)
    table = "[...document.querySelectorAll('#{} details td')].map((c) => c.textContent).join('|')"
    assert "dots_saveable (forecast)|128.00 MiB|30 ms" in page.evaluate(table.format("front"))
    assert "16 (forecast)|does not fit|140" in page.evaluate(table.format("batches"))


def test_printing_shows_the_figures_and_hides_the_controls(browser, path):
    page = browser.open(path, is_dark=True)
    page.send("Emulation.setEmulatedMedia", media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('.tools')).display") == "none"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.getElementById('line-after').getBBox().height") > 20


def test_a_large_step_is_a_page_below_15_megabytes(large):
    assert large.stat().st_size < 15e6


def test_a_large_page_is_usable(browser, large):
    page = browser.open(large)
    assert page.evaluate("document.documentElement.dataset.ready") == "yes"
    # However many ops there are, what is drawn stays small.
    assert page.evaluate("document.querySelectorAll('#streams-plot rect').length") < 4000
    assert page.evaluate("document.getElementById('line-after').getAttribute('d').length") < 200_000
    assert len(cells(page, 0)) == 100
    page.evaluate("document.getElementById('more').click()")
    assert len(cells(page, 0)) == 1100
    point_at(page, "memory-plot", 0.3)
    assert "op " in text_of(page, "readout")
    assert page.errors == []


def test_a_measured_time_says_so():
    measured = verified_of(module_text(2, is_planned=True), time_is="measured")
    text = render_page(make_sample(2, after=measured, is_verified=False, plan=make_plan(2)))
    assert '<span class="how measured">measured</span>' in text
