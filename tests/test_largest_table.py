"""The table of largest sizes: where it looks, and what it prints."""

import pytest

from benchmarks import kept, largest_table


@pytest.mark.parametrize(
    ("start", "multiple", "limit", "goes_up", "expected"),
    [
        (100, 1, 100, False, 100),
        (100, 1, 1000, False, 100),  # larger ones are not tried
        (100, 1, 90, False, 84),
        (64, 8, 60, False, 48),
        (8, 8, 7, False, None),
        (100, 1, 130, True, 118),
        (100, 1, 90, True, 84),  # what did not fit is not tried again
        (1, 1, 3, True, 3),
    ],
)
def test_a_walk_ends_at_a_size_that_fits(start, multiple, limit, goes_up, expected):
    tried = []

    def compile_at(size):
        tried.append(size)
        return {"size": size} if size <= limit else None

    found = largest_table.walk(start, multiple, compile_at, goes_up=goes_up)
    assert (found and found["size"]) == expected
    assert len(tried) == len(set(tried))
    assert all(size % multiple == 0 for size in tried)


@pytest.mark.parametrize(
    ("forecasts", "limits", "expected"),
    [
        ((64, 512), (64, 600), (64, 424)),  # from a quarter of an octave below the forecast
        ((64, 512), (80, 300), (80, 288)),
        ((40, 48), (90, 90), (88, 88)),  # no smaller than as written
        ((0, 100), (20, 100), (16, 80)),  # the forecast lets nothing fit as written
    ],
)
def test_forecasts_say_where_to_look_and_compiled_steps_decide(forecasts, limits, expected):
    question = largest_table.Question(name="x", model="x", start=16, multiple=8)

    def compile_step(size, *, is_planned):
        return {"size": size} if size <= limits[is_planned] else None

    fits = [lambda size, limit=limit: size <= limit for limit in forecasts]
    found = largest_table.find_sizes(question, *fits, compile_step)
    assert (found["written"]["size"], found["planned"]["size"]) == expected


def make_row(**changes):
    sized = lambda size: {"size": size, "bytes": 20e9, "step_s": 0.5}
    return {
        "name": "x", "what": "batch", "written": sized(10), "planned": sized(30), **changes,
    }  # fmt: skip


def test_a_batch_has_to_grow_as_asked_and_a_depth_need_not():
    short = {"size": 29, "bytes": 20e9, "step_s": 0.5}
    assert largest_table.is_good(make_row())
    assert not largest_table.is_good(make_row(planned=short))
    assert not largest_table.is_good(make_row(planned=None))
    assert largest_table.is_good(make_row(planned=short, what="layers"))


def test_the_table_shows_rates_of_batches_alone():
    lines = largest_table.format_table(
        [make_row(), make_row(what="layers"), make_row(written=None)]
    )
    assert lines.splitlines()[2:] == [
        "| x, batch | 10 | 20.00 | 20.0 | 30 | 20.00 | 60.0 | 3.0x |",
        "| x, layers | 10 | 20.00 |  | 30 | 20.00 |  | 3.0x |",
        "| x, batch | - | - | - | 30 | 20.00 | 60.0 | - |",
    ]


def test_rows_are_kept_shown_and_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kept, "FOLDER", tmp_path / "rows")
    monkeypatch.setattr(largest_table, "DOC", tmp_path / "largest.md")
    monkeypatch.setattr(largest_table, "measure", lambda question: make_row(name=question.name))
    assert largest_table.main(["--only", "moe", "--table"]) == 0
    assert "moe" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        largest_table.main(["--table", "--write"])
    assert "no row was run yet" in capsys.readouterr().err
    assert not (tmp_path / "largest.md").exists()
    assert largest_table.main(["--only", "moe", "--write"]) == 0
    monkeypatch.setattr(largest_table, "measure", None)  # it is not asked again
    assert largest_table.main(["--only", "moe"]) == 0
    page = (tmp_path / "largest.md").read_text()
    assert "| moe, batch | 10 |" in page
    assert "Not run: gpt2-small, bert-base," in page
    monkeypatch.setattr(largest_table, "measure", lambda question: make_row(name=question.name))
    largest_table.main(["--only", "unet", "--write"])
    assert "moe" not in capsys.readouterr().out.splitlines()[-1]
    page = (tmp_path / "largest.md").read_text()
    assert page.index("| unet, batch |") < page.index("| moe, batch |")  # it stays
    with pytest.raises(SystemExit):
        largest_table.main(["--only", "nobody"])
    assert "--only nobody: it is none of gpt2-small" in capsys.readouterr().err
