"""What `make bench` keeps: each row as it was measured last, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks.figures import Figure
from benchmarks.stored_rows import keep

FIRST, SECOND = {"date": "2026-01-01", "processor": "one"}, {"date": "2026-02-02", "processor": "another"}


def test_a_row_measured_again_takes_the_place_of_the_old_one_and_leaves_the_others(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    keep([Figure("dry", "70B", 6.0, "s", 8.0), Figure("watch", "a step", 3.0, "%", 2.0)], FIRST, results)

    page = keep([Figure("watch", "a step", 1.1, "%", 2.0, "median of 8")], SECOND, results).read_text()

    rows = [line for line in page.splitlines() if line.startswith(("| dry", "| watch"))]
    assert rows == ["| dry | 70B | 6 s | 8 s | yes | 1 |", "| watch | a step (median of 8) | 1.1 % | 2 % | yes | 2 |"]
    assert page.splitlines()[-2:] == [
        "1. date: 2026-01-01, processor: one",
        "2. date: 2026-02-02, processor: another",
    ]


def test_the_page_that_is_committed_is_what_its_data_say(tmp_path: Path) -> None:
    committed = Path(__file__).parents[2] / "benchmarks"
    results = tmp_path / "results.json"
    results.write_bytes((committed / "results.json").read_bytes())

    page = keep([], {}, results)

    assert page.read_text() == (committed / "results.md").read_text()


def test_every_row_has_a_function_that_measures_it() -> None:
    for name, row in bench.ROWS.items():
        assert callable(row.find() if isinstance(row, bench.Row) else row), name


def test_a_row_that_cannot_be_measured_loses_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(say: bench.Say) -> list[Figure]:
        raise RuntimeError("the command ended with 2")

    kept: list[Figure] = []
    rows: dict[str, object] = {"dry": breaks, "watch": lambda say: [Figure("watch", "a step", 1.1, "%", 2.0)]}
    monkeypatch.setattr(bench, "ROWS", rows)
    monkeypatch.setattr(bench, "keep", lambda figures, machine: kept.extend(figures) or tmp_path / "results.md")
    monkeypatch.setattr("sys.argv", ["bench", "dry", "watch"])
    monkeypatch.chdir(tmp_path)  # and nothing is written to the figures that are committed

    with pytest.raises(SystemExit, match="^dry: the command ended with 2$"):
        bench.main()

    assert "1.1 %" in capsys.readouterr().out
    assert "a step" in (tmp_path / "runs" / "bench.json").read_text()
    assert [one.what for one in kept] == ["a step"]
