"""Hinted: rounds of hints, of which the fastest stays, and what the hints are."""

import dataclasses
import math

import pytest
from compiled_fakes import Compiled, Event, make_plan, one_by_one

from jaxswap import _hinted
from jaxswap.apply.hints import hint_all, hint_kernels, lengthen_hints
from jaxswap.apply.overlap import overlap_options

PLAN = make_plan(action="offload")
KERNEL = Event("fusion.1", "compute", 1e-3)
COPY = Event("copy-start.2.0", "to_host", 1e-2)
WAIT = Event("copy-start.2.0", "to_host", 1e-3)


def compile_with_hints(verified, compile_plan, *args, plan=PLAN):
    return _hinted.compile_with_hints(plan, verified, one_by_one(compile_plan), *args)


@pytest.mark.parametrize(("stall_s", "compiled"), [(0.1, 0), (0.11, 2)])
def test_hints_are_for_what_would_win_without_waiting(stall_s, compiled):
    """2 s with 0.1 of waiting cannot be less than 1.9."""
    tried = []
    first = Compiled(97, 2.0, stall_s)
    compile_with_hints(first, lambda plan: tried.append(plan) or first, 1.9)
    assert len(tried) == compiled


@pytest.mark.parametrize(("stall_s", "compiled"), [(0.004, 0), (0.0041, 2)])
def test_hints_are_for_what_waits_for_more_than_a_fifth_of_a_percent(stall_s, compiled):
    tried = []
    first = Compiled(97, 2.0, stall_s)
    compile_with_hints(first, lambda plan: tried.append(plan) or first)
    assert len(tried) == compiled


@pytest.mark.parametrize("plan", [make_plan(action="recompute"), make_plan()])
def test_plans_without_copies_have_no_hints(plan):
    first = Compiled(97, 2.0, 0.5)  # collectives are waited for, too
    assert compile_with_hints(first, None, plan=plan) == (plan, first)


@pytest.mark.parametrize(
    ("again", "is_hinted"),
    [(Compiled(90, 1.5), True), (Compiled(101, 1.5), False), (Compiled(90, 2.5), False)],
)
def test_hints_are_kept_if_they_help_within_the_budget(again, is_hinted):
    first = Compiled(80, 2.0, 0.05, (KERNEL, COPY))
    best, verified = compile_with_hints(first, lambda plan: again)
    assert bool(best.hints) == is_hinted
    assert verified is (again if is_hinted else first)


@pytest.mark.parametrize("kernels_s", [1.5, 1.7])
def test_the_better_of_both_kinds_of_hints_stays(kernels_s):
    first = Compiled(80, 2.0, 0.05, (KERNEL, COPY))
    compile_plan = lambda plan: Compiled(80, 1.6 if "copy-start.2.0" in plan.hints else kernels_s)
    best, verified = compile_with_hints(first, compile_plan)
    assert verified.timeline.step_s == min(kernels_s, 1.6)
    assert ("copy-start.2.0" in best.hints) == (kernels_s > 1.6)


def test_both_kinds_of_hints_are_compiled_together_and_one_goes_on():
    asked = []
    first = Compiled(80, 4.0, 0.5, (KERNEL, COPY))

    def compile_plans(plans):
        asked.append(len(plans))
        step_s = 4.0 - len(asked)
        return [Compiled(80, step_s, 0.5, (KERNEL, COPY), (WAIT,)) for _ in plans]

    _hinted.compile_with_hints(PLAN, first, compile_plans)
    assert asked == [2, 1, 1, 1]


