"""Collect: how often does Python look for garbage while steps are planned?

Input: a block of code. Output: the same block, in which the garbage collector comes rarely.
A traced step is a million objects that stay, and with Python's defaults all of them are looked
through each time there are a quarter more: that is a third of the time that tracing takes.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator

_OBJECTS = 100_000  # new ones that bring the collector; Python's default is 700

_lock = threading.Lock()
_users = 0
_before: tuple[int, int, int] = (0, 0, 0)


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Inside, the collector comes rarely, in all threads; behind the last of these, as before.

    Whoever has it switched off, or come even more rarely, is left alone.
    """
    global _users, _before
    with _lock:
        if _users == 0:
            _before = gc.get_threshold()
            if 0 < _before[0] < _OBJECTS:
                gc.set_threshold(_OBJECTS, *_before[1:])
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                gc.set_threshold(*_before)
