"""On a disk that is full, or where nothing can be written, a command says one sentence, and loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import limited
from tests.runs.test_faults import COMMANDS
from tests.studies import small
from tests.warm import Here

_TINY = ("--size", "tiny", "--ranks", "2", "--nodes", "1", "--sequence", "32", "--accumulation", "1", "--steps", "2")
_JOB = COMMANDS["dry"].arguments[1:-3]
WRITING = {
    "run": ("run", *_TINY),
    "compare": ("compare", *_TINY),
    "dry": ("dry", *_JOB),
    "sweep": ("sweep", *_JOB, "--networks", "100", "--micro-batches", "1", "--workers", "1"),
    "fuzz": ("fuzz", "hpz-short", "--examples", "20"),
    "replay": ("replay", "t1,hpz-short,x2:stream:compute"),
}


@pytest.mark.parametrize(
    ("command", "limit"),
    [
        ("run", 30_000),
        *(
            pytest.param(command, limit, marks=pytest.mark.wide)
            for command in WRITING
            for limit in (50, 3_000, 30_000, 300_000, 1_000_000)
            if (command, limit) != ("run", 30_000)
        ),
    ],
)
def test_a_full_disk_is_one_sentence(command: str, limit: int, tmp_path: Path) -> None:
    arguments = [*WRITING[command], "--runs", "runs"]
    if command in ("dry", "sweep"):
        arguments += ["--model", small.model(tmp_path)]
    if command in ("run", "dry", "sweep"):
        old = tmp_path / "runs" / "it"
        old.mkdir(parents=True)
        (old / COMMANDS[command].mark).write_text("of the old run")
        arguments += ["--name", "it", "--overwrite"]
    status, said = limited(Here(), limit, *arguments, folder=tmp_path)
    assert status in ((2,) if limit <= 30_000 else (0, 2)), said
    assert not [line for line in said if "Traceback" in line]
    if status:
        assert said[-1].startswith(("Error: ", "Ended after ")), said
        assert "File too large" in said[-1]
        if command in ("run", "dry", "sweep"):
            assert (old / COMMANDS[command].mark).read_text() == "of the old run"


@pytest.mark.wide
@pytest.mark.parametrize("limit", [50, 3_000, 30_000, 300_000])
def test_a_page_that_does_not_fit_is_one_sentence_and_the_old_page_stays(limit: int, tmp_path: Path) -> None:
    made = Here().run("-m", "streamrace", "run", *_TINY, "--name", "it", "--runs", "runs", folder=tmp_path)
    assert made.returncode in (0, 1), made.stderr
    assert Here().run("-m", "streamrace", "report", "runs/it", folder=tmp_path).returncode == 0
    page = {path.name: path.read_bytes() for path in (tmp_path / "runs" / "it" / "report").iterdir()}

    status, said = limited(Here(), limit, "report", "runs/it", folder=tmp_path)

    assert status == 2
    assert said[-1].startswith("Error: cannot write the report into runs/it/report: ") and "File too large" in said[-1]
    assert {path.name: path.read_bytes() for path in (tmp_path / "runs" / "it" / "report").iterdir()} == page
    assert not (tmp_path / "runs" / "it" / "report.new").exists()


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=pytest.mark.wide) if one in ("compare", "sweep") else one for one in WRITING]
)
def test_a_place_that_is_none_is_one_sentence(command: str, tmp_path: Path) -> None:
    """Before anything is run, which would be for nothing."""
    (tmp_path / "runs").write_text("a file")
    done = Here().run("-m", "streamrace", *WRITING[command], "--runs", "runs", folder=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith("Error: cannot ")
    assert "Not a directory" in done.stderr or "File exists" in done.stderr
    assert "reference" not in done.stdout
    assert (tmp_path / "runs").read_text() == "a file"
