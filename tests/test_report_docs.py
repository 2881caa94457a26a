"""The page on reports: its pictures are there and small, and it names what there is."""

import pathlib
import re

from jaxswap.report.figures import FIGURES
from jaxswap.report.paths import SUFFIXES
from jaxswap.report.tables import TABLES

DOCS = pathlib.Path(__file__).parent.parent / "docs"


def test_pictures_are_there_and_small():
    text = (DOCS / "reading-a-report.md").read_text("utf-8")
    named = set(re.findall(r"\((pictures/[^)]*)\)", text))
    kept = {f"pictures/{path.name}" for path in (DOCS / "pictures").glob("report-*.png")}
    assert named == kept
    for name in named:
        assert (DOCS / name).stat().st_size < 300_000


def test_every_form_is_documented():
    text = (DOCS / "reading-a-report.md").read_text("utf-8")
    for name in (*TABLES, *FIGURES):
        assert f"`{name}`" in text or f'"{name}"' in text
    for suffix in SUFFIXES:
        assert f"`{suffix}`" in text
