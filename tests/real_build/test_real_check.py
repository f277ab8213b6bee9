"""``streamrace check --on-gpu`` in an environment with a CUDA build of torch judges the program on that build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.real_build.building import ROOT, RealBuild
from tests.real_build.running import environment

pytestmark = pytest.mark.real_build


@pytest.mark.parametrize(
    ("example", "status", "verdict"), [("racy", 1, "verdict: race"), ("fixed", 0, "verdict: clean")]
)
def test_an_example_is_judged_on_the_real_build(
    real: RealBuild, tmp_path: Path, example: str, status: int, verdict: str
) -> None:
    command = ["-m", "streamrace", "check", "--on-gpu", str(ROOT / "examples" / f"{example}_prefetcher.py")]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment(real), capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    assert verdict in done.stdout
    assert "Recorded on a GPU" in done.stdout
