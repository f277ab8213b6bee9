"""``streamrace explain`` of a race that ``streamrace check`` found: docs/how-to/explain.md as it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from streamrace.repro.__main__ import main
from tests.check.conftest import Checking

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "explain.md"


def test_the_page_shows_what_it_says(
    check: Checking, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    program = re.findall(r"<!-- train.py -->\n```python\n(.*?)```", text, re.DOTALL)[0]
    shown = re.findall(r"<!-- what it says -->\n```\n(.*?)```", text, re.DOTALL)[0]
    check.script(program)
    assert check("--witnesses", "1", "train.py").status == 1
    kept = json.loads((check.folder / "runs" / "it" / "witnesses.json").read_text())
    (witness,) = kept["witnesses"]
    assert witness["order"] == "reversed"
    assert witness["window"]["second"]["end"] < witness["window"]["first"]["end"]

    monkeypatch.chdir(check.folder)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("streamrace.reports.text._command_of", lambda name: name)
    main(["explain", "runs/it", "1"])
    assert [line.rstrip() for line in capsys.readouterr().out.replace("runs/it", "runs/train").splitlines()] == [
        line.rstrip() for line in shown.splitlines()
    ]
