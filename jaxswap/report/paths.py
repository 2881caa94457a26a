"""Paths: which form of a report does a path ask for, and can it be written there?

Input: a path. Output: its suffix, or an error, before any work is done.
"""

import os
import pathlib
import tempfile

from jaxswap._errors import BadArgumentError

SUFFIXES = (".html", ".json", ".csv", ".trace.json", ".svg", ".png")


def suffix_of(path: str | os.PathLike[str]) -> str:
    """Which of the forms of a report a path asks for."""
    name = pathlib.Path(path).name
    known = [suffix for suffix in SUFFIXES if name.lower().endswith(suffix)]
    if not known or name.lower() in SUFFIXES:
        raise BadArgumentError(
            f"`{os.fspath(path)}` does not say what to write: a report is saved as one of "
            f"{', '.join('*' + suffix for suffix in SUFFIXES)}."
        )
    return max(known, key=len)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises if a file cannot be written there: before the work, not after it."""
    target = pathlib.Path(path)
    folder = target.parent
    reason = ""
    if not folder.is_dir():
        reason = f"there is no folder {os.fspath(folder)!r}: make it first"
    elif target.is_dir():
        reason = "it is a folder: give the name of a file in it"
    else:
        try:
            with tempfile.TemporaryFile(dir=folder):  # rights alone do not tell of every disk
                pass
        except OSError as error:
            where = os.fspath(folder)
            reason = f"the folder {where!r} is not writable for you ({error.strerror}): " + (
                "choose another"
            )
    if reason:
        raise BadArgumentError(f"Cannot write {os.fspath(path)!r}: {reason}.")
