"""Confirm: the loop that aims lower until the compiled step fits."""

import dataclasses
import itertools
import math

import pytest
from compiled_fakes import Compiled, Event, make_plan, one_by_one

from jaxswap import _confirm
from jaxswap._confirm import TooSlowError
from jaxswap._errors import BudgetInfeasibleError
from jaxswap.apply.limit import limit_options
from jaxswap.apply.overlap import overlap_options
from jaxswap.model.simulate import Forecast
from jaxswap.plan.plan import PlannedValue


def confirm_plan(search, compile_plan, *args, **settings):
    return _confirm.confirm_plan(search, one_by_one(compile_plan), *args, **settings)


class Search:
    """Answers with what `find(aim)` makes, and notes what is aimed at with the first slowness.

    With the others it finds the same again, which promises nothing.
    """

    def __init__(self, find=lambda aim: make_plan()):
        self.find, self.aims = find, []

    def __call__(self, aim, slowness):
        if slowness == math.inf:
            self.aims.append(aim)
        return self.find(aim)


def test_what_the_compiled_step_has_too_much_is_aimed_lower():
    search = Search()
    sizes = iter([120, 110, 97])
    found = confirm_plan(search, lambda _: Compiled(next(sizes), 2.0), 100)
    assert (found.is_confirmed, found.compiled_bytes, found.replayed_s) == (True, 97, 2.0)
    assert search.aims == [100, 100 - 22, 100 - 22 - 11]


def test_after_four_rounds_it_gives_up_with_the_lowest_found():
    with pytest.raises(BudgetInfeasibleError, match="lowest of those tried needs 130 B") as caught:
        confirm_plan(lambda aim, slowness: make_plan(), lambda _: Compiled(130), 100)
    assert caught.value.floor_bytes == 130


def test_where_the_aim_is_below_the_floor_the_floor_is_tried_once():
    def find(aim):
        if aim < 95:
            raise BudgetInfeasibleError("too low", floor_bytes=95)
        return make_plan()

    search = Search(find)
    sizes = iter([120, 99])
    assert confirm_plan(search, lambda _: Compiled(next(sizes)), 100).compiled_bytes == 99
    assert search.aims == [100, 78, 95]
    sizes = itertools.cycle([120, 101])
    with pytest.raises(BudgetInfeasibleError, match="needs 101 B"):
        confirm_plan(search, lambda _: Compiled(next(sizes)), 100)


@pytest.mark.parametrize(
    ("eased", "demanded", "is_eased"),
    [
        ((99, 1.0), (98, 1.1), True),
        ((99, 1.1), (98, 1.0), False),
        ((104, 1.0), (98, 1.1), False),  # far too large
        ((103, 1.0), (98, 1.1), False),  # nearly fits, and its lower plans do not
        ((99, 1.1), (150, 1.0), True),
    ],
)
def test_the_rest_is_as_written_where_that_is_faster_and_fits(eased, demanded, is_eased):
    compile_plan = lambda plan: Compiled(*(eased if plan.rest_as_written else demanded))
    search = lambda aim, slowness: make_plan(action="recompute")
    found = confirm_plan(search, compile_plan, 100)
    assert found.rest_as_written == is_eased
    assert found.compiled_bytes == (eased if is_eased else demanded)[0]


def test_both_ways_of_the_rest_are_asked_for_together():
    asked = []

    def compile_plans(plans):
        asked.append([plan.rest_as_written for plan in plans])
        return [Compiled(99, 1.0 if plan.rest_as_written else 1.1) for plan in plans]

    _confirm.confirm_plan(lambda aim, slowness: make_plan(action="recompute"), compile_plans, 100)
    assert asked == [[False, True]]


def test_a_lower_plan_has_its_rest_as_written_too_if_that_was_nearly_enough():
    search = Search(lambda aim: make_plan(action="recompute"))
    tried, sizes = [], iter([110, 102, 99])

    def compile_plan(plan):
        tried.append(plan.rest_as_written)
        return Compiled(next(sizes))

    assert confirm_plan(search, compile_plan, 100).rest_as_written
    assert (tried, len(search.aims)) == ([False, True, True], 2)


