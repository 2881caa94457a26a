"""Batch sizes: the predictions and bounds by hand, the search by exhaustion, errors, a choice."""

import dataclasses
import math

import hypothesis as hp
import hypothesis.strategies as hps
import jax
import jax.numpy as jnp
import pytest

import jaxswap
from jaxswap import _batch, _batch_choice
from jaxswap._attempt import Asked
from jaxswap._errors import BadArgumentError, BudgetInfeasibleError
from jaxswap.model.device import Device
from jaxswap.model.simulate import Forecast
from jaxswap.model.transfer import transfer_s
from jaxswap.plan import batch
from jaxswap.plan.batch import Sample
from jaxswap.plan.plan import Plan
from jaxswap.verify import target

T4 = Device.named("t4")


def sample(size, *, per_sample=2**28, base=2**30, again=1e-10):
    return Sample(
        peak_bytes=base + per_sample * size,
        step_s=0.01 + 0.002 * size,
        update_s=0.005,
        again_s_per_byte=again,
        kept_bytes=base + per_sample * size,
        kept_s=0.01 + 0.002 * size,
    )


def test_sizes_in_between_lie_on_a_line_and_known_ones_are_kept():
    known = {4: sample(4), 16: sample(16), 64: sample(64)}
    found = batch.predict_samples(known, [4, 8, 32, 128])
    assert found[4] is known[4]
    for size in (8, 32, 128):
        expected = sample(size)
        assert found[size].peak_bytes == pytest.approx(expected.peak_bytes)
        assert found[size].step_s == pytest.approx(expected.step_s)


def test_the_ideal_copies_beside_the_compute():
    free = sample(4)
    assert batch.find_min_swap_bytes(free, 2**40) == 0
    assert batch.find_ideal_s(free, 2**40, T4) == free.step_s
    big = sample(64)
    leaving = batch.find_min_swap_bytes(big, 2**30)
    assert leaving == 64 * 2**28
    slower = max(
        transfer_s(T4, float(leaving), "to_host"), transfer_s(T4, float(leaving), "to_device")
    )
    assert batch.find_ideal_s(big, 2**30, T4) == slower > big.step_s


@hp.given(hps.floats(1e-12, 1e-8), hps.integers(1, 256), hps.floats(0, 1))
def test_no_mix_of_copies_and_recomputation_beats_the_bound(again, size, share):
    one = sample(size, again=again)
    budget = 2**30
    leaving = batch.find_min_swap_bytes(one, budget)
    copied = int(share * leaving)
    copy_s = max(
        (transfer_s(T4, float(leaving), way) for way in ("to_host", "to_device")), default=0.0
    )
    mixed_s = max(one.step_s + (leaving - copied) * again, copy_s * copied / max(leaving, 1))
    assert batch.find_bound_s(one, budget, T4) <= mixed_s * (1 + 1e-9)
    assert batch.find_bound_s(one, budget, T4) >= one.step_s * (1 - 1e-9)


def test_accumulation_runs_parts_of_the_largest_size_that_fits():
    samples = {b: sample(b) for b in (2, 4, 8)}
    budget = int(samples[4].peak_bytes)
    grad_s = samples[4].step_s - samples[4].update_s
    assert batch.find_accumulated_s(samples, 8, budget) == pytest.approx(2 * grad_s + 0.005)
    assert batch.find_accumulated_s(samples, 8, 1) is None


@hp.given(hps.lists(hps.floats(1.0, 90.0), min_size=1, max_size=8), hps.integers(0, 7))
def test_the_search_finds_what_trying_all_sizes_finds(rates, peak):
    # Throughput rises to one peak and falls behind it, below what no plan can beat.
    rates = sorted(rates[:peak]) + sorted(rates[peak:], reverse=True)
    planned = {2**k: 2**k / rate for k, rate in enumerate(rates)}
    bounds = {size: size / 100.0 for size in planned}
    found = dict(batch.search_sizes(bounds, planned.get))
    assert max(b / s for b, s in found.items()) == pytest.approx(max(rates))


