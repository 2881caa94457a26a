"""Files: how does a file reach the disk whole, or not at all?

Input: a path and what to write. Output: a file.
It is written beside its place and moved there in one go: an interruption leaves what was there
before, and two writers at once leave the file of one of them.
"""

import os
import threading
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file in one move: it is there whole, or as it was."""
    target = Path(path)
    data = content.encode() if isinstance(content, str) else content
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
