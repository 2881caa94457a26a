"""The choice of a batch size: what was looked at, what was chosen, and why?

Input: figures per batch size. Output: a `BatchChoice`, which prints as a table.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from jaxswap._units import format_bytes
from jaxswap.plan import batch
from jaxswap.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """What is known of one batch size. Throughputs are samples per second.

    Attributes:
        batch_size: the size.
        unplanned_bytes: device bytes as it is written (forecast).
        fits: whether the step as it is written is within the budget: compiled, or by forecast.
        min_swap_bytes: the least that has to leave the device.
        unplanned: throughput as it is written, whether it fits or not (forecast).
        ideal: throughput if only those bytes are copied, beside the compute.
        accumulated: throughput of the largest size that fits, its gradients added up to this
            size; None if none fits.
        planned: throughput under a plan (forecast); None if not planned, or no plan fits.
        replayed: throughput of the compiled schedule; None if not compiled.
        compiled_bytes: device bytes of that, likewise.
    """

    batch_size: int
    unplanned_bytes: int
    fits: bool
    min_swap_bytes: int
    unplanned: float
    ideal: float
    accumulated: float | None = None
    planned: float | None = None
    replayed: float | None = None
    compiled_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChoice:
    """The batch size to train with.

    Attributes:
        batch_size: the size.
        plan: for that size; empty if it fits as it is written.
        min_swap_bytes: the least that has to leave the device at that size.
        table: every size looked at, by size.
        reason: why this one, in a sentence.
        budget_bytes: the device memory it was chosen for.
        device: the name of the device.
    """

    batch_size: int
    plan: Plan
    min_swap_bytes: int
    table: tuple[BatchRow, ...]
    reason: str
    budget_bytes: int
    device: str

    def __str__(self) -> str:
        head = f"{'batch':>6} {'unplanned':>12} {'fits':>5} {'as written':>11} {'ideal':>9}"
        head += f" {'accumulated':>11} {'planned':>9} {'replayed':>9}   samples/s"
        lines = [self.reason, head]
        for row in self.table:
            mark = "→" if row.batch_size == self.batch_size else " "
            written = [f"{rate:.1f}" if rate is not None else "–" for rate in (
                row.unplanned, row.ideal, row.accumulated, row.planned, row.replayed)]  # fmt: skip
            lines.append(
                f"{mark}{row.batch_size:>5} {format_bytes(row.unplanned_bytes):>12} "
                f"{'yes' if row.fits else 'no':>5} {written[0]:>11} {written[1]:>9} "
                f"{written[2]:>11} {written[3]:>9} {written[4]:>9}"
            )
        return "\n".join(lines)


def give_reason(best: int, rows: list[BatchRow]) -> str:
    row = next(row for row in rows if row.batch_size == best)
    rate = row.replayed or row.planned or row.unplanned
    fitting = [r for r in rows if r.fits]
    if row.fits:
        return (
            f"Batch {best}: {rate:.1f} samples/s as it is written; no larger batch gains more "
            f"than {batch.MIN_GAIN:.0%} for what it would have to offload or recompute."
        )
    if not fitting:
        return f"Batch {best}: {rate:.1f} samples/s planned; as it is written no batch fits."
    largest = max(fitting, key=lambda r: r.batch_size)
    before = largest.replayed or largest.unplanned
    return (
        f"Batch {best}: {rate:.1f} samples/s planned, {rate / before - 1:+.1%} against "
        f"{before:.1f} at {largest.batch_size}, the largest that fits as it is written; beyond "
        "it, offloading and recomputing cost more than a larger batch gains."
    )


def as_rows(choice: BatchChoice) -> list[dict[str, Any]]:
    """The table as plain data, for reports and files."""
    return [dataclasses.asdict(row) for row in choice.table]
