"""Measures the time from command to token of ``make fuzz``, from a cold start."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.figures import Figure

LIMIT_S = 60.0
ROUNDS = 3


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure the whole process, each round in an empty folder, without a recording or examples.

    Raises RuntimeError when the command does not end as expected.
    """
    seconds, executed = [], 0
    for round_ in range(1, ROUNDS + 1):
        say(f"fuzz: round {round_} of {ROUNDS}")
        with TemporaryDirectory() as runs:
            command = [sys.executable, "-m", "streamrace", "fuzz", "--expect", "diverged", "--runs", runs]
            began = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True)
            seconds.append(time.perf_counter() - began)
            if done.returncode:
                raise RuntimeError(f"'streamrace fuzz' ended with {done.returncode}:\n{done.stdout + done.stderr}")
            said = json.loads((Path(runs) / "fuzz-hpz" / "timings.json").read_text())["campaign"]
        if not said["minimal"]:
            raise RuntimeError("'streamrace fuzz' ended without a minimal timing")
        executed = said["timings"] + said["shrinking"]
    note = f"{executed} executions; median of {ROUNDS}: {min(seconds):.1f} to {max(seconds):.1f} s"
    return [Figure("fuzz", "cold streamrace fuzz: recorded, found, made small", median(seconds), "s", LIMIT_S, note)]
