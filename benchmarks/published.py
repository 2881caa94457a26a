"""Published throughput: which published training runs can be built here, and how?

Input: `data/throughput.csv`, every row with its source. Output: `PublishedRun`s.
A row is used when its model is in `benchmarks/models` and its step is one that this compiler
would run: rows with flash attention, which XLA does not write by itself, and rows over
several GPUs, which include communication, are left out.
"""

import csv
import pathlib
from dataclasses import dataclass
from typing import Any

_FILE = pathlib.Path(__file__).parent / "data" / "throughput.csv"
_DEVICES = {
    "A100-SXM4-40GB": "a100-40gb",
    "A100-SXM4-80GB": "a100-80gb",
    "V100-SXM2-16GB": "v100-16gb",
    "V100-SXM3-32GB": "v100-32gb",
    "RTX 2080 Ti": "rtx2080ti",
    "RTX 3090": "rtx3090",
}
_MODELS = {
    "ResNet-50 v1.5": "resnet50",
    "timm resnet18": "resnet18",
    "timm resnet50": "resnet50",
    "timm vit_tiny_patch16_224": "vit-tiny",
    "timm vit_small_patch16_224": "vit-small",
    "timm densenet121": "densenet121",
    "timm vgg16": "vgg16",
    "U-Net 2D (medical)": "unet",
}
_DTYPES = {"amp_fp16": "f16", "fp32": "f32", "tf32": "f32", "bf16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """A published training run: the workload that stands for it, and what it reached."""

    row: str
    framework: str
    model: str
    settings: dict[str, Any]
    device: str
    precision: str
    samples_per_s: float
    source: str


def published_runs() -> list[PublishedRun]:
    """The rows that can be built here, in the file's order."""
    with _FILE.open() as file:
        rows = list(csv.DictReader(file))
    return [run for row in rows if (run := _as_run(row))]


def _as_run(row: dict[str, str]) -> PublishedRun | None:
    model = _MODELS.get(row["model"])
    if row["model"].startswith("BERT-large"):
        model = "bert-large-512" if "seq512" in row["config"] else "bert-large"
    if model is None or row["n_gpus"] != "1" or not row["flash_attention"].startswith("no"):
        return None
    settings = {"batch": int(row["batch_per_gpu"]), "dtype": _DTYPES[row["precision"]]}
    return PublishedRun(
        row=row["id"],
        framework=row["framework"],
        model=model,
        settings=settings,
        device=_DEVICES[row["gpu"]],
        precision=row["precision"],
        samples_per_s=float(row["value_per_gpu"]),
        source=row["source"],
    )
