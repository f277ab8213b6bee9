"""``streamrace demo``: a race that is found, witnessed and explained, and the wait that cures it; all by real runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from streamrace.reports.data.schema import read_json
from streamrace.repro.commands.demo import PROGRAMS
from tests.project.test_package import python
from tests.warm import ROOT, with_simulated_gpu

_WAIT = "    side.wait_stream(torch.cuda.current_stream())"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder in which it ran, and what it said."""
    folder = tmp_path_factory.mktemp("demo")
    own = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    own |= {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    return folder, with_simulated_gpu().run("-m", "streamrace", "demo", folder=folder, environment=own)


def test_the_race_is_found_and_explained_and_one_line_cures_it(
    ran: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = ran
    assert (done.returncode, done.stderr) == (0, "")
    told = " ".join(done.stdout.replace("│", " ").split())
    racy, cured = (read_json(folder / "runs" / "demo" / name / "findings.json") for name in ("racy", "cured"))
    assert (racy["verdict"], cured["verdict"]) == ("race", "clean")
    (race,) = racy["races"]
    assert race["witness"]["verdict"] == "harmful" and race["witness"]["token"] in told
    for side in ("first", "second"):
        assert f"racy.py:{race[side]['stack'][0]['line']} <module>" in told
    assert "Missing: stream 1 never waits for stream 'default' after add" in told
    assert "In which timing it shows" in told and "The witness, in which it shows" in told
    assert f"+ {_WAIT.strip()}" in told
    assert "streamrace fix runs/demo/racy 1 # what would cure it" in told


def test_it_runs_again_in_the_same_place_with_the_extra_that_check_needs_and_no_more(
    ran: tuple[Path, subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    done = python("from streamrace.repro.__main__ import main; main(['demo'])", with_extra="reports", folder=ran[0])
    assert done.returncode == 0, done.stderr
    assert "verdict: race" in done.stdout and "verdict: clean" in done.stdout
    assert max(map(len, done.stdout.replace("\x1b", "").splitlines())) < 160


def test_what_it_says_comes_from_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the cured program in both places there is no race to be found, and it does not say that there is one."""
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    shutil.copytree(PROGRAMS, tmp_path / "programs")
    shutil.copy(tmp_path / "programs" / "cured.py", tmp_path / "programs" / "racy.py")
    replaced = f"from streamrace.repro.commands import demo; demo.PROGRAMS = demo.Path({str(tmp_path)!r}, 'programs')\n"
    done = python(
        f"{replaced}from streamrace.repro.__main__ import main; main(['demo'])", with_extra="reports", folder=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert "verdict: race" not in done.stdout and "(a race) and 0 (none); it ended with 0 and 0." in done.stdout


def test_the_programs_differ_in_one_line_and_are_as_short_as_promised() -> None:
    racy, cured = ((PROGRAMS / name).read_text().splitlines() for name in ("racy.py", "cured.py"))
    assert [line for line in cured if line not in racy] == [_WAIT]
    assert [line for line in cured if line in racy] == racy and len(racy) <= 12
