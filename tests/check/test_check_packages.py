"""A program is checked with a release that the environment has not: that one runs, and everything says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.releases.conftest import wheel
from tests.warm import ROOT

PROGRAM = """
    import stem, torch

    side = torch.cuda.Stream()
    weights = torch.zeros(1024, device="cuda")
    for step in range(3):
        weights += step + 1
        if stem.ORDERED:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            average = weights * 0.1
        torch.cuda.current_stream().wait_stream(side)
    print(stem.VERSION, average.sum().item())
"""


def releases(folder: Path) -> dict[str, str]:
    """Of one package: 1.0 and 1.1 race, 1.2 waits, 1.3 does not start; gives what lets pip have them."""
    folder.mkdir()
    for at in range(3):
        wheel(folder, "stem", f"1.{at}", f"VERSION = '1.{at}'\nORDERED = {at == 2}\n", ["leaf"])
    wheel(folder, "stem", "1.3", "import torch._six\n")
    wheel(folder, "leaf", "7.0")
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "STREAMRACE_CACHE": str(folder.with_name("cache"))}


def test_a_release_runs_and_the_verdict_and_the_witness_say_which(check: Any, tmp_path: Path) -> None:
    own = releases(tmp_path / "index")
    check.script(PROGRAM)
    done = check("--package", "stem==1.0", "--witnesses", "1", "train.py", **own)
    assert done.status == 1 and done.out.startswith("1.0 "), done.err
    assert "With stem 1.0 (not tried here before), and 1 package that it asks for." in done.told
    assert done.findings["versions"]["stem"] == "1.0" and done.findings["versions"]["leaf"] == "7.0"
    assert done.findings["scenario"]["packages"] == {"stem==1.0": "not tried", "leaf==7.0": "beside"}
    (race,) = done.findings["races"]
    assert race["witness"]["verdict"] == "harmful", "the release is there when the program runs again"
    assert " --package stem==1.0 " in race["witness"]["command"]

    (check.folder / "stem.py").write_text("VERSION = 'of the checkout'\n")
    hidden = check("--package", "stem==1.0", "--overwrite", "train.py", **own)
    assert hidden.status == 2
    assert "Error: the program would import stem from " in hidden.err and ", and not stem==1.0: move" in hidden.err


def test_what_a_release_lacked_is_in_the_verdict_and_nowhere_else(check: Any, tmp_path: Path) -> None:
    own = releases(tmp_path / "index")
    check.script(PROGRAM)
    done = check("--package", "stem==1.3", "train.py", **own)
    assert done.status == 3
    assert "asks for the module torch._six (stem.py:1), and it is not here" in done.findings["failure"]
    assert not (check.folder / "runs" / "it" / "lacked.txt").exists()


@pytest.mark.wide
def test_the_first_release_with_the_wait_is_found(check: Any, tmp_path: Path) -> None:
    own = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    own |= releases(tmp_path / "index") | {"PYTHONPATH": str(ROOT)}
    check.script(PROGRAM)

    def bisect(newest: str) -> tuple[int, dict[str, Any]]:
        words = ["--package", "stem", "--from", "1.0", "--to", newest, "--name", "bis", "--overwrite"]
        command = [sys.executable, "-m", "streamrace", "bisect", *words, "--scale-limits", "train.py"]
        done = subprocess.run(command, cwd=check.folder, env=own, capture_output=True, text=True, timeout=280)
        found: dict[str, Any] = json.loads((check.folder / "runs" / "bis" / "bisect.json").read_text())
        assert found["sentence"] in done.stdout, done.stderr
        return done.returncode, found

    status, found = bisect("1.2")
    assert (status, found["before"], found["first"]) == (0, "1.1", "1.2")
    assert found["gone"] == ["write-read of train.py:<module> and train.py:<module>"]
    ran = json.loads((check.folder / "runs" / "bis" / "1.2" / "findings.json").read_text())
    assert ran["scenario"]["scale_limits"] is True
    status, found = bisect("1.1")
    assert (status, found["first"]) == (4, "") and found["sentence"].startswith("Nothing changes: stem 1.0 and 1.1")
    status, found = bisect("1.3")
    assert (status, found["broken"]) == (4, "1.3")
    assert "torch._six" in found["sentence"] and found["sentence"].endswith("Go on with --to 1.2, or an earlier one.")