@pytest.mark.parametrize(
    ("is_kernels", "expected"),
    [
        (False, [11_000.0, 11_000.0 + 1_300.0, 11_000.0 + 2 * 1_300.0]),
        # What XLA guesses is less than this copy takes.
        (True, [None, 11_000.0 + 1_300.0, 11_000.0 + 2 * 1_300.0]),
    ],
)
def test_hints_grow_by_what_was_waited_for_while_that_helps(is_kernels, expected):
    answers = {step_s: Compiled(80, step_s, 0.4, (COPY,), (WAIT,)) for step_s in (9.0, 8.0, 7.0)}
    steps, asked, hinted = iter([*answers.values(), Compiled(80, 7.5, 0.4)]), [], []

    def compile_plan(plan):
        asked.append(plan)
        if len(asked) <= 2 and ("copy-start.2.0" in plan.hints) == is_kernels:
            return Compiled(80, 10.0, 0.4)  # the other kind
        hinted.append(plan.hints.get("copy-start.2.0"))
        return next(steps)

    best, verified = compile_with_hints(next(steps), compile_plan)
    assert verified.timeline.step_s == 7.0
    assert hinted == expected
    assert best.hints["copy-start.2.0"] == hinted[1]


LIMITED = dataclasses.replace(PLAN, memory_bytes=200)  # XLA's limit is 60 % of it, or 50 %


@pytest.mark.parametrize("is_enough", [True, False])
def test_hints_that_take_too_much_memory_are_compiled_with_the_budget_as_limit(is_enough):
    asked = []

    def compile_plan(plan):
        asked.append(plan.limit_bytes)
        return Compiled(99 if plan.limit_bytes and is_enough else 101, 1.5)

    first = Compiled(97, 2.0, 0.5, (KERNEL, COPY))
    best, verified = compile_with_hints(first, compile_plan, plan=LIMITED)
    assert asked == [None, None, 100, 100]
    assert best.limit_bytes == (100 if is_enough else None)
    assert bool(best.hints) == is_enough
    assert verified.timeline.step_s == (1.5 if is_enough else 2.0)


def test_hints_of_copies_have_a_lower_limit_although_those_of_kernels_fit():
    def compile_plan(plan):
        if "copy-start.2.0" not in plan.hints:
            return Compiled(80, 2.1)
        return Compiled(99, 1.5) if plan.limit_bytes else Compiled(101, 1.4)

    first = Compiled(97, 2.0, 0.5, (KERNEL, COPY))
    best, verified = compile_with_hints(first, compile_plan, plan=LIMITED)
    assert verified.timeline.step_s == 1.5
    assert best.limit_bytes == 100


def test_what_xla_cannot_be_told_is_not_compiled_again():
    asked = []
    first = Compiled(97, 2.0, 0.5, (KERNEL, COPY))
    large = dataclasses.replace(PLAN, memory_bytes=10_000)  # 1.2 and 1.0 %: 2 and 1
    larger = dataclasses.replace(PLAN, memory_bytes=20_000)  # 1 % either way
    for plan, compiled in ((large, 4), (larger, 2)):
        asked.clear()
        compile_with_hints(first, lambda plan: asked.append(plan) or Compiled(101, 1.0), plan=plan)
        assert len(asked) == compiled


def test_rounds_of_hints_go_on_with_the_lower_limit():
    asked, steps = [], iter([9.0, 9.5, 8.0, 7.0, 6.0])

    def compile_plan(plan):
        asked.append(plan.limit_bytes)
        if not plan.limit_bytes:
            return Compiled(101, 1.0)
        return Compiled(80, next(steps), 0.4, (COPY,), (WAIT,))

    first = Compiled(80, 10.0, 0.4, (COPY,))
    best, verified = compile_with_hints(first, compile_plan, plan=LIMITED)
    assert verified.timeline.step_s == 6.0
    assert best.limit_bytes == 100
    assert asked == [None, None, *[100] * 5]


def test_a_lower_limit_that_does_not_fit_either_is_the_end():
    asked = []

    def compile_plan(plan):
        asked.append(plan.limit_bytes)
        fits = plan.limit_bytes and len(asked) <= 4
        return Compiled(80 if fits else 101, 9.0, 0.4, (COPY,), (WAIT,))

    compile_with_hints(Compiled(80, 10.0, 0.4, (COPY,)), compile_plan, plan=LIMITED)
    assert asked == [None, None, 100, 100, 100]


def test_a_copy_that_xla_guesses_too_short_is_hinted_longer_than_that():
    copy, wait = Event("copy-start.2", "to_device", 1e-3), Event("copy-start.2", "to_device", 2e-3)
    assert lengthen_hints({}, [copy], [wait]) == {"copy-start.2": 5000.0 + 1.3 * 2000.0}