def test_nothing_above_a_size_that_does_not_fit_is_planned():
    asked = []

    def plan_size(size):
        asked.append(size)
        return None if size > 8 else size / 100

    assert dict(batch.search_sizes({4: 0.01, 8: 0.01, 16: 0.01, 32: 0.01}, plan_size)) == {
        4: 0.04, 8: 0.08,
    }  # fmt: skip
    assert asked == [4, 8, 16]


def test_the_search_gives_up_after_two_sizes_that_are_worse():
    planned = {1: 0.1, 2: 0.1, 4: 0.21, 8: 0.44, 16: 0.01}
    found = dict(batch.search_sizes(dict.fromkeys(planned, 1e-3), planned.get))
    assert list(found) == [1, 2, 4, 8]


def test_of_sizes_that_are_as_good_the_smallest_is_chosen():
    assert batch.choose_best({8: 99.5, 16: 100.0, 32: 90.0}) == 8
    assert batch.choose_best({8: 90.0, 16: 100.0}) == 16


def test_a_smaller_size_is_not_chosen_if_it_is_slower_than_what_fits_without_a_plan():
    rates = {8: 99.5, 16: 99.8, 32: 100.0}
    assert batch.choose_best(rates, 99.8) == 16
    assert batch.choose_best(rates, 100.0) == 32


def test_neighbours_are_the_sizes_before_and_behind_that_are_not_hopeless():
    assert batch.find_neighbours({8: 99.0, 4: 98.0, 16: 97.0, 32: 1.0}, 8) == [4, 8, 16]
    assert batch.find_neighbours({4: 98.0, 8: 99.0}, 4) == [4, 8]
    assert batch.find_neighbours({4: 98.0, 8: 80.0}, 4) == [4]


def test_the_search_stops_at_a_size_that_is_much_worse():
    planned = {1: 0.1, 2: 0.1, 4: 0.3, 8: 0.01}
    found = dict(batch.search_sizes(dict.fromkeys(planned, 1e-3), planned.get))
    assert list(found) == [1, 2, 4]


@hp.given(
    hps.lists(hps.floats(90.0, 100.0), min_size=1, max_size=9, unique=True),
    hps.integers(0, 8),
    hps.integers(0, 8),
)
def test_climbing_ends_at_the_top_wherever_it_starts(rates, peak, start):
    rates = sorted(rates[:peak]) + sorted(rates[peak:], reverse=True)
    found = {2**k: rate for k, rate in enumerate(rates)}
    first = 2 ** min(start, len(rates) - 1)
    assert max(batch.climb(first, found, {}, found.get).values()) == max(rates)


def test_climbing_goes_down_while_nothing_fits():
    asked = []

    def try_size(size):
        asked.append(size)
        return 1.0 if size <= 2 else None

    assert batch.climb(16, dict.fromkeys((1, 2, 4, 8, 16), 100.0), {}, try_size) == {2: 1.0, 1: 1.0}
    assert asked == [8, 16, 2, 4, 1]
    assert batch.climb(2, {1: 9.0, 2: 9.0}, {}, lambda size: None) == {}


def test_what_is_known_is_not_tried_again():
    known = {8: 10.0, 16: None}
    assert batch.climb(8, {8: 10.0, 16: 10.0}, known, lambda size: pytest.fail(f"{size}")) == {
        8: 10.0
    }


def test_of_several_sizes_to_try_all_are_begun_first():
    log = []
    rates = {8: 99.0, 16: 100.0, 32: 98.0, 64: 97.0}

    def try_size(size):
        log.append(size)
        return rates[size]

    batch.climb(8, rates, {8: 99.0}, try_size, lambda sizes: log.append(sizes))
    assert log == [[16], 16, [32], 32]
    log.clear()
    batch.climb(16, rates, {}, try_size, log.append)
    assert log == [[8, 16, 32], 8, 16, 32]


LAYERS, WIDTH = 8, 512
WEIGHTS = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS


def step(weights, x):
    def loss(weights):
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return jnp.mean(y**2)

    return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]


def make_args(size):
    return WEIGHTS, jax.ShapeDtypeStruct((size, 256, WIDTH), jnp.float32)


