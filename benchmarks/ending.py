"""Measures the time from a rank's death, or Ctrl-C, to the end of the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.figures import Figure

LIMIT_S = 10.0
ROUNDS = 3
RANKS = 4


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure both cases. Raises RuntimeError when the command does not end as expected."""
    figures = []
    for what, status in (("a rank is killed", 3), ("Ctrl-C", 130)):
        seconds = []
        for round_ in range(1, ROUNDS + 1):
            say(f"ending: {what}, round {round_} of {ROUNDS}")
            seconds.append(_ended(what, status))
        note = f"median of {ROUNDS}: {min(seconds):.2f} to {max(seconds):.2f} s"
        figures.append(Figure("ending", f"{what}: until the command has ended", median(seconds), "s", LIMIT_S, note))
    return figures


def _ended(what: str, status: int) -> float:
    with TemporaryDirectory() as runs:
        command = ["run", "--size", "tiny", "--steps", "500", "--ranks", str(RANKS), "--name", "long", "--runs", runs]
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "streamrace", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # as from a terminal: a process started in the background inherits an ignored SIGINT
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        for line in process.stdout or ():
            if "reference:" in line:
                break
        while len(ranks := _children(process.pid)) < RANKS and process.poll() is None:
            time.sleep(0.05)
        time.sleep(1.0)  # in the middle of a step
        began = time.perf_counter()
        if what == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        else:
            os.kill(ranks[-1], signal.SIGKILL)
        _, errors = process.communicate()
        if process.returncode != status:
            raise RuntimeError(f"'streamrace {' '.join(command)}' ended with {process.returncode}:\n{errors}")
        return time.perf_counter() - began


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
