"""The replay, on schedules short enough to time by hand."""

import dataclasses
import itertools
from collections import defaultdict

import pytest

from jaxswap.model.device import Device
from jaxswap.model.kernel import Efficiency
from jaxswap.model.transfer import Link
from jaxswap.verify.hlo import parse_module
from jaxswap.verify.replay import replay

# One byte a second everywhere, and no overheads: a kernel takes as long as it has bytes.
LINK = Link(latency_s=0.0, bandwidth_bytes_per_s=1.0, both_fraction=0.5)
SLOW = dataclasses.replace(
    Device.named("h100-sxm"),
    memory_bandwidth_bytes_per_s=1.0,
    launch_overhead_s=0.0,
    to_host=LINK,
    to_device=LINK,
    sources={},
)
PERFECT = Efficiency(memory=1.0, half_memory_s=0.0, half_matrix_s=0.0)
HOST, DEVICE = "s8[{}]{{0:S(5)}}", "s8[{}]{{0}}"


def kernel(name: str) -> str:
    """Takes ten seconds: it reads nothing and writes ten bytes."""
    return f'%{name} = s8[10]{{0}} custom-call(), custom_call_target="kernel"'


def offload(name: str, operand: str, size: int) -> str:
    host, device = HOST.format(size), DEVICE.format(size)
    return f"%{name} = ({host}, {device}, u32[]) copy-start({operand})"


def reload(name: str, operand: str, size: int) -> str:
    host, device = HOST.format(size), DEVICE.format(size)
    return f"%{name} = ({device}, {host}, u32[]) copy-start({operand})"


def play(*lines: str, more: str = ""):
    body = "\n".join(f"  {line}" for line in lines)
    text = f"HloModule m\n\n{more}ENTRY %main (p: s8[1]) -> s8[1] {{\n{body}\n}}\n"
    return replay(parse_module(text), SLOW, PERFECT)


def assert_streams_do_not_overlap(timeline):
    by_stream = defaultdict(list)
    for event in timeline.events:
        by_stream[event.stream].append(event)
    for events in by_stream.values():
        for first, second in itertools.pairwise(events):
            assert first.end_s <= second.start_s + 1e-12


def test_kernels_follow_each_other():
    found = play(kernel("a"), kernel("b"), "ROOT " + kernel("c"))
    assert found.step_s == found.compute_s == 30
    assert [e.start_s for e in found.events] == [0, 10, 20]
    assert found.stall_s == 0


def test_a_copy_that_has_time_does_not_stall():
    found = play(
        kernel("a"), offload("s", "%a", 10), kernel("b"),
        f"%d = {HOST.format(10)} copy-done(%s)", "ROOT " + kernel("c"),
    )  # fmt: skip
    assert (found.step_s, found.stall_s, found.to_host_bytes) == (30, 0, 10)
    assert found.waits == ()
    assert_streams_do_not_overlap(found)


def test_a_copy_without_time_stalls_for_the_rest():
    found = play(
        kernel("a"), offload("s", "%a", 25), kernel("b"),
        f"%d = {HOST.format(25)} copy-done(%s)", "ROOT " + kernel("c"),
    )  # fmt: skip
    # The copy runs from 10 to 35; the compute stream reaches its end at 20.
    assert (found.step_s, found.stall_s) == (45, 15)
    (wait,) = found.waits
    assert (wait.stream, wait.duration_s) == ("to_host", 15)
    assert wait.name == next(e.name for e in found.events if e.stream == "to_host")


def test_one_direction_is_one_queue_and_two_slow_each_other_down():
    queued = play(
        kernel("a"), offload("s", "%a", 10), offload("s2", "%a", 10),
        f"%d = {HOST.format(10)} copy-done(%s)", "ROOT %d2 = s8[10]{0:S(5)} copy-done(%s2)",
    )  # fmt: skip
    assert queued.step_s == 10 + 20
    both = play(
        "%h = s8[10]{0:S(5)} parameter(0)",
        kernel("a"), offload("s", "%a", 10), reload("r", "%h", 10),
        "%d = s8[10]{0:S(5)} copy-done(%s)", "ROOT %d2 = s8[10]{0} copy-done(%r)",
    )  # fmt: skip
    # The reload shares the link for 10 s, in which it gets half done, then 5 s alone.
    assert both.step_s == pytest.approx(10 + 10 + 5)
    assert (both.to_host_bytes, both.to_device_bytes) == (10, 10)