@pytest.mark.gpu_compile
def test_a_size_beyond_what_fits_is_chosen_with_a_plan_where_it_pays():
    choice = jaxswap.choose_batch_size(
        step, make_args, device="t4", budget="60MiB", planner="greedy",
        batch_sizes=[2, 4, 8, 16, 64], donate_argnums=0,
    )  # fmt: skip
    rows = {row.batch_size: row for row in choice.table}
    assert choice.plan.is_confirmed
    assert choice.plan.compiled_bytes <= choice.budget_bytes == 60 * 2**20
    compiled = {b: row.replayed for b, row in rows.items() if row.replayed}
    assert compiled[choice.batch_size] * (1 + batch.MIN_GAIN) >= max(compiled.values())
    assert choice.min_swap_bytes == rows[choice.batch_size].min_swap_bytes
    assert not rows[64].fits
    assert f"→{choice.batch_size:>5}" in str(choice)
    assert choice.reason.startswith(f"Batch {choice.batch_size}: ")
    assert _batch_choice.as_rows(choice)[0]["batch_size"] == 2


@pytest.mark.gpu_compile
def test_every_step_is_compiled_once_and_none_that_was_chosen_from_before(monkeypatch):
    """Some are begun ahead of time: these are the ones that are asked for later."""
    compiled, real = [], target.compile_here
    monkeypatch.setattr(target, "_answers", {})
    monkeypatch.setattr(target, "compile_here", lambda *job: compiled.append(job) or real(*job))
    ask = lambda: jaxswap.choose_batch_size(
        step, make_args, device="t4", budget="60MiB", planner="greedy",
        batch_sizes=[2, 4, 8], donate_argnums=0,
    )  # fmt: skip
    with jax.enable_x64(True):
        first = ask()
    num_compiled = len(compiled)
    assert len({code for code, *_ in compiled}) == num_compiled > 1
    target._answers.clear()
    with jax.enable_x64(True):
        assert ask() == first
    assert len(compiled) == num_compiled


def test_a_model_that_fits_at_no_batch_says_so():
    with pytest.raises(BudgetInfeasibleError, match=r"No batch size fits .*the smallest, 1, needs"):
        jaxswap.choose_batch_size(step, make_args, device="t4", budget="2MiB")


def test_arguments_that_ignore_the_size_are_refused():
    with pytest.raises(BadArgumentError, match="gives the same shapes for batch 4 and 8"):
        jaxswap.choose_batch_size(step, lambda size: make_args(4), device="t4")


def test_a_batch_that_is_not_the_first_axis_is_refused():
    late = lambda size: (WEIGHTS, jax.ShapeDtypeStruct((256, size, WIDTH), jnp.float32))
    with pytest.raises(BadArgumentError, match="has to be the first axis"):
        jaxswap.choose_batch_size(step, late, device="t4")


@pytest.mark.parametrize("sizes", [[], [0], [-1, 8], [1.5]])
def test_sizes_that_are_none_are_refused(sizes):
    with pytest.raises(BadArgumentError, match="a batch size is a whole number above zero"):
        jaxswap.choose_batch_size(step, make_args, device="t4", batch_sizes=sizes)


def test_a_size_has_to_beat_the_others_and_forecasts_as_written_are_corrected():
    """Batch 8 takes 2 s: 16 have to take less than 4 s, and 1 % more, to be within 1 % of it."""
    search = _batch._Search(
        fn=lambda x: x, make_args=lambda size: (), device=T4, budget_bytes=2**30 + 2**28 * 10,
        asked=Asked(planner="exact"), donated=(), report=lambda *_: None, pool=None,
    )  # fmt: skip
    search.samples = {8: sample(8), 16: sample(16)}
    assert search._find_to_beat_s(16) == math.inf  # nothing is known yet
    plan = Plan(decisions={}, values={}, forecast=Forecast(peak_bytes=80, step_s=1.0),
                budget_bytes=100, device="t4", replayed_s=2.0)  # fmt: skip
    search.plans = {8: plan, 12: None}
    assert search._find_to_beat_s(16) == pytest.approx(4.0 * (1 + batch.MIN_GAIN))
    search._correct_written(search.samples)
    assert search.written_slower == pytest.approx(max(2.0 / sample(8).step_s, 1.0))
    search.plans = {8: dataclasses.replace(plan, replayed_s=sample(8).step_s / 2)}
    search._correct_written(search.samples)
    assert search.written_slower == 1.0  # faster than forecast: planned sizes may be as well
