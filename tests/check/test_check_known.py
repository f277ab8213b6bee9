"""``streamrace check`` where others read what it finds: formats, a baseline, comments, settings in a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from streamrace.reports.formats import items, writing
from tests.check.test_check import SUMS
from tests.formats import sarif_standard

OK = SUMS.replace("c = b.sum()", "c = b.sum()  # stream-race: ok the sum is only shown")


def test_standard_output_is_one_tools_and_all_else_is_on_standard_error(check: Any) -> None:
    """The program's own prints, too."""
    (check.folder / ".git").mkdir()
    (check.folder / "examples").mkdir()
    done = check("--format", "sarif", "--write-baseline", "known.json", check.script(SUMS, "examples/train.py"))
    assert done.status == 0, done.err  # from now on it is known
    assert "the sum is 64.0" in done.err and "Baseline: known.json" in done.err
    (result,) = sarif_standard.held_to(done.out).results
    assert [one.physical_location.artifact_location.uri for one in (*result.locations, *result.related_locations)] == [
        "examples/train.py"
    ] * 3
    assert done.out == writing.text(items.load(check.folder / "runs" / "it"), "sarif")

    moved = SUMS.replace("import torch\n", "import torch\n\n    # some lines\n", 1)
    check.script(moved, "examples/train.py")
    again = check("--baseline", "known.json", "--overwrite", "examples/train.py")
    assert (again.status, again.findings["verdict"]) == (0, "race")
    assert "Known before, and not counted: 1 in the baseline. 0 left." in again.told

    another = moved.replace("c = b.sum()", "c = b.prod()")
    check.script(another, "examples/train.py")
    another_one = check("--baseline", "known.json", "--overwrite", "examples/train.py")
    assert another_one.status == 1
    assert "In the baseline, and not in this run: Nothing orders the write by mm" in another_one.told


def test_a_comment_says_that_a_race_is_known_and_a_file_what_the_options_are(check: Any) -> None:
    (check.folder / "pyproject.toml").write_text('[tool.streamrace]\nformat = "junit"\noutput = "out.xml"\n')
    done = check(check.script(OK))
    assert (done.status, done.err) == (0, ""), done.err
    assert "Known before: the sum is only shown (train.py:11)." in done.told
    assert done.findings["races"][0]["suppressed"]["reason"] == "the sum is only shown"
    assert 'skipped="1"' in (check.folder / "out.xml").read_text()

    check.script(OK.replace(" the sum is only shown", ""))
    done = check("--overwrite", "--format", "json", "train.py")
    assert done.status == 2
    assert done.err.splitlines()[-1] == (
        "Error: '# stream-race: ok' at train.py:11 has no reason: write after it why it is, or it counts for nothing"
    )
    assert json.loads((check.folder / "out.xml").read_text())["counts"] == {"new": 1, "baseline": 0, "suppressed": 0}


def test_what_was_not_seen_whole_makes_no_baseline(check: Any) -> None:
    done = check("--write-baseline", "known.json", check.script(SUMS + "\n    raise SystemExit(7)\n"))
    assert done.status == 3
    assert "Not written: known.json." in done.told
    assert not (check.folder / "known.json").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--baseline", "nowhere.json"], "the baseline nowhere.json cannot be read: No such file or directory. "),
        (["--output", "."], "--output . is a folder: name a file"),
        (
            ["--write-baseline", "nowhere/known.json"],
            "--write-baseline nowhere/known.json is in a folder",
        ),
    ],
)
def test_what_cannot_be_read_or_written_is_said_before_the_program_runs(
    check: Any, arguments: list[str], sentence: str
) -> None:
    done = check(*arguments, check.script("print('never')"))
    assert (done.status, done.out) == (2, "")
    assert sentence in done.err
    assert not Path(check.folder, "runs", "it").exists()


def test_a_file_whose_name_is_no_text_is_checked_as_any(check: Any) -> None:
    """Its name in what others read is text: the byte as its code."""
    name = os.fsdecode(b"tr\xffin,\n::x.py")
    done = check("--format", "github", "--", check.script(SUMS, name))
    assert done.status == 1, done.err
    race, verdict = done.out.splitlines()
    assert race.startswith("::error ") and r"tr\udcffin,\u000a::x.py:11" in race and verdict.startswith("::warning ")
    assert not [line for line in done.err.splitlines() if line.lstrip().startswith("::")]
