"""Frames: which line of the user's code made an instruction?

Input: the frame tables of a module's text. Output: stack frame → `file.py:line`.
A frame is looked up from the inside outwards, past the frames of jaxswap itself: what is called
*by* jaxswap is the step, and what calls `jaxswap.verify` is not. The demo is a user's step that
happens to live in the package.
"""

import pathlib
import re
from collections.abc import Mapping

_PACKAGE = pathlib.Path(__file__).parent.parent
_DEMO = str(_PACKAGE / "demo.py")
_OWN = f"{_PACKAGE}/"
_VERIFY = f"{_PACKAGE / 'verify'}/"


def parse_frames(tables: str) -> Mapping[int, str]:
    """The line of each frame; '' for what only jaxswap made, such as its barriers."""
    files = dict(re.findall(r'^(\d+) "(.*)"$', _table(tables, "FileNames"), re.M))
    places = {
        place: (files.get(file, "?"), line)
        for place, file, line in re.findall(
            r"^(\d+) \{file_name_id=(\d+) .*? line=(\d+)", _table(tables, "FileLocations"), re.M
        )
    }
    frames = {
        # Parents are printed plus one, so that a frame without one has 1 (XLA of jaxlib 0.10).
        int(frame): (*places[place], int(parent) - 1)
        for frame, place, parent in re.findall(
            r"^(\d+) \{file_location_id=(\d+) parent_frame_id=(\d+)",
            _table(tables, "StackFrames"),
            re.M,
        )
        if place in places
    }
    return {frame: _find_line(frames, frame) for frame in frames}


def _find_line(frames: Mapping[int, tuple[str, str, int]], frame: int) -> str:
    while frame in frames:
        file, line, parent = frames[frame]
        if not file.startswith(_OWN) or file == _DEMO:
            return f"{file.rsplit('/', 1)[-1]}:{line}"
        if file.startswith(_VERIFY) or not parent < frame:  # a caller comes before what it calls
            return ""
        frame = parent
    return ""


def _table(tables: str, title: str) -> str:
    match = re.search(rf"^{title}\n(.*?)(?=^[A-Z][A-Za-z]+$|\Z)", tables, re.M | re.S)
    return match[1] if match else ""