@pytest.mark.parametrize(
    ("first_bytes", "near_s", "aims"),
    [(103, 1.02, [100]), (103, 1.03, [100, 97]), (104, 1.02, [100, 96])],
    ids=["a little too large", "too slow so", "much too large"],
)
def test_what_is_a_little_too_large_stays_with_a_few_values_more_gone(first_bytes, near_s, aims):
    asked = []

    def adjust(plan, aim, slowness):
        asked.append((aim, slowness))
        return dataclasses.replace(plan, seed=9, forecast=Forecast(peak_bytes=aim, step_s=near_s))

    search = Search()
    sizes = iter([first_bytes, 99])
    found = confirm_plan(search, lambda _: Compiled(next(sizes)), 100, adjust=adjust)
    assert search.aims == aims
    assert found.seed == (9 if len(aims) == 1 else 0)
    assert asked == ([(97, math.inf)] if first_bytes == 103 else [])


@pytest.mark.parametrize(("searched_s", "seed"), [(1.1, 9), (0.9, 0)])
def test_of_the_adjusted_plan_and_another_the_faster_is_taken(searched_s, seed):
    adjust = lambda plan, aim, slowness: dataclasses.replace(plan, seed=9)

    def find(aim):
        forecast = Forecast(peak_bytes=aim, step_s=1.0)
        return dataclasses.replace(make_plan(), forecast=forecast)

    def compile_plan(plan):
        if plan.seed == 9:
            return Compiled(99, 1.0)
        return Compiled(102, 0.9) if plan.forecast.peak_bytes == 100 else Compiled(98, searched_s)

    found = confirm_plan(Search(find), compile_plan, 100, adjust=adjust)
    assert (found.seed, found.replayed_s) == (seed, min(searched_s, 1.0))


@pytest.mark.parametrize(("floor_bytes", "is_tried"), [(110, True), (111, False)])
def test_a_floor_that_is_a_little_too_high_by_forecast_is_compiled(floor_bytes, is_tried):
    def search(aim, slowness):
        if aim < floor_bytes:
            raise BudgetInfeasibleError("too low", floor_bytes=floor_bytes)
        return make_plan()

    confirm = lambda: confirm_plan(search, lambda plan: Compiled(99), 100)
    if is_tried:
        assert confirm().compiled_bytes == 99
    else:
        with pytest.raises(BudgetInfeasibleError, match="too low"):
            confirm()


def test_where_nothing_near_is_found_it_is_searched():
    search, sizes = Search(), iter([101, 99])
    found = confirm_plan(
        search, lambda _: Compiled(next(sizes)), 100, adjust=lambda plan, aim, slowness: None
    )
    assert (found.compiled_bytes, search.aims) == (99, [100, 99])


def find_with_offloads(seconds_at):
    """A search whose plans have offloads, and take as long as `seconds_at` says for an aim."""

    def find(aim):
        forecast = Forecast(peak_bytes=100, step_s=seconds_at(aim))
        return dataclasses.replace(make_plan(action="offload"), forecast=forecast)

    return find


@pytest.mark.parametrize(
    ("lower_s", "expected"),
    [(1.11, [True, False]), (1.09, [True, True])],
    ids=["waiting is faster", "fewer bytes are faster"],
)
def test_what_does_not_fit_waits_for_its_copies_or_aims_lower(lower_s, expected):
    """Forecasts are half of what is replayed: 2 s, and 2.2 s with its copies waited for."""
    tried = []
    search = Search(find_with_offloads(lambda aim: 1.0 if aim == 100 else lower_s))
    events = (Event("copy-start.1", "to_host", 0.05), Event("copy-start.2", "to_device", 0.15))

    def compile_plan(plan):
        tried.append(plan.overlaps)
        return Compiled(104 if len(tried) == 1 else 99, 2.0, events=events)

    found = confirm_plan(search, compile_plan, 100)
    assert tried[:2] == expected
    assert search.aims == [100, 96]
    assert (found.overlaps, found.compiled_bytes) == (expected[-1], 99)
    assert bool(found.compiler_options()) == expected[-1]


