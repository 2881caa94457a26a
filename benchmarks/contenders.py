"""Contenders: who is compared, and what does each make of a training step?

Input: a `Panel` (a model on a GPU), and for those that take one a budget. Output: figures, as
plain data: device bytes as compiled, host bytes, the step's seconds and stalls as replayed
(measured where the GPU is attached).
The one convention: policies are compiled for the same GPU with *memory to spare*, so that XLA's
own rematerialisation does not mix into what they do. The step as written and XLA's own rows get
the memory that they are about; plans the GPU's own, or their budget where that is more, since a
plan tells XLA its budget as a share of the memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from benchmarks.panels import MODELS, Panel
from jaxswap._errors import BadArgumentError

Kind = Literal["unplanned", "policy", "xla", "paper", "jaxswap"]
Figures = dict[str, Any]

# More than any step here needs.
AMPLE_BYTES = 2**40
# XLA's GPU compiler lets temporaries have 95 % of what arguments and outputs leave of the device
# (`GetSchedulerMemoryLimit`, openxla/xla xla/service/gpu/gpu_hlo_schedule.cc).
_XLA_SLOP = 0.95
_XLA_OFFLOAD = {"xla_gpu_enable_host_memory_offloading": True}
_OVERLAP = {"xla_gpu_enable_latency_hiding_scheduler": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to run a step.

    Attributes:
        name: on the command line and in the tables.
        kind: what it is compared as.
        run: `run(panel)`, or `run(panel, unplanned, budget_bytes)` for those with a budget,
            where `unplanned` are the figures of the unconstrained step.
    """

    name: str
    kind: Kind
    run: Callable[..., Figures]

    @property
    def has_budget(self) -> bool:
        """Whether it aims at a number of bytes."""
        return self.kind in ("xla", "paper", "jaxswap")


def _verify(
    panel: Panel, *, memory_bytes: int | None, options: Mapping[str, Any] | None = None, **changes
) -> Figures:
    """Compiles the step for the panel's GPU with that much memory; its own for None."""
    from jaxswap import verify

    workload = panel.build(**changes)
    found = verify(
        workload.step,
        *workload.args,
        device=panel.gpu(memory_bytes),
        donate_argnums=workload.donate_argnums,
        options=options,
    )
    line = found.timeline
    return {
        "device_bytes": found.device_bytes,
        "temp_bytes": found.compiled.temp_bytes,
        "host_bytes": found.host_bytes,
        "step_s": found.step_s,
        "time_is": found.time_is,
        "compute_s": line.compute_s,
        "stall_s": line.stall_s,
        "to_host_bytes": line.to_host_bytes,
        "to_device_bytes": line.to_device_bytes,
        "notes": found.notes,
    }


def _run_as_written(panel: Panel) -> Figures:
    return _verify(panel, memory_bytes=None)


def _run_unconstrained(panel: Panel) -> Figures:
    return _verify(panel, memory_bytes=AMPLE_BYTES)


def _run_policy(panel: Panel, *, remat: str, options: Mapping[str, Any] | None = None) -> Figures:
    return _verify(panel, memory_bytes=AMPLE_BYTES, options=options, remat=remat)


def device_for_xla(budget_bytes: int, base_bytes: int) -> int:
    """The memory of a device on which XLA limits itself to a budget.

    Example:
        >>> device_for_xla(1000, 240)
        1040
    """
    temporaries = (budget_bytes - base_bytes) / _XLA_SLOP
    return round(temporaries + base_bytes)


def _run_xla(
    panel: Panel, unplanned: Figures, budget_bytes: int, *, options: Mapping[str, Any] | None = None
) -> Figures:
    base_bytes = unplanned["device_bytes"] - unplanned["temp_bytes"]
    memory_bytes = max(device_for_xla(budget_bytes, base_bytes), 1)
    return _verify(panel, memory_bytes=memory_bytes, options=options)


