"""The layout: which module may import what, and that the public names are what they say."""

import ast
import pathlib
import subprocess
import sys

import pytest

import jaxswap

PACKAGE = pathlib.Path(jaxswap.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# Pure Python and NumPy: the search runs these thousands of times, the tests in milliseconds.
WITHOUT_JAX = [
    "jaxswap._errors",
    "jaxswap._units",
    "jaxswap.model.device",
    "jaxswap.model.presets",
    "jaxswap.model.transfer",
    "jaxswap.model.kernel",
    "jaxswap.model.simulate",
    "jaxswap.model.population",
    "jaxswap.program.ir",
    "jaxswap.program.liveness",
    "jaxswap.program.fusion",
    "jaxswap.program.candidates",
    "jaxswap.plan.plan",
    "jaxswap.plan.genetic",
    "jaxswap.plan.exact",
    "jaxswap.plan.literature",
    "jaxswap.verify.hlo",
    "jaxswap.verify.memory",
    "jaxswap.apply.decision",
]


def imports_of(path: pathlib.Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_private_jax_is_touched_in_one_file_only(path):
    private = ("jax._src", "jax.extend", "jaxlib._", "jaxlib.xla")
    used = {name for name in imports_of(path) if name.startswith(private)}
    assert path.name == "_compat.py" or not used


@pytest.mark.parametrize("name", WITHOUT_JAX)
def test_the_core_imports_no_jax(name):
    # The package itself offers functions that need JAX: its own import is left out.
    script = f"""
import sys, types
for package in ("", ".model", ".verify", ".apply", ".plan", ".program"):
    package = "jaxswap" + package
    module = types.ModuleType(package)
    module.__path__ = [{str(PACKAGE)!r} + package.removeprefix("jaxswap").replace(".", "/")]
    sys.modules[package] = module
import importlib
importlib.import_module({name!r})
sys.exit("jax" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_public_names_are_functions_and_not_the_packages_of_that_name():
    assert callable(jaxswap.verify)
    for name in jaxswap.__all__:
        assert getattr(jaxswap, name).__doc__


def test_importing_jaxswap_is_as_light_as_importing_jax():
    script = "import jaxswap, sys; print([m for m in ('rich', 'pygad', 'scipy.optimize', 'plotly')"
    script += " if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
