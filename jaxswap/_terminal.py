"""The terminal: what does a command show while it works?

Input: what is being done. Output: a line or a bar on standard error, where somebody looks;
nothing where standard error is no terminal. Standard output is for the answer alone.
"""

import argparse
import pathlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from jaxswap.model.device import Progress


def start_on_cpu_without_gpu() -> None:
    """With the CUDA plugin and no GPU, JAX logs a traceback unless it is told to use the CPU."""
    from jaxswap import _compat

    has_gpu = pathlib.Path("/dev/nvidiactl").exists() or pathlib.Path("/dev/dxg").exists()
    if not has_gpu:
        _compat.default_to_cpu()


@contextmanager
def progress_bar(label: str, *, is_quiet: bool = False) -> Iterator[Progress]:
    """A bar that goes away when the work is done; it moves when the yielded function is called."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    is_off = is_quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=is_off) as bar:
        task = bar.add_task(label, total=None)

        def show(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total or None, description=label)

        yield show


def shown_progress(label: str, progress: Progress | None) -> AbstractContextManager[Progress]:
    """The caller's own way to show progress, or a bar."""
    return progress_bar(label) if progress is None else nullcontext(progress)


def add_command(commands: Any, name: str, run: Callable, help_: str, example: str) -> Any:
    """A command of the parser, with an example of its output below its options."""
    command = commands.add_parser(
        name,
        help=help_,
        description=help_[0].upper() + help_[1:] + ".",
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


TARGET_HELP = (
    "the step, as MODULE:FUNCTION or path/file.py:FUNCTION; the function returns "
    "(step, args) or (step, args, donate_argnums)"
)


def add_target(command: Any) -> None:
    """The step and the keywords of the function that gives it."""
    command.add_argument("target", help=TARGET_HELP)
    add_settings(command)


def add_settings(command: Any) -> None:
    """`--set KEY=VALUE`."""
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                         help="a keyword of the target function; may be repeated")  # fmt: skip
