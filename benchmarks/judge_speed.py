"""Judge speed: how long does it take to compile, replay and draw the curve of a step?

    python -m benchmarks.judge_speed

Compiles the GPT-2-small step for an H100 anew (nothing is read from `build/`), then replays
schedules of ten to ten thousand kernels, made by repeating the compiled one.
"""

import re
import time

from benchmarks.models import build
from jaxswap.model.presets import find_device
from jaxswap.verify.hlo import parse_module
from jaxswap.verify.memory import memory_curve
from jaxswap.verify.replay import replay
from jaxswap.verify.target import compile_for

DEVICE = "h100-sxm"


def main() -> None:
    """Prints seconds, measured on this machine."""
    workload = build("gpt2-small")
    device = find_device(DEVICE)
    start = time.perf_counter()
    compiled = compile_for(
        workload.step, workload.args, device, donate_argnums=workload.donate_argnums
    )
    compiled_s = time.perf_counter() - start
    replay(parse_module(compiled.hlo_text), device)
    total_s = time.perf_counter() - start
    print(f"gpt2-small: trace, lower and compile {compiled_s:.1f} s, with replay {total_s:.1f} s")
    for kernels in (10, 100, 1_000, 10_000):
        text = repeat_kernels(compiled.hlo_text, kernels)
        start = time.perf_counter()
        module = parse_module(text)
        timeline = replay(module, device)
        replay_s = time.perf_counter() - start
        memory_curve(module)
        curve_s = time.perf_counter() - start - replay_s
        print(f"{len(timeline.events):6d} kernels: replay {replay_s:.2f} s, curve {curve_s:.2f} s")


def repeat_kernels(text: str, kernels: int) -> str:
    """A module with that many kernels: the entry's own, over and over under new names."""
    head, entry = text[: text.index("\nENTRY")], text[text.index("\nENTRY") :]
    first, *lines = [line for line in entry.splitlines() if line.strip()]
    parameters = [line for line in lines if " parameter(" in line]
    body = [line for line in lines if " parameter(" not in line and " = " in line]
    body = [line for line in body if "ROOT" not in line]
    arguments = set(re.findall(r"^  %(\S+) =", "\n".join(parameters), re.M))
    made = set(re.findall(r"^  %(\S+) =", "\n".join(body), re.M)) - arguments
    out, count, copy = list(parameters), 0, 0
    while count < kernels:
        for line in body:
            if count == kernels:
                break
            out.append(_rename(line, made, f".copy{copy}"))
            count += " fusion(" in line
        copy += 1
    last = re.match(r"  %(\S+) = (\S+)", next(x for x in reversed(out) if " fusion(" in x))
    assert last is not None
    out.append(f"  ROOT %root = tuple(%{last[1]})".replace("= tuple", "= () tuple"))
    return "\n".join([head, "", first, *out, "}"])


def _rename(line: str, names: set[str], suffix: str) -> str:
    """The line with `suffix` behind each of `names`."""
    return re.sub(r"%([^\s,(){}]+)", lambda m: f"%{m[1]}{suffix if m[1] in names else ''}", line)


if __name__ == "__main__":
    main()