def test_a_blocking_copy_is_a_stall():
    found = play(kernel("a"), "ROOT %c = s8[7]{0:S(5)} copy(%a)")
    assert (found.step_s, found.stall_s) == (17, 7)


LOOP = """\
%body (t: (s8[10], s8[10])) -> (s8[10], s8[10]) {
  %t = (s8[10]{0}, s8[10]{0:S(5)}) parameter(0)
  %x = s8[10]{0} get-tuple-element(%t), index=0
  %k = s8[10]{0} custom-call(), custom_call_target="kernel"
  %s = (s8[10]{0:S(5)}, s8[10]{0}, u32[]) copy-start(%k)
  %k2 = s8[10]{0} custom-call(), custom_call_target="kernel"
  %d = s8[10]{0:S(5)} copy-done(%s)
  ROOT %out = (s8[10]{0}, s8[10]{0:S(5)}) tuple(%k2, %d)
}

"""


@pytest.mark.parametrize("trips", [1, 3, 64, 65, 1000])
def test_a_loop_takes_its_trips(trips):
    found = play(
        kernel("a"),
        f"%w = (s8[10]{{0}}, s8[10]{{0:S(5)}}) while(%i), condition=%c, body=%body, "
        f'backend_config={{"known_trip_count":{{"n":"{trips}"}}}}',
        "ROOT " + kernel("z"),
        more=LOOP,
    )
    assert found.step_s == pytest.approx(10 + trips * 20 + 10)
    assert found.to_host_bytes == pytest.approx(trips * 10)
    assert_streams_do_not_overlap(found)


def test_a_loop_of_unknown_length_is_said_to_be():
    found = play(
        "ROOT %w = (s8[10]{0}, s8[10]{0:S(5)}) while(%i), condition=%c, body=%body", more=LOOP
    )
    assert found.notes == ("w: unknown trip count, replayed once",)


def test_a_conditional_takes_its_longest_branch():
    branches = "".join(
        f"%{name} (x: s8[1]) -> s8[{size}] {{\n"
        f'  ROOT %k{name} = s8[{size}]{{0}} custom-call(), custom_call_target="kernel"\n}}\n\n'
        for name, size in (("short", 5), ("long", 50))
    )
    found = play(
        "ROOT %c = s8[50]{0} conditional(%p), branch_computations={%short, %long}", more=branches
    )
    assert found.step_s == 50
    assert found.notes == ("c: conditional, replayed its longest branch",)


def test_an_async_update_of_host_memory_moves_only_its_slice():
    update = """\
%update (a: s8[100], u: s8[10], i: s32[]) -> s8[100] {
  %a = s8[100]{0:S(5)} parameter(0)
  %u = s8[10]{0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %s = s8[100]{0:S(5)} dynamic-update-slice(%a, %u, %i)
}

"""
    found = play(
        "%a = s8[100]{0:S(5)} parameter(0)",
        "%u = s8[10]{0} parameter(1)",
        "%i = s32[] parameter(2)",
        "%s = ((s8[100]{0:S(5)}, s8[10]{0}, s32[]), s8[100]{0:S(5)}, u32[]) "
        "fusion-start(%a, %u, %i), kind=kCustom, calls=%update",
        "ROOT %d = s8[100]{0:S(5)} fusion-done(%s)",
        more=update,
    )
    assert (found.to_host_bytes, found.to_device_bytes, found.step_s) == (10, 0, 10)


def test_collectives_take_the_links_time_and_say_so():
    found = play(
        kernel("a"),
        "%s = s8[10]{0} all-reduce-start(%a), to_apply=%add",
        "ROOT %d = s8[10]{0} all-reduce-done(%s)",
    )
    assert found.step_s == 10 + 2 * 10
    assert "host link" in found.notes[0]
