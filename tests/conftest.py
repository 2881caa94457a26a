"""Settings of all tests: JAX starts on the CPU, and GPU tests are skipped without a GPU."""

import os

# Before JAX starts: with the CUDA plugin and no GPU it would log a traceback.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import pytest

from jaxswap import _compat

# Compilation makes single examples slow; how many are tried is what bounds a test's time.
# Where a run decides whether a change lands it tries the same examples every time; elsewhere
# new ones.
hypothesis.settings.register_profile(
    "jaxswap", deadline=None, max_examples=50, derandomize="CI" in os.environ
)
hypothesis.settings.load_profile("jaxswap")


@pytest.fixture(autouse=True)
def _own_plans(monkeypatch, tmp_path_factory):
    """Tests plan afresh, and leave the user's plans alone."""
    monkeypatch.setenv("JAXSWAP_CACHE_DIR", str(tmp_path_factory.mktemp("plans")))


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu") and jax.default_backend() != "gpu":
            item.add_marker(pytest.mark.skip(reason="needs an attached GPU"))
        if item.get_closest_marker("gpu_compile") and not _compat.has_gpu_compiler_plugin():
            item.add_marker(pytest.mark.skip(reason="needs the extra `gpu-compile`"))
