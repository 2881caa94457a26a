"""The documentation: its links lead somewhere, and it names what there is."""

import ast
import pathlib
import re

import pytest

import jaxswap
from jaxswap.apply.check import CheckError

ROOT = pathlib.Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)]*)?\)")


def find_errors(base=jaxswap.JaxswapError):
    found = {base.__name__}
    for each in base.__subclasses__():
        found |= find_errors(each)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    links = _LINK.findall(page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_error_has_a_section():
    assert CheckError.__name__ in find_errors()
    headings = re.findall(r"^## (\w+Error)$", (ROOT / "docs/errors.md").read_text("utf-8"), re.M)
    own = {name for name in find_errors() if name != "JaxswapError"}
    assert set(headings) == own


def test_the_reference_has_every_public_name():
    text = (ROOT / "docs/api.md").read_text("utf-8")
    listed = {path.rpartition(".")[2] for path in re.findall(r"^::: ([\w.]+)$", text, re.M)}
    errors = {name for name in jaxswap.__all__ if name.endswith("Error")}
    assert "_errors" in listed
    assert set(jaxswap.__all__) - errors <= listed


def test_planners_and_settings_that_are_advised_exist():
    from jaxswap.plan.base import planners

    text = (ROOT / "docs/how-to-choose.md").read_text("utf-8")
    advised = set(re.findall(r'planner="(\w+)"', text))
    advised |= {
        n
        for row in re.findall(r'^\| (`"\w.*?) \|', text, re.M)
        for n in re.findall(r'"([\w-]+)"', row)
    }
    assert {"genetic", "greedy", "capuchin"} <= advised <= set(planners())


def test_python_in_the_readme_parses():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert len(blocks) >= 2
    for block in blocks:
        ast.parse(block)
