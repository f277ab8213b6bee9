"""The page for coding agents: its program, its commands and its JSON are those of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.warm import ROOT, shell, with_simulated_gpu

PAGE = (ROOT / "docs" / "how-to" / "agents.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def holds(expected: Any, found: Any) -> bool:
    """Whether ``found`` has all that ``expected`` has; it may have more fields."""
    if isinstance(expected, dict):
        return all(holds(value, found[name]) for name, value in expected.items())
    if isinstance(expected, list):
        return len(expected) == len(found) and all(map(holds, expected, found))
    return bool(expected == found)


def test_the_page_for_agents_is_what_a_run_prints(tmp_path: Path) -> None:
    (program,), (expected,), (check, emit) = blocks("python"), blocks("json"), blocks("sh")
    (tmp_path / "suspect.py").write_text(program)
    environment = {**shell(), "PYTHONPATH": str(ROOT)}

    def run(command: str) -> Any:
        words = command.split()
        assert words[0] == "streamrace"
        started = with_simulated_gpu().start("-m", *words, folder=tmp_path, environment=environment)
        return started.completed()

    done = run(check)
    found = json.loads(done.stdout)
    assert done.returncode == found["status"] == 1, done.stderr
    assert holds(json.loads(expected), found), found
    assert {"message", "says", "command"} <= found["results"][0].keys() and "notes" in found
    assert run(emit).returncode == 0
    assert (tmp_path / "runs" / "suspect" / "test_race_1.py").is_file()