def test_copies_that_the_timeline_leaves_out_are_waited_for_as_well():
    """Of a long loop it has the copies of some trips, here a tenth: 2.1 s would be 3 s."""
    search = Search(find_with_offloads(lambda aim: 1.0 if aim == 100 else 1.2))
    events = (Event("copy-start.1", "to_host", 0.1, size_bytes=1.0),)

    def compile_plan(plan):
        found = Compiled(104 if plan.forecast.step_s == 1.0 else 99, 2.0, events=events)
        found.timeline.to_host_bytes = 10.0
        return found

    assert confirm_plan(search, compile_plan, 100).overlaps


def test_where_waiting_takes_far_less_the_next_plans_wait_too():
    """Overlapped, a step takes 1.6 times its aim, and 1.04 times waiting; 50 B are the floor."""

    def find(aim):
        if aim < 50:
            raise BudgetInfeasibleError("too low", floor_bytes=50)
        forecast = Forecast(peak_bytes=aim, step_s=1.0 + (100 - aim) / 50)
        return dataclasses.replace(make_plan(action="offload"), forecast=forecast)

    def compile_plan(plan):
        factor, slower = (1.6, 1.0) if plan.overlaps else (1.04, 1.1)
        return Compiled(plan.forecast.peak_bytes * factor, plan.forecast.step_s * slower)

    search = Search(find)
    found = confirm_plan(search, compile_plan, 100)
    assert search.aims == [100, 34, 50, 96]
    assert (found.overlaps, found.forecast.peak_bytes) == (False, 96)


@pytest.mark.parametrize(
    ("needed", "waiting_s", "overlaps"),
    [(107, 1.1, False), (107, 1.3, True), (108, 1.1, True)],
    ids=["waiting is faster", "aiming lower is faster", "waiting takes hardly less"],
)
def test_after_a_wait_that_did_not_fit_the_faster_way_goes_on(needed, waiting_s, overlaps):
    """111 B overlapped and aimed lower from there are 1.2 s; some bytes less, waiting."""
    tried = []

    def find(aim):
        forecast = Forecast(peak_bytes=aim, step_s=1.0 if aim == 100 else 1.2)
        made = dataclasses.replace(make_plan(action="offload"), forecast=forecast)
        return dataclasses.replace(made, seed=aim)

    def compile_plan(plan):
        tried.append((plan.forecast.peak_bytes, plan.overlaps))
        if plan.forecast.peak_bytes < 100:
            return Compiled(99, 1.2)
        return Compiled(111, 1.0) if plan.overlaps else Compiled(needed, waiting_s / 1.2)

    found = confirm_plan(Search(find), compile_plan, 100)
    assert tried[:2] == [(100, True), (100, False)]
    assert (found.overlaps, tried[2][1]) == (overlaps, overlaps)


def test_a_plan_below_its_aim_is_not_found_again():
    """60 B were found for 100, and take 110 compiled: what is as low takes as much."""
    aims = []

    def search(aim, slowness):
        aims.append(aim)
        forecast = Forecast(peak_bytes=min(aim, 60), step_s=1.0)
        return dataclasses.replace(make_plan(), forecast=forecast)

    compile_plan = lambda plan: Compiled(plan.forecast.peak_bytes + 50)
    assert confirm_plan(search, compile_plan, 100).compiled_bytes == 99
    assert aims[:2] == [100, 60 - 11]


def test_the_plan_of_the_floor_is_not_compiled_twice():
    tried = []

    def search(aim, slowness):
        if aim < 100:
            raise BudgetInfeasibleError("too low", floor_bytes=100)
        return make_plan()

    with pytest.raises(BudgetInfeasibleError, match="needs 120 B"):
        confirm_plan(search, lambda plan: tried.append(plan) or Compiled(120), 100)
    assert len(tried) == 3  # one for each link


def test_the_error_tells_what_was_compiled_rather_than_forecast():
    def search(aim, slowness):
        if slowness == math.inf:
            raise BudgetInfeasibleError("without copies", floor_bytes=105)
        return make_plan()

    with pytest.raises(BudgetInfeasibleError, match="needs 130 B"):
        confirm_plan(search, lambda plan: Compiled(130), 100)


