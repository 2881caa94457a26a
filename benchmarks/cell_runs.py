"""Runs: how does every cell get its result, once?

Input: cells. Output: their results, in files (`cells.py`).
The one convention: one process per cell. What a child finds it writes itself; a child that dies
or takes too long is a result too, written by the parent.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import IO

from benchmarks.cells import Cell, digest_cell
from benchmarks.kept import Result
from jaxswap._errors import BadArgumentError, BudgetInfeasibleError


def run_cell(cell: Cell) -> Result:
    """Runs one cell in this process."""
    contender, start = cell.find(), time.perf_counter()
    try:
        if cell.share is None:
            found: Result = {"figures": contender.run(cell.panel)}
        else:
            unplanned = _unplanned(cell)
            budget_bytes = int(cell.share * unplanned["device_bytes"])
            found = {"budget_bytes": budget_bytes}
            found["figures"] = contender.run(cell.panel, unplanned, budget_bytes)
        found["status"] = "ok"
    except BudgetInfeasibleError as error:
        found = {"status": "infeasible", "message": str(error), "floor_bytes": error.floor_bytes}
    except Exception as error:
        lines = traceback.format_exc().splitlines()
        found = {"status": "error", "message": f"{type(error).__name__}: {error}"[:2000]}
        found["traceback"] = lines[-12:]
    # Linux counts in KiB. A compiler in a process of its own is in the children's.
    used = max(resource.getrusage(who).ru_maxrss
               for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))  # fmt: skip
    return {**found, "wall_s": time.perf_counter() - start, "max_rss_bytes": 1024 * used}


def _unplanned(cell: Cell) -> Result:
    """The figures of the step that the budget is a share of."""
    result = replace(cell, contender="unconstrained", share=None).read()
    if result is None or result["status"] != "ok":
        raise BadArgumentError(
            f"`{cell.label}` has no budget: the unconstrained step of {cell.model} on "
            f"{cell.device} has no result. Run `--contenders unconstrained` first."
        )
    return result["figures"]


class Children:
    """The child processes under way; each is a group of its own, ended as one.

    Args:
        command: what runs one cell, given behind `--cell` as JSON.
    """

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "benchmarks.bench")) -> None:
        self._command = tuple(command)
        self._running: set[subprocess.Popen] = set()
        self._is_over = False
        self._lock = threading.Lock()

    def run(self, cell: Cell, timeout_s: float) -> Result:
        """Runs a cell in a child process; what is wrong with the child is a result too."""
        sources = digest_cell(cell)  # those that the child is about to read
        with tempfile.TemporaryFile("w+") as log:
            child = self._start(cell, log)
            try:
                code = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                _end(child)
                return cell.write(sources, {"status": "timeout", "wall_s": timeout_s})
            finally:
                self._running.discard(child)
            if code == 0 and (result := cell.read_newest()) is not None:
                return result
            if self._is_over:
                raise KeyboardInterrupt
            log.seek(0)
            tail = log.read().splitlines()[-12:]
        message = f"the child process ended with exit code {code}"
        return cell.write(sources, {"status": "error", "message": message, "traceback": tail})

    def _start(self, cell: Cell, log: IO[str]) -> subprocess.Popen:
        environment = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
        command = [*self._command, "--cell", json.dumps(asdict(cell))]
        with self._lock:
            if self._is_over:
                raise KeyboardInterrupt
            child = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
            self._running.add(child)
        return child

    def end(self) -> None:
        """Ends all of them, and starts no more."""
        with self._lock:
            self._is_over = True
        for child in list(self._running):
            _end(child)


def _end(child: subprocess.Popen) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    child.wait()


def is_done(cell: Cell, *, timeout_s: float, retry: bool) -> bool:
    """Whether there is a result that another run would not change. Errors are tried again."""
    result = cell.read()
    if result is None or result["status"] == "error":
        return False
    if result["status"] == "timeout":
        return not retry and result["wall_s"] >= timeout_s
    return not retry


def run_cells(cells: list[Cell], *, jobs: int, timeout_s: float, retry: bool = False) -> int:
    """Runs what has no result yet. Returns how many cells ended in an error."""
    children, failed = Children(), 0
    with _show_progress(len(cells)) as tell, ThreadPoolExecutor(jobs) as pool:
        try:
            # Budgets are shares of the unconstrained steps: these are waited for.
            for first in (True, False):
                batch = [c for c in cells if (c.contender == "unconstrained") == first]
                todo = [c for c in batch if not is_done(c, timeout_s=timeout_s, retry=retry)]
                for cell in batch:
                    if cell not in todo:
                        tell(cell, {}, is_kept=True)
                futures = {pool.submit(children.run, cell, timeout_s): cell for cell in todo}
                for future in as_completed(futures):
                    result = future.result()
                    failed += result["status"] == "error"
                    tell(futures[future], result)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            children.end()
            raise
    return failed


@contextmanager
def _show_progress(total: int) -> Iterator:
    """A bar on a terminal; a line per cell that was run, on standard error, anywhere else."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def tell(cell: Cell, result: Result, *, is_kept: bool = False) -> None:
            bar.update(task, advance=1, description=cell.label)
            if not is_kept:
                console.print(f"{cell.label}: {describe(result)}", soft_wrap=True, markup=False)

        yield tell


def describe(result: Result) -> str:
    """A result in a line.

    Example:
        >>> describe({"status": "timeout", "wall_s": 600.0})
        'timeout after 600 s'
    """
    if result["status"] == "ok":
        figures = result["figures"]
        return (
            f"{figures['device_bytes'] / 1e9:.2f} GB, {1e3 * figures['step_s']:.1f} ms "
            f"{figures['time_is']} ({result['wall_s']:.0f} s)"
        )
    if result["status"] == "timeout":
        return f"timeout after {result['wall_s']:.0f} s"
    return f"{result['status']}: {result.get('message', '')}"
