"""Configuration: what does an answer depend on from outside the program?

Input: environment variables, and what is installed. Output: their meaning. This is the only
file that reads environment variables for jaxswap's own sake.
"""

import hashlib
import os
from functools import cache
from importlib import metadata
from pathlib import Path


def cache_dir() -> Path:
    """Where plans and kernels are kept.

    It is `JAXSWAP_CACHE_DIR`, or `jaxswap` in the user's cache directory.
    """
    own = os.environ.get("JAXSWAP_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "jaxswap"


@cache
def find_versions() -> dict[str, str]:
    """What a plan was made with: versions, and jaxswap's own sources, which may be edited."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    found = {name: metadata.version(name) for name in ("jax", "jaxlib", "jaxswap")}
    return found | {"sources": digest.hexdigest()[:16]}
