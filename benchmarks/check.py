"""Measures the time that ``streamrace check`` adds to a script, against the script on the simulated GPU alone."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.device_rows import shell
from benchmarks.figures import Figure

LIMIT_S = 4.0
ROUNDS = 5
_EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
_SCRIPTS = {"fixed_prefetcher.py": (0, "clean"), "racy_prefetcher.py": (1, "its race witnessed")}


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure both in turns, under the same load. Raises RuntimeError when a command does not end as expected."""
    found = []
    with tempfile.TemporaryDirectory() as runs:
        for script, (status, how) in _SCRIPTS.items():
            place = str(_EXAMPLES / script)
            added: list[float] = []
            for round_ in range(ROUNDS + 1):
                say(f"check: {script}, {f'round {round_} of {ROUNDS}' if round_ else 'warming up'}")
                alone = _seconds(["-m", "streamrace.device", place], 0)
                checked = _seconds(["-m", "streamrace", "check", "--runs", runs, "--overwrite", place], status)
                if round_:
                    added.append(checked - alone)
            note = f"median of {ROUNDS} rounds: {min(added):.1f} to {max(added):.1f} s"
            what = f"what 'streamrace check' adds to a script of 46 lines ({how})"
            found.append(Figure("check", what, median(added), "s", LIMIT_S, note))
    return found


def _seconds(words: list[str], status: int) -> float:
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=shell())
    if done.returncode != status:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - began
