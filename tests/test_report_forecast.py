"""The forecast timeline and curve: they show what the simulator says, and nothing else."""

import itertools
from collections import defaultdict

import hypothesis as hp
import hypothesis.strategies as hps
import pytest
from programs import EXACT, UNIT, chain, make_device, programs

from jaxswap.apply.decision import Decision
from jaxswap.model.simulate import simulate
from jaxswap.model.timeline import build_timeline
from jaxswap.report.forecast import curve_of_forecast, play, streams_of_forecast

CHOICES = (
    Decision(action="keep"),
    Decision(action="recompute"),
    Decision(action="offload"),
    Decision(action="offload", window_ops=2, reload_ahead_ops=1),
)


@hps.composite
def plans(draw):
    program = draw(programs())
    decisions = {name: draw(hps.sampled_from(CHOICES)) for name in program.candidate_names}
    device = make_device(both_fraction=draw(hps.sampled_from([1.0, 0.5])))
    return program, decisions, device


@hp.given(plans())
def test_the_streams_are_those_of_the_simulator(plan):
    program, decisions, device = plan
    forecast = simulate(program, decisions, device)
    streams = streams_of_forecast(play(program, build_timeline(program, device), decisions))
    lanes = defaultdict(list)
    for one in streams.slices:
        lanes[one.stream].append(one)
    for lane in lanes.values():
        ordered = sorted(lane, key=lambda s: (s.start_s, s.start_s + s.duration_s))
        for first, second in itertools.pairwise(ordered):
            assert first.start_s + first.duration_s <= second.start_s + 1e-6
    assert streams.step_s == pytest.approx(forecast.step_s)
    # What the kernels do not fill of the step is waiting.
    busy_s = sum(s.duration_s for s in lanes["compute"])
    assert forecast.step_s - busy_s == pytest.approx(forecast.stall_s, abs=1e-6)
    again_s = sum(s.duration_s for s in lanes["compute"] if s.phase == "recompute")
    if not program.lean:
        assert again_s == pytest.approx(forecast.recompute_s)
    assert again_s <= forecast.recompute_s + 1e-6  # in loops it may take less
    for lane in ("to_host", "to_device"):
        assert sum(s.size_bytes for s in lanes[lane]) == forecast.offload_bytes


@hp.given(plans())
def test_who_is_on_the_device_adds_up_to_the_curve(plan):
    program, decisions, device = plan
    forecast = simulate(program, decisions, device)
    curve = curve_of_forecast(play(program, build_timeline(program, device), decisions), forecast)
    for op, total in enumerate(curve.bytes_at):
        held = curve.base_bytes + sum(holder.size_bytes for holder in curve.alive_at(op))
        # Besides values there is what ops need while they run, recomputing ones included.
        least = program.ops[op].scratch_bytes
        most = max([least, *(c.recompute_bytes for c in program.candidates)])
        assert held + least <= total <= held + most


def test_a_chain_is_where_it_was_worked_out_by_hand():
    # Each op of the forward pass takes 1 s, of the backward pass 2 s; a byte takes 1 s.
    program = chain([1, 1, 1])
    decisions = {"a0": Decision(action="offload"), "a1": Decision(action="recompute")}
    streams = streams_of_forecast(play(program, build_timeline(program, UNIT, EXACT), decisions))
    found = {(s.stream, s.phase, s.name): (s.start_s, s.duration_s) for s in streams.slices}
    assert found == {
        ("compute", "forward", "f0"): (0.0, 1.0),
        ("to_host", "forward", "a0"): (1.0, 1.0),
        # The next heavy op waits for the copy: its window is 1.
        ("compute", "forward", "f1"): (2.0, 1.0),
        ("compute", "forward", "f2"): (3.0, 1.0),
        ("compute", "backward", "b2"): (4.0, 2.0),
        # `a0` is needed again to make `a1`.
        ("to_device", "backward", "a0"): (6.0, 1.0),
        ("compute", "recompute", "a1"): (7.0, 1.0),
        ("compute", "backward", "b1"): (8.0, 2.0),
        ("compute", "backward", "b0"): (10.0, 2.0),
    }
    assert streams.how == "forecast"


def test_the_step_as_written_has_no_copies():
    streams = streams_of_forecast(play(chain([1, 1]), build_timeline(chain([1, 1]), UNIT), {}))
    assert [s.name for s in streams.slices] == ["f0", "f1", "b1", "b0"]


def test_a_curve_of_another_program_is_none():
    program = chain([1, 1])
    other = simulate(chain([1, 1, 1]), {}, UNIT)
    assert curve_of_forecast(play(program, build_timeline(program, UNIT), {}), other) is None