def _run_planner(panel: Panel, unplanned: Figures, budget_bytes: int, *, planner: str) -> Figures:
    import jaxswap

    del unplanned
    workload = panel.build()
    device = panel.gpu(max(panel.gpu().memory_bytes, budget_bytes))
    found = jaxswap.plan(
        workload.step,
        *workload.args,
        budget=budget_bytes,
        device=device,
        planner=planner,
        donate_argnums=workload.donate_argnums,
        confirm=True,
    )
    forecast = found.forecast
    return {
        "device_bytes": found.compiled_bytes,
        "host_bytes": forecast.host_bytes,
        "step_s": found.replayed_s,
        "time_is": "replayed",
        "is_confirmed": found.is_confirmed,
        "forecast": {
            "peak_bytes": forecast.peak_bytes,
            "step_s": forecast.step_s,
            "stall_s": forecast.stall_s,
            "recompute_s": forecast.recompute_s,
            "offload_bytes": forecast.offload_bytes,
        },
        "decided": {
            action: len(found.names(action)) for action in ("keep", "offload", "recompute")
        },
    }


# Per block. The choices by name go from what saves most to what saves least, as the ladder that
# MaxText's estimator walks down; `everything_saveable` is the step as written.
_TRANSFORMER = (
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "save_names",
    "save:qkv+attention",
    "save:attention",
    "nothing_saveable",
    "save:qkv+attention/offload:hidden",
    "offload_dot_with_no_batch_dims",
    "offload_names",
    "offload:qkv+attention",
    "offload:input",
)
_CONVOLUTIONAL = ("save:conv", "nothing_saveable", "offload:conv", "offload_names", "offload:input")
_RECURRENT = ("dots_saveable", "nothing_saveable")
PAPERS = (
    "chen",
    "vdnn-all",
    "vdnn-conv",
    "superneurons",
    "capuchin",
    "lms",
    "modnn",
    "flashneuron",
    "autotm",
)
_OWN = ("greedy", "exact", "genetic")
DEFAULT_PLANNER = "genetic"


def list_policies(model: str) -> tuple[str, ...]:
    """The policies that have something to choose from in a model's blocks."""
    if model.startswith(("resnet", "vgg", "unet")):
        return _CONVOLUTIONAL
    return _RECURRENT if model == "lstm" else _TRANSFORMER


def list_contenders(model: str) -> dict[str, Contender]:
    """All contenders on a model by name, in the order of the tables."""
    found: list[tuple[str, Kind, Callable[..., Figures]]] = [
        ("unconstrained", "unplanned", _run_unconstrained),
        ("as-written", "unplanned", _run_as_written),
    ]
    for remat in list_policies(model):
        found.append((remat, "policy", partial(_run_policy, remat=remat)))
        if "offload" in remat:
            overlapped = partial(_run_policy, remat=remat, options=_OVERLAP)
            found.append((f"overlapped:{remat}", "policy", overlapped))
    found.append(("xla", "xla", _run_xla))
    found.append(("xla-offload", "xla", partial(_run_xla, options=_XLA_OFFLOAD)))
    for name in (*PAPERS, *_OWN):
        kind = "jaxswap" if name in _OWN else "paper"
        found.append((name, kind, partial(_run_planner, planner=name)))
    return {name: Contender(name=name, kind=kind, run=run) for name, kind, run in found}


def choose_contenders(model: str, chosen: list[str]) -> list[Contender]:
    """Those of the given names and kinds; "all" is everybody. "unconstrained" always runs.

    Names that other models have are no error: not every policy applies to every model.
    """
    known = list_contenders(model)
    everywhere = {name for other in MODELS for name in list_contenders(other)}
    kinds = {contender.kind for contender in known.values()} | {"policy"}
    for name in chosen:
        if name not in everywhere | kinds | {"all"}:
            raise BadArgumentError(
                f"`--contenders {name}` is not in the benchmark: it has all, "
                f"{', '.join(sorted(kinds))}, or by name {', '.join(known)}."
            )
    wanted = {"unconstrained", *chosen}
    return [c for c in known.values() if wanted & {c.name, c.kind, "all"}]
