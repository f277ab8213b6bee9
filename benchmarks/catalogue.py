"""Measures the catalogue in a clean checkout, its releases installed on the way, and again with all installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import Figure
from streamrace.reports.data.catalogue import CatalogueFile

LIMIT_MIN = 15.0
_ROOT = Path(__file__).resolve().parents[1]


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure from command to table. Raises RuntimeError where the command fails: half a catalogue is no figure."""
    with tempfile.TemporaryDirectory() as folder:
        say("catalogue: with nothing installed")
        first = _minutes(Path(folder))
        say("catalogue: again")
        again = _minutes(Path(folder))
        count = len(CatalogueFile.read(Path(folder) / "runs" / "catalogue").entries)
    return [
        Figure("catalogue", f"{count} entries, both sides, releases installed on the way", first, "min", LIMIT_MIN),
        Figure("catalogue", "again, all installed", again, "min"),
    ]


def _minutes(folder: Path) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "streamrace", "catalogue", "--overwrite"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(_ROOT), "STREAMRACE_CACHE": str(folder / "cache")},
    )
    if done.returncode:
        raise RuntimeError(f"the catalogue ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return (time.perf_counter() - began) / 60