@pytest.mark.parametrize(("larger_s", "compiled"), [(0.5, 2), (0.96, 1)])
def test_what_fits_and_is_slow_has_its_room_used_where_that_might_do(larger_s, compiled):
    """2 s, and half as much forecast: 0.96 of that is no less than the 1.9 s to beat."""
    tried = []

    def search(aim, slowness):
        forecast = Forecast(peak_bytes=aim, step_s=larger_s if aim > 100 else 1.0)
        return dataclasses.replace(make_plan(action="offload"), forecast=forecast)

    def compile_plan(plan):
        tried.append(plan)
        return Compiled(80 if plan.forecast.peak_bytes == 100 else 98, 2 * plan.forecast.step_s)

    confirm = lambda: confirm_plan(search, compile_plan, 100, to_beat_s=1.9)
    if compiled == 2:
        assert confirm().replayed_s == 1.0
    else:
        with pytest.raises(TooSlowError):
            confirm()
    assert len(tried) == compiled


def test_a_larger_plan_waits_if_the_one_before_had_to():
    tried = []

    def find(aim):
        forecast = Forecast(peak_bytes=aim, step_s=0.5 if aim > 100 else 1.0)
        return dataclasses.replace(make_plan(action="offload"), forecast=forecast)

    def compile_plan(plan):
        tried.append((plan.forecast.peak_bytes, plan.overlaps))
        return Compiled(110 if plan.overlaps else 80, plan.forecast.step_s)

    def search(aim, slowness):
        if aim < 100:
            raise BudgetInfeasibleError("too low", floor_bytes=100)
        return find(aim)

    assert not confirm_plan(search, compile_plan, 100).overlaps
    assert tried[:3] == [(100, True), (100, False), (118, False)]


def test_a_plan_that_waits_may_win_where_a_lower_one_does_not_promise_to():
    def search(aim, slowness):
        if slowness == 3.0:
            return make_plan(action="recompute")
        lower_s = 0.5 if aim == 100 else 0.99
        return find_with_offloads(lambda _: lower_s)(aim)

    def compile_plan(plan):
        if not plan.names("offload"):
            return Compiled(97, 2.0)
        return Compiled(110, 1.0) if plan.overlaps else Compiled(90, 1.2)

    found = confirm_plan(search, compile_plan, 100)
    assert (found.overlaps, found.replayed_s) == (False, 1.2)


def test_the_last_plan_of_all_is_tried_without_overlap_too():
    tried = []

    def compile_plan(plan):
        tried.append(plan.overlaps)
        return Compiled(104 if plan.overlaps else 99)

    search = Search(find_with_offloads(lambda aim: 1.0 - (100 - aim) / 1000))
    assert not confirm_plan(search, compile_plan, 100).overlaps
    assert tried == [True, True, True, True, False]


@pytest.mark.parametrize("can_reach", [True, False])
def test_at_the_floor_copies_wait_before_it_gives_up(can_reach):
    def find(aim):
        if aim < 95 or (aim == 95 and not can_reach):
            raise BudgetInfeasibleError("too low", floor_bytes=95)
        return make_plan(action="offload")

    search = Search(find)
    found = confirm_plan(search, lambda plan: Compiled(120 if plan.overlaps else 99), 100)
    assert search.aims == [100, 78, 95]
    assert (found.overlaps, found.compiled_bytes) == (False, 99)


def test_a_plan_that_trusts_the_link_can_fit_where_a_careful_one_does_not():
    search = lambda aim, slowness: dataclasses.replace(make_plan(), seed=int(min(slowness, 9)))
    found = confirm_plan(search, lambda plan: Compiled(99 if plan.seed == 1 else 150), 100)
    assert found.seed == 1


def test_where_only_a_plan_without_copies_fits_it_is_found():
    search = lambda aim, slowness: dataclasses.replace(make_plan(), seed=int(slowness == math.inf))
    found = confirm_plan(search, lambda plan: Compiled(99 if plan.seed else 150), 100)
    assert found.seed == 1