@pytest.mark.parametrize(("to_beat_s", "rounds"), [(math.inf, 4), (6.0, 4), (5.9, 1)])
def test_hints_that_cannot_catch_up_are_not_followed(to_beat_s, rounds):
    """From 10 s to 9 s, and three times as much again is 6 s."""
    asked = []

    def compile_plans(plans):
        asked.append(plans)
        return [Compiled(80, 10.0 - len(asked), 5.0) for _ in plans]

    _hinted.compile_with_hints(PLAN, Compiled(80, 10.0, 5.0), compile_plans, to_beat_s)
    assert len(asked) == rounds


def test_copies_are_hinted_longer_than_they_take_for_they_queue():
    events = [Event("fusion", "compute", 2e-6), Event("copy-start.7.0", "to_device", 10e-6)]
    hints = hint_all([*events, Event("fusion", "compute", 9.0)])
    assert hints["fusion"] == 2.0  # the first of several trips stands for all
    assert hints["copy-start.7.0"] > 10.0


def test_the_longest_wait_in_a_loop_counts_once():
    waits = [Event("copy-start.7.0", "to_device", each) for each in (1e-6, 10e-6, 2e-6)]
    events = [Event("copy-start.7.0", "to_device", 10e-6)]
    longer = lengthen_hints({"fusion": 2.0, "copy-start.7.0": 11.0}, events, waits)
    assert longer == {"fusion": 2.0, "copy-start.7.0": 11.0 + 13.0}


@pytest.mark.parametrize(("stream", "once_us"), [("to_device", 22.0), ("to_host", 0.0)])
def test_what_starts_beside_a_late_copy_counts_of_an_offload_once_it_is_late_again(stream, once_us):
    """XLA takes the start of a copy for work as long as the copy."""
    events = [
        Event("copy-start.1", stream, 10e-6, start_s=0.0),
        Event("fusion.1", "compute", 4e-6, start_s=0.0),
        Event("copy-start.2", stream, 20e-6, start_s=10e-6),
        Event("fusion.2", "compute", 4e-6, start_s=10e-6),  # the first was waited for until here
        Event("copy-start.3", stream, 40e-6, start_s=30e-6),
    ]
    hints = hint_all(events)
    waits = [Event("copy-start.1", stream, 6e-6)]
    once = lengthen_hints(hints, events, waits)
    assert once["copy-start.1"] == pytest.approx(11.0 + once_us + 1.3 * 6.0)
    twice = lengthen_hints(once, events, waits)["copy-start.1"]
    assert twice == pytest.approx(11.0 + 22.0 + 1.3 * (12.0 if once_us else 6.0))
    assert {n: u for n, u in once.items() if n != "copy-start.1"} == {
        n: u for n, u in hints.items() if n != "copy-start.1"
    }


def test_hints_name_an_instruction_as_it_is_called_while_it_is_scheduled():
    hints = {"fusion": 2.0, "copy-start.7.0": 10.0}
    options = overlap_options(hints)
    with open(options["xla_gpu_pgle_profile_file_or_directory_path"]) as file:
        text = file.read()
    assert 'name: "fusion" cost_us: 2.0' in text
    assert 'name: "copy-start.7.0"' in text
    assert 'name: "copy-start.7"' in text
    assert overlap_options(hints) == options


def test_hints_of_kernels_say_nothing_of_copies():
    assert hint_kernels([KERNEL, COPY]) == {"fusion.1": 1000.0}


@pytest.mark.parametrize(("stream", "is_found"), [("to_device", True), ("to_host", False)])
def test_a_late_reload_is_hinted_earlier_even_if_hints_did_not_help_yet(stream, is_found):
    wait = Event("copy-start.2.0", stream, 1e-3)
    late = Compiled(80, 9.0, 0.4, waits=(wait,))
    steps = iter([late, late, Compiled(80, 6.0)])
    best, verified = compile_with_hints(Compiled(80, 8.0, 0.4), lambda _: next(steps))
    assert (verified.step_s, best is not PLAN) == ((6.0, True) if is_found else (8.0, False))
