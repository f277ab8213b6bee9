"""The same command twice gives the same table, byte for byte: of a race, a control and an open one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamrace.reports.data.catalogue import CatalogueFile
from tests.warm import ROOT

IDS = ("ds5059", "ds7606", "fsdp2-copy-in")


@pytest.mark.release
@pytest.mark.timeout(1200)
def test_the_same_command_twice_gives_the_same_table(tmp_path: Path) -> None:
    found = []
    for name in ("once", "again"):
        command = [sys.executable, "-m", "streamrace", "catalogue", "--runs", str(tmp_path), "--name", name, *IDS]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"})
        assert done.returncode == 0, done.stdout + done.stderr
        table = done.stdout[done.stdout.index("The catalogue") : done.stdout.index("Report:")]
        found.append((table, (tmp_path / name / CatalogueFile.NAME).read_bytes()))
    assert found[0] == found[1]