def test_the_error_tells_of_the_lowest_of_all():
    search = lambda aim, slowness: dataclasses.replace(make_plan(), seed=int(min(slowness, 9)))
    sizes = {3: 105, 1: 150, 9: 120}
    with pytest.raises(BudgetInfeasibleError, match="needs 105 B") as caught:
        confirm_plan(search, lambda plan: Compiled(sizes[plan.seed]), 100)
    assert caught.value.floor_bytes == 105


def test_a_plan_that_fits_is_not_lost_if_a_larger_one_is_not_found():
    def search(aim, slowness):
        if aim > 100:
            raise BudgetInfeasibleError("no time", floor_bytes=1)
        return make_plan()

    assert confirm_plan(search, lambda plan: Compiled(80), 100).compiled_bytes == 80


def test_a_floor_that_the_planner_cannot_reach_is_an_error_of_the_budget_asked_for():
    def search(aim, slowness):
        if aim < 100:
            raise BudgetInfeasibleError(f"No plan fits {aim}", floor_bytes=60)
        return make_plan()

    with pytest.raises(BudgetInfeasibleError, match="`budget=100 B` once compiled"):
        confirm_plan(search, lambda plan: Compiled(120), 100)


def test_a_budget_that_is_infeasible_from_the_start_stays_so():
    def search(aim, slowness):
        raise BudgetInfeasibleError("too low", floor_bytes=95)

    with pytest.raises(BudgetInfeasibleError, match="too low"):
        confirm_plan(search, lambda _: Compiled(1), 90)


@pytest.mark.parametrize(
    ("forecast_s", "again", "is_taken"),
    [
        (0.9, Compiled(98, 1.8), True),
        (0.9, Compiled(98, 2.1), False),
        (0.998, None, False),  # not worth compiling
    ],
)
def test_what_the_compiled_step_leaves_free_is_used_if_that_pays(forecast_s, again, is_taken):
    first = Compiled(80, 2.0)

    def find(aim):
        step_s = 1.0 if aim == 100 else forecast_s
        return dataclasses.replace(make_plan(), forecast=Forecast(peak_bytes=aim, step_s=step_s))

    compile_plan = lambda plan: first if plan.forecast.peak_bytes == 100 else again
    search = Search(find)
    found = confirm_plan(search, compile_plan, 100)
    assert search.aims == [100, 100 + 18]
    assert found.compiled_bytes == (98 if is_taken else 80)


def test_room_is_used_by_how_much_compiled_bytes_grow_with_what_is_aimed_at():
    """Bytes grow twice as fast as the aim: 100 leave 20 free, 118 are 16 too many, 109 fit."""

    def find(aim):
        forecast = Forecast(peak_bytes=aim, step_s=100 / aim)
        return dataclasses.replace(make_plan(), forecast=forecast)

    def compile_plan(plan):
        aim = plan.forecast.peak_bytes
        return Compiled(80 + 2 * (aim - 100), 200 / aim)

    search = Search(find)
    found = confirm_plan(search, compile_plan, 100)
    assert search.aims == [100, 118, 109]
    assert found.compiled_bytes == 98


def test_room_is_tried_a_few_times_only():
    def find(aim):
        forecast = Forecast(peak_bytes=aim, step_s=100 / aim)
        return dataclasses.replace(make_plan(), forecast=forecast)

    search = Search(find)
    compile_plan = lambda plan: Compiled(80, 200 / plan.forecast.peak_bytes)
    found = confirm_plan(search, compile_plan, 100)
    assert search.aims == [100, 118, 136, 154]
    assert found.forecast.peak_bytes == 154


def test_a_step_that_fills_the_budget_is_not_planned_again():
    search = Search()
    confirm_plan(search, lambda plan: Compiled(97, 2.0), 100)
    assert search.aims == [100]


def search_at_speeds(asked, forecasts_s):
    """A search that notes each slowness it is asked for, whose plans have it as their seed."""

    def search(aim, slowness):
        asked.append(slowness)
        forecast = Forecast(peak_bytes=100, step_s=forecasts_s[slowness])
        seed = int(min(slowness, 9))
        return dataclasses.replace(make_plan(action="offload"), seed=seed, forecast=forecast)

    return search


