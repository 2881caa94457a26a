"""Trace events: what do the streams do, in the viewers that people have?

Input: a `Report`. Output: the trace-event JSON that Perfetto (ui.perfetto.dev) and
chrome://tracing open: a process per step, a thread per stream, device memory as a counter.
Times are microseconds. Slices of one stream follow each other: rounding never makes them overlap.
"""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jaxswap.report.rows import Curve, Streams

if TYPE_CHECKING:
    from jaxswap.report.report import Report

THREADS = {"compute": 1, "to_host": 2, "to_device": 3, "collective": 4}
_NAMES = {
    "compute": "compute",
    "to_host": "copies to the host",
    "to_device": "copies to the device",
    "collective": "collectives",
}
# Places after the decimal point: picoseconds, far below what any kernel takes.
_PLACES = 6


def to_trace_json(report: "Report") -> str:
    """The timelines of the step as written and as planned."""
    events: list[dict[str, Any]] = []
    steps = (
        (1, "as written", report.streams_before, report.curve_before),
        (2, "planned", report.streams_after, report.curve_after),
    )
    for process, name, streams, curve in steps:
        if streams is not None:
            events += _events(process, f"{name} ({streams.how})", streams)
            events += _counters(process, curve) if curve else ()
    about = {
        "title": report.title,
        "device": report.device,
        "budget_bytes": report.budget_bytes,
        "planner": report.planner,
    }
    return json.dumps(
        {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}, allow_nan=False
    )


def _events(process: int, name: str, streams: Streams) -> Iterable[dict[str, Any]]:
    yield _label("process_name", process, 0, name)
    for stream in dict.fromkeys(s.stream for s in streams.slices):
        yield _label("thread_name", process, THREADS[stream], _NAMES[stream])
        yield {
            "name": "thread_sort_index", "ph": "M", "pid": process, "tid": THREADS[stream],
            "args": {"sort_index": THREADS[stream]},
        }  # fmt: skip
    free_us = dict.fromkeys(THREADS, 0.0)
    for s in sorted(streams.slices, key=lambda s: s.start_s):
        start_us = max(round(s.start_s * 1e6, _PLACES), free_us[s.stream])
        end_us = max(round((s.start_s + s.duration_s) * 1e6, _PLACES), start_us)
        free_us[s.stream] = end_us
        yield {
            "name": s.label or s.name,
            "cat": s.phase if s.stream == "compute" else "copy",
            "ph": "X",
            "pid": process,
            "tid": THREADS[s.stream],
            "ts": start_us,
            "dur": round(end_us - start_us, _PLACES),
            "args": {"op": s.name, "source": s.source, "bytes": s.size_bytes, "how": streams.how},
        }


def _counters(process: int, curve: Curve) -> Iterable[dict[str, Any]]:
    last = None
    for start_s, size_bytes in zip(curve.starts_s, curve.bytes_at, strict=True):
        if size_bytes != last:
            yield {
                "name": f"device memory ({curve.how})", "ph": "C", "pid": process, "tid": 0,
                "ts": round(start_s * 1e6, _PLACES), "args": {"bytes": size_bytes},
            }  # fmt: skip
            last = size_bytes


def _label(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
