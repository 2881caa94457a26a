"""Cells: what is one configuration of the benchmark, and what does its result depend on?

Input: a `Cell` (model, GPU, contender, share of the unplanned bytes). Output: its result, written
by a child process or by whoever gave up on it, and kept (`kept.py`).
The one convention: a policy depends on its model and on the judge (compiler, replay, devices);
what jaxswap plans also depends on every source of jaxswap but its reports.
"""

import json
from dataclasses import asdict, dataclass

from benchmarks import kept
from benchmarks.contenders import Contender, list_contenders
from benchmarks.kept import Result
from benchmarks.panels import MODELS, Panel
from benchmarks.sources import digest_jaxswap, digest_judge, digest_model, digest_text
from jaxswap.model.presets import find_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One configuration: it is run in a process of its own, once.

    Attributes:
        model: a key of `contenders.MODELS`.
        device: a preset's name.
        contender: its name.
        share: the budget as a share of the unconstrained step's bytes; None without a budget.
    """

    model: str
    device: str
    contender: str
    share: float | None = None

    @property
    def panel(self) -> Panel:
        """The model on the GPU."""
        return Panel(model=self.model, device=self.device)

    def find(self) -> Contender:
        """The contender itself."""
        return list_contenders(self.model)[self.contender]

    @property
    def label(self) -> str:
        """`resnet50 rtx4090 genetic@0.5`."""
        share = "" if self.share is None else f"@{self.share:g}"
        return f"{self.model} {self.device} {self.contender}{share}"

    @property
    def name(self) -> str:
        """Of its result."""
        return f"bench/{self.model}/{self.device}/" + self.label.split(" ")[2].replace("/", "_")

    def read(self) -> Result | None:
        """The result of the present sources, else None."""
        return kept.read_kept(self.name, digest_cell(self))

    def read_newest(self) -> Result | None:
        """The result of the present sources, else that of any others, marked "is_older"."""
        return kept.read_newest(self.name, digest_cell(self))

    def write(self, sources: str, result: Result) -> Result:
        """Keeps the result of the sources that were run, and returns it."""
        return kept.write_kept(self.name, sources, {"cell": asdict(self), **result})


def digest_cell(cell: Cell) -> str:
    """Changes when anything does that the cell's result depends on."""
    plans = cell.find().kind in ("paper", "jaxswap")
    parts = [
        json.dumps(asdict(cell)),
        kept.find_version("jax"),
        repr(find_device(cell.device)),
        json.dumps(MODELS[cell.model]),
        digest_model(MODELS[cell.model][0]),
        digest_judge(),
        digest_jaxswap() if plans else "",
    ]
    return digest_text("\n".join(parts))