def test_a_plan_without_copies_comes_first_and_the_fastest_of_all_wins():
    steps_s, asked = {9: 4.0, 3: 3.0, 1: 3.5}, []
    search = search_at_speeds(asked, {math.inf: 4.0, 3.0: 3.5, 1.0: 2.5})
    found = confirm_plan(search, lambda plan: Compiled(97, steps_s[plan.seed]), 100)
    assert asked == [math.inf, 1.0, 3.0]  # each once
    assert (found.seed, found.replayed_s) == (3, 3.0)


def test_where_trusting_the_link_promises_little_trusting_it_less_is_not_searched():
    asked = []
    search = search_at_speeds(asked, {math.inf: 4.0, 1.0: 3.9})
    assert confirm_plan(search, lambda plan: Compiled(97, 8.0), 100).seed == 9
    assert asked == [math.inf, 1.0]


def test_the_error_of_a_forecast_is_that_of_the_lowest_floor():
    def search(aim, slowness):
        raise BudgetInfeasibleError(f"{slowness}", floor_bytes=150 if slowness == math.inf else 120)

    with pytest.raises(BudgetInfeasibleError) as caught:
        confirm_plan(search, lambda plan: Compiled(97), 100)
    assert caught.value.floor_bytes == 120


@pytest.mark.parametrize(("stall_s", "rounds"), [(1.0, 1), (1.1, 4)])
def test_a_plan_that_would_lose_without_waiting_is_given_up_at_once(stall_s, rounds):
    """3 − 1.0 s of compute is no better than 2 s, 3 − 1.1 s is; neither fits."""
    tried = []

    def search(aim, slowness):
        forecast = Forecast(peak_bytes=100, step_s=0.5 if slowness == 1.0 else 1.0)
        return dataclasses.replace(make_plan(), forecast=forecast)

    def compile_plan(plan):
        if plan.forecast.step_s == 1.0:
            return Compiled(97, 2.0)
        tried.append(plan)
        return Compiled(150, 3.0, stall_s)

    assert confirm_plan(search, compile_plan, 100).compiled_bytes == 97
    assert len(tried) == rounds


@pytest.mark.parametrize(("to_beat_s", "compiled"), [(1.8, 3), (1.9, 12)])
def test_what_would_be_of_no_use_is_given_up_at_once(to_beat_s, compiled):
    """2 − 0.2 s of compute; nothing fits, in four rounds for each of three links."""
    tried = []

    def compile_plan(plan):
        tried.append(plan)
        return Compiled(150, 2.0, 0.2)

    error = TooSlowError if compiled == 3 else BudgetInfeasibleError
    with pytest.raises(error):
        confirm_plan(lambda aim, slowness: make_plan(), compile_plan, 100, to_beat_s)
    assert len(tried) == compiled


@pytest.mark.parametrize(("to_beat_s", "is_found"), [(2.0, False), (2.1, True)])
def test_what_fits_and_waits_too_long_is_of_no_use_either(to_beat_s, is_found):
    search = Search(lambda aim: make_plan(action="offload"))
    confirm = lambda: confirm_plan(search, lambda _: Compiled(97, 2.0, 1.0), 100, to_beat_s)
    if is_found:
        assert confirm().replayed_s == 2.0
    else:
        with pytest.raises(TooSlowError):
            confirm()


def test_what_fits_as_it_is_written_is_an_answer_however_slow():
    found = confirm_plan(Search(), lambda _: Compiled(97, 2.0), 100, to_beat_s=1.0)
    assert (found.is_empty, found.replayed_s) == (True, 2.0)


@pytest.mark.parametrize(("forecast_s", "is_compiled"), [(0.96, True), (0.98, False)])
def test_a_plan_that_promises_little_is_not_compiled(forecast_s, is_compiled):
    compiled = []

    def search(aim, slowness):
        forecast = Forecast(peak_bytes=100, step_s=forecast_s if slowness == 1.0 else 1.0)
        return dataclasses.replace(make_plan(action="offload"), forecast=forecast)

    def compile_plan(plan):
        compiled.append(plan.forecast.step_s)
        return Compiled(97, 2 * plan.forecast.step_s)  # the forecasts are off by as much

    confirm_plan(search, compile_plan, 100)
    assert (forecast_s in compiled) == is_compiled


