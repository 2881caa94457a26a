"""The papers' headlines: how sizes are looked for, and what is printed."""

import pytest

from benchmarks import headlines
from jaxswap import Device


@pytest.mark.parametrize(("limit", "largest"), [(1, 1), (100, 98), (10**9, 64 * 8), (0, 0)])
def test_the_largest_size_is_within_an_eighth_of_an_octave(limit, largest):
    found = headlines.find_largest(8 if limit > 8 else 1, lambda n: n <= limit)
    assert found <= limit or limit == 0
    assert found == pytest.approx(largest, rel=2**0.125 - 1)


def test_sizes_are_multiples():
    assert headlines.find_largest(8, lambda n: n <= 100, 8) == 96


def test_what_fits_as_written_fits_planned():
    problem = headlines.pose("gpt2-small", Device.named("t4"), layers=1, batch=1, seq=64)
    assert problem.fits_unplanned
    assert headlines.fits_planned(problem)
    assert not headlines.fits_planned(problem.at_budget(1))


def test_a_loss_is_over_the_step_as_written():
    tiny = {"layers": 3, "d_model": 128, "heads": 2, "seq": 256, "vocab": 512, "batch": 8}
    problem = headlines.pose("gpt2-small", Device.named("t4"), **tiny)
    assert headlines._loss(problem) == "+0.0%"
    assert headlines._loss(problem.at_budget(1)).startswith("does not fit: needs ")


def test_rows_are_chosen_and_written(tmp_path, monkeypatch, capsys):
    row = headlines.Headline(name="x", paper="X: y", claim="2x", ours=lambda: ("here", "3x"))
    monkeypatch.setattr(headlines, "HEADLINES", (row,))
    monkeypatch.setattr(headlines, "DOC", tmp_path / "headlines.md")
    assert headlines.main(["--only", "x", "--write"]) == 0
    assert "| X: y | 2x | here | 3x |" in capsys.readouterr().out
    assert "**forecast**" in (tmp_path / "headlines.md").read_text()
    with pytest.raises(SystemExit):
        headlines.main(["--only", "nobody"])
    assert "--only nobody: it is none of x" in capsys.readouterr().err
