"""Files of every kind that a command reads, damaged in any way: a sentence and the documented exit status, or success.
Never a traceback, never another file touched. (What was found so, and stands for itself: ``test_broken.py``.)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.inputs.hostile import damage
from tests.inputs.kinds import KINDS
from tests.inputs.obeyed import nothing_starts, obeyed

_HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Takes a folder for each kind with such files, whole, twice; and beside them what nobody may touch."""
    there = tmp_path_factory.mktemp("inputs")
    for kind, made in KINDS.items():
        folder = there / kind
        folder.mkdir()
        for name in ("it", "other"):
            made.make(folder / name)
        (folder / "elsewhere").mkdir()
        (folder / "elsewhere" / "victim").write_text("nobody may write here")
    with nothing_starts():
        yield there


def copied(place: Path, kind: str) -> Path:
    folder = place / "example"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(place / kind, folder, symlinks=True)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_whole_it_is_read(kind: str, place: Path) -> None:
    """So what is refused below is refused for what was done to it."""
    said = obeyed(KINDS[kind].command, copied(place, kind))
    assert said.status in (0, 3, 4) and (said.status != 3 or "no process is started here" in said.err), said


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_it_is_a_sentence_or_a_success(kind: str, place: Path) -> None:
    @examples(5, suppress_health_check=_HEALTH)
    @given(st.data())
    def tried(data: st.DataObject) -> None:
        folder = copied(place, kind)
        files = sorted(
            file for pattern in KINDS[kind].files for file in (folder / "it").glob(pattern) if file.is_file()
        ) or [folder / "it.json"]
        for file in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=2, unique=True)):
            damage(data.draw, file)
        lead_astray(data, folder / "it")
        obeyed(KINDS[kind].command, folder)

    tried()


def lead_astray(data: st.DataObject, it: Path) -> None:
    """Where a command writes there may be links that came with the folder."""
    how = data.draw(st.sampled_from(("not", "not", "not", "folder", "file", "part")))
    if how == "folder":
        (it / "report").symlink_to("../elsewhere")
    elif how in ("file", "part"):
        (it / "report").mkdir()
        for name in ("index.html", "report.md", "findings.json", "metrics.csv"):
            (it / "report" / (f".part.{name}" if how == "part" else name)).symlink_to("../../elsewhere/victim")
            os.symlink("../../elsewhere/victim", it / "report" / (f".{name}.part" if how == "part" else f"x{name}"))
