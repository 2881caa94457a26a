"""The compiler's shortcuts: the same schedule and buffers, whatever is kept of kernels."""

import contextlib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxswap import _compat
from jaxswap._config import cache_dir
from jaxswap.model.device import Device
from jaxswap.verify import shortcuts, target

TARGET = Device.named("h100-sxm").target_config()


def kept_files():
    """What is in the folder of kernels."""
    folder = cache_dir() / "kernels"
    return sorted(folder.iterdir()) if folder.exists() else []


def keep(content, name="h100"):
    """Runs a compilation that leaves this in its file; returns what it started from."""
    with shortcuts.shortcut_options(name) as options:
        own = _path(options)
        before = own.read_bytes() if own.exists() else None
        own.write_bytes(content)
    return before


def _path(options):
    return Path(options["xla_gpu_kernel_cache_file"])


def test_kernels_are_kept_per_target():
    assert keep(b"one") is None
    assert keep(b"two") == b"one"
    assert keep(b"other", name="t4") is None
    assert len(kept_files()) == 2


def test_each_compilation_has_a_copy_and_the_last_to_end_is_kept():
    with shortcuts.shortcut_options("h100") as first, shortcuts.shortcut_options("h100") as second:
        assert _path(first) != _path(second)
        _path(first).write_bytes(b"first")
        _path(second).write_bytes(b"second")
    assert keep(b"") == b"first"
    assert len(kept_files()) == 1  # the copies are gone


def test_where_the_compiler_fails_nothing_is_kept():
    keep(b"bad")
    with contextlib.suppress(ZeroDivisionError), shortcuts.shortcut_options("h100"):
        raise ZeroDivisionError
    assert kept_files() == []


def test_a_file_that_grew_too_large_is_not_read_again(monkeypatch):
    monkeypatch.setattr(shortcuts, "_MAX_FILE_BYTES", 3)
    keep(b"1234")
    assert keep(b"123") is None
    assert keep(b"") == b"123"


def test_without_a_folder_to_write_to_nothing_is_kept(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("JAXSWAP_CACHE_DIR", str(tmp_path / "file"))
    with shortcuts.shortcut_options("h100") as options:
        assert "xla_gpu_kernel_cache_file" not in options


@pytest.mark.gpu_compile
@pytest.mark.parametrize("content", [None, b"no kernels"], ids=["nothing kept", "a broken file"])
def test_schedule_and_buffers_are_those_of_an_ordinary_compilation(content):
    def loss(w, x):
        return jnp.mean(jax.nn.softmax(jnp.tanh(x @ w) @ w) ** 2)

    shape = lambda *dims: jax.ShapeDtypeStruct(dims, jnp.float32)
    lowered = _compat.lower_for_gpu(jax.jit(jax.grad(loss)), (shape(256, 256), shape(512, 256)))
    code, options = _compat.to_bytecode(lowered), {"xla_gpu_autotune_level": 0}
    ordinary = target.compiled_from(_compat.compile_stablehlo(code, TARGET, options))
    if content is not None:
        with shortcuts.shortcut_options(TARGET) as found:
            _path(found).write_bytes(content)
    assert target.compile_here(code, TARGET, options) == ordinary
    assert target.compile_here(code, TARGET, options) == ordinary  # by what was kept now
    (kept,) = kept_files()
    assert kept.stat().st_size > len(b"no kernels")