def test_where_nothing_fits_without_copies_the_best_with_copies_stays():
    def search(aim, slowness):
        if slowness == math.inf:
            raise BudgetInfeasibleError("too low", floor_bytes=200)
        return make_plan(action="offload")

    found = confirm_plan(search, lambda plan: Compiled(97, 4.0, 2.0), 100)
    assert found.replayed_s == 4.0


def test_a_plan_asks_for_the_compiler_options_that_it_needs():
    sized = lambda action: dataclasses.replace(
        make_plan(action=action), memory_bytes=200, fixed_bytes=20
    )
    limit = lambda percent: {"xla_gpu_memory_limit_slop_factor": percent}
    assert sized("keep").compiler_options() == {}
    assert sized("recompute").compiler_options() == limit(54)  # 80 of 180, and a fifth
    assert sized("offload").compiler_options() == overlap_options({}) | limit(54)
    tight = dataclasses.replace(sized("recompute"), limit_bytes=100)
    assert tight.compiler_options() == limit(45)
    assert make_plan(action="recompute").compiler_options() == {}


def test_a_plan_that_copies_in_loops_may_have_any_number_of_copies_under_way():
    limit = "xla_gpu_experimental_parallel_async_compute_limit"
    plan = make_plan(action="offload")
    looped = dataclasses.replace(plan, values={"0/0": PlannedValue(size_bytes=1, trips=12)})
    assert limit not in plan.compiler_options()
    assert looped.compiler_options()[limit] > 2


@pytest.mark.parametrize(
    ("budget", "memory", "fixed", "expected"),
    [
        (100, 100, 0, 120),
        (95, 100, 20, 113),  # 112.5, rounded up
        (100, 100_000, 0, 1),
        (10**6, 100, 0, 1000),
        (90, 100, 100, None),  # nothing is there
        (50, 100, 60, None),
    ],
)
def test_the_limit_is_the_budget_and_a_fifth_in_percent_of_what_xla_takes_as_there(
    budget, memory, fixed, expected
):
    found = limit_options(budget, memory, fixed)
    assert found.get("xla_gpu_memory_limit_slop_factor") == expected


@pytest.mark.parametrize(
    ("limit", "memory", "expected"), [(100, 100, 100), (95, 115, 83), (10**6, 100, 1000)]
)
def test_a_limit_is_rounded_up(limit, memory, expected):
    found = limit_options(1, memory, 0, limit)
    assert found == {"xla_gpu_memory_limit_slop_factor": expected}


def find_rival_by(seconds):
    """Compiles the plan of seed 1, the rival, to a step of so many seconds, others to one of 1 s.

    The rival's has the given bytes.
    """
    rival = dataclasses.replace(make_plan(), seed=1)

    def confirm(rival_bytes):
        compile_plan = lambda p: Compiled(rival_bytes, seconds) if p.seed else Compiled(99, 1.0)
        return confirm_plan(
            lambda aim, slowness: make_plan(),
            compile_plan,
            100,
            find_rival=lambda aim, slowness: rival if slowness == math.inf else None,
        )

    return confirm


@pytest.mark.parametrize(
    ("seconds", "rival_bytes", "seed"), [(0.9, 99, 1), (1.1, 99, 0), (0.9, 200, 0)]
)
def test_of_a_plan_and_its_rival_the_faster_that_fits_is_taken(seconds, rival_bytes, seed):
    assert find_rival_by(seconds)(rival_bytes).seed == seed


def test_a_rival_is_not_compiled_beside_a_plan_that_does_not_fit():
    tried = []
    with pytest.raises(BudgetInfeasibleError):
        confirm_plan(
            lambda aim, slowness: make_plan(),
            lambda plan: tried.append(plan.seed) or Compiled(130),
            100,
            find_rival=lambda aim, slowness: dataclasses.replace(make_plan(), seed=1),
        )
    assert 1 not in tried
