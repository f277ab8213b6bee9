"""What ``streamrace waits`` found, for a person: the scope first, the verdicts, and nothing that a name could do."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from streamrace.reports.data.schema import ReportError
from streamrace.reports.data.waits import WaitsFile
from streamrace.reports.pages import folders
from streamrace.reports.screen import waits as screen
from tests.reports.study_folders import REDUNDANT, wait_row, waits_folder

HOSTILE = "<script>alert(1)</script>[bold]\x1b[31m\u202e.py"


def told(folder: Path) -> str:
    console = Console(width=200, record=True, file=StringIO())
    screen.show(console, WaitsFile.read(folder))
    return console.export_text()


def test_the_scope_comes_first_and_then_what_is_needed(tmp_path: Path) -> None:
    rows = (wait_row(), wait_row(line=154, **REDUNDANT))
    folder = waits_folder(tmp_path / "it", *rows, scope="This program.", together=["train.py:3"])
    lines = told(folder).splitlines()
    assert lines[0] == "This program."
    assert lines[1] == ("2 lines that wait: 1 carries load, 1 redundant. Live runs confirm 2 of the 2 that were tried.")
    page = folders.page([folder]).replace("<wbr>", "")
    assert "ordered by stream &#39;a&#39; waits for stream &#39;b&#39; (train.py:3)" in page
    assert "t1,0/0/aten::addcdiv/1+128us" in page


def test_where_a_live_run_differs_it_is_said_and_counted(tmp_path: Path) -> None:
    row = wait_row(**REDUNDANT, live="disagrees", says="a live run without it has a race")
    folder = waits_folder(tmp_path / "it", row)
    assert WaitsFile.read(folder).disagree == 1
    assert "Trace and live run differ at" in told(folder)


def test_a_name_does_nothing_to_the_page(tmp_path: Path) -> None:
    folder = waits_folder(tmp_path / "it", wait_row(file=HOSTILE, function=HOSTILE), scope=HOSTILE)
    page = folders.page([folder])
    assert "<script>alert" not in page
    assert "\u202e" not in page


@pytest.mark.parametrize("damage", [{"verdict": "fine"}, {"line": -1}, {"races": [{}]}])
def test_a_damaged_row_is_one_sentence(tmp_path: Path, damage: dict[str, object]) -> None:
    folder = waits_folder(tmp_path / "it", wait_row())
    found = WaitsFile.read(folder).model_dump(mode="json")
    found["waits"][0] |= damage
    (folder / WaitsFile.NAME).write_text(json.dumps(found))
    with pytest.raises(ReportError):
        WaitsFile.read(folder)
