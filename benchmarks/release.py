"""Measures another release against the pinned one: the same command, both already installed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

from benchmarks.figures import Figure

LIMIT = 2.0
ROUNDS = 3
RELEASE = "0.13.5"


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure command to verdict, in turns. Raises RuntimeError when a command does not end as expected."""
    pinned: list[float] = []
    other: list[float] = []
    _seconds(["--deepspeed", RELEASE])  # installs the release, and warms the file cache
    for round_ in range(1, ROUNDS + 1):
        say(f"release: round {round_} of {ROUNDS}")
        pinned.append(_seconds([]))
        other.append(_seconds(["--deepspeed", RELEASE]))
    ratios = [one / two for one, two in zip(other, pinned, strict=True)]
    note = f"median of {ROUNDS} rounds side by side: {min(ratios):.2f} to {max(ratios):.2f}"
    return [
        Figure("release", "DeepSpeed as pinned, command to verdict", median(pinned), "s"),
        Figure("release", f"DeepSpeed {RELEASE}, command to verdict", median(other), "s"),
        Figure("release", f"{RELEASE} against the pinned release", median(ratios), "times", LIMIT, note),
    ]


def _seconds(options: list[str]) -> float:
    command = [sys.executable, "-m", "streamrace", "run", "--name", "bench-release", "--overwrite", "--expect", "clean"]
    began = time.perf_counter()
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - began
