"""What ``streamrace fix`` found, for a person: what was tried, what it costs, and nothing that a name could do."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from streamrace.reports.data.fixes import DIFF, FixFile
from streamrace.reports.data.schema import ReportError
from streamrace.reports.pages import folders
from streamrace.reports.screen import fixes as screen
from streamrace.reports.screen.console import Terminal
from tests.reports.study_folders import HOST, fix_folder, fix_row

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e"


def shown(folder: Path) -> str:
    said = io.StringIO()
    console = Terminal(file=said)
    console.width = 160
    screen.show(console, FixFile.read(folder))
    return said.getvalue()


def test_the_one_to_take_is_told_beside_the_price_of_the_host(tmp_path: Path) -> None:
    folder = fix_folder(tmp_path / "it", fix_row(), fix_row(**HOST))
    told = shown(folder)
    assert "Tried: clean (2 other races of the program stay)." in told
    assert "It costs nothing; the cheapest synchronisation of the host costs 160 us." in told
    assert "+_done.record()" in told
    page = folders.page([folder])
    assert "tried: clean" in page
    assert "+_done.record()" in page
    assert (folder / DIFF).read_text() == fix_row().diff


def test_what_no_live_run_bore_out_is_no_diff_to_take(tmp_path: Path) -> None:
    row = fix_row(live="race", says="the race is still there", live_longer_ns=None)
    folder = fix_folder(tmp_path / "it", row, best=None)
    told = shown(folder)
    assert "No diff to take: 1 candidates remove the race in the trace, and of 1 that were tried live none is" in told
    assert "tried: NOT" in told
    assert "+_done" not in told
    assert not (folder / DIFF).exists()


def test_names_do_nothing_in_the_terminal_and_on_the_page(tmp_path: Path) -> None:
    folder = fix_folder(tmp_path / "it", fix_row(words=HOSTILE, diff=HOSTILE, says=HOSTILE), run=HOSTILE)
    told, page = shown(folder), folders.page([folder])
    for text in (told, page):
        assert "\x1b[2J" not in text
        assert "\u202e" not in text
    assert "<script>alert" not in page


@pytest.mark.parametrize("damage", [{"live": "perhaps"}, {"longer_ns": "0"}, {"holds": None}])
def test_a_file_that_is_none_is_refused(tmp_path: Path, damage: dict[str, Any]) -> None:
    folder = fix_folder(tmp_path / "it", fix_row())
    found = FixFile.read(folder).model_dump(mode="json")
    found["rows"][0] |= damage
    (folder / FixFile.NAME).write_text(json.dumps(found))
    with pytest.raises(ReportError):
        FixFile.read(folder)
