"""The devices page: what figures does every preset hold, and where from?

Input: the presets. Output: the Markdown of `docs/devices.md`.
The page is generated, `python -m jaxswap.model.presets_page > docs/devices.md`, and a test
compares the two: the data in `presets.json` is the only place to change a figure.
"""

from collections.abc import Iterable, Sequence

from jaxswap.model.device import Device
from jaxswap.model.presets import devices, read_data
from jaxswap.model.transfer import Link

_INTRO = """# Devices

<!-- Generated: python -m jaxswap.model.presets_page > docs/devices.md -->

A device is a set of figures: memory, peaks, bandwidths, and the link to the host. Those of the
presets below are published ones, or derived from published ones, or assumed; the source of each
says which. None was measured by jaxswap. To use your own machine's,
`Device.calibrate().save("mine.json")` and pass `device="mine.json"`.

```python
import dataclasses
from jaxswap import Device, devices

list(devices())                                   # the names below
h100 = Device.named("h100-sxm")                   # case, spaces and dashes do not matter
half = dataclasses.replace(h100, memory_bytes=h100.memory_bytes // 2)
here = Device.detect()                            # the preset of the attached GPU
mine = Device.calibrate(quick=True)               # measured, on a CPU too
```

How to read the figures:

- **Dots** run at the rate JAX's default precision gets: f32 dots use tf32 tensor cores where
  there are any, and bf16 without native support is widened to f32 (V100, T4, RTX 2080 Ti).
  Tensor peaks are with f32 accumulation, which on GeForce is half the headline figure.
- **Sustained**: the part of the peaks that the power limit lets last. It is an assumption, made
  only for the T4 and the L4, whose limits (70 W and 72 W) hold the clock far below its boost.
- **Links** are copies of pinned memory, `t = latency + bytes / bandwidth`, one way and, as a
  fraction of that, while the other direction is busy too. Latencies were fitted to one size
  sweep of an A100 (rows X10–X22) and are assumed elsewhere.
- **Small dots**: a dot of `w` FLOPs reaches `F · w / (w + w_half)`, with `w_half = F · 6 µs`
  unless it was measured. XLA's measurements of bf16 dots on an H100 follow that within 8%.
- V100 is **compiled as** compute capability 7.5: CUDA 13 no longer compiles for 7.0.
"""


def render_page() -> str:
    """The whole of `docs/devices.md`."""
    data = read_data()
    presets = devices()
    parts = [_INTRO, "## Figures\n", _figures(presets.values()), "## Links to the host\n"]
    parts += [_links(presets.values()), "## Sources by device\n"]
    parts += [
        "`[name]` is a citation and `X24` a published transfer rate, both listed further down.\n"
    ]
    parts += [_sources(each) for each in data["devices"]]
    parts += ["## Citations\n", _table(("name", "source"), data["citations"].items())]
    parts += ["## Published transfer rates\n", _transfer_rows(data["transfer_rows"])]
    return "\n".join(parts)


def _figures(presets: Iterable[Device]) -> str:
    head = ("name", "memory GB", "memory GB/s", "f32", "tf32", "f16", "bf16", "f8", "f64")
    rows = [
        (
            f"`{each.name}`",
            f"{each.memory_bytes / 1e9:.1f}",
            f"{each.memory_bandwidth_bytes_per_s / 1e9:.0f}",
            *(_tera(each.peak_flops_per_s.get(kind)) for kind in head[3:]),
            f"{each.sustained_fraction:g}",
            f"{each.l2_cache_bytes / 2**20:g}",
            f"{each.sm_count} × {each.clock_rate_ghz:g}",
            ".".join(map(str, each.compute_capability or ())),
        )
        for each in presets
    ]
    tail = ("sustained", "L2 MiB", "SMs × GHz", "capability")
    return "Peaks in TFLOP/s.\n\n" + _table((*head, *tail), rows)


def _links(presets: Iterable[Device]) -> str:
    head = ("name", "to host GB/s", "both ways", "µs", "to device GB/s", "both ways", "µs")
    rows = [(f"`{p.name}`", *_link(p.to_host), *_link(p.to_device)) for p in presets]
    return _table(head, rows)


def _link(link: Link) -> tuple[str, str, str]:
    rate = f"{link.bandwidth_bytes_per_s / 1e9:.1f}"
    return rate, f"× {link.both_fraction:g}", f"{link.latency_s * 1e6:g}"


def _sources(preset: dict) -> str:
    rows = [(f"`{figure}`", source) for figure, source in preset["sources"].items()]
    return f"### {preset['name']}\n\n{preset['description']}\n\n" + _table(
        ("figure", "source"), rows
    )


def _transfer_rows(rows: dict[str, dict]) -> str:
    columns = ("gpu", "link", "mode", "direction", "pinned", "size", "gbps", "note", "source")
    head = ("row", "GPU", "link", "mode", "direction", "pinned", "size", "GB/s", "note", "source")
    return _table(
        head, [(key, *(_cell(row[column]) for column in columns)) for key, row in rows.items()]
    )


def _cell(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _tera(rate: float | None) -> str:
    return "–" if rate is None else f"{rate / 1e12:.3g}" if rate < 1e14 else f"{rate / 1e12:.0f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in escaped) + "\n"


if __name__ == "__main__":
    print(render_page(), end="")
