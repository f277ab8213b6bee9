"""From command to verdict: what a person waits for who types ``make repro-unstable``."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

from benchmarks.figures import Figure

LIMIT_S = 20.0
ROUNDS = 3
_COMMAND = "run --fix none --name bench-unstable --overwrite --expect unstable"


def measure(say: Callable[[str], None]) -> list[Figure]:
    """The whole process, reference run included; one run beforehand warms the file cache.

    Raises RuntimeError when the command does not end as expected.
    """
    seconds = []
    for round_ in range(ROUNDS + 1):
        say(f"command: {f'round {round_} of {ROUNDS}' if round_ else 'warming up'}")
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "repro", *_COMMAND.split()], capture_output=True, text=True)
        seconds.append(time.perf_counter() - began)
        if done.returncode:
            said = done.stdout + done.stderr
            raise RuntimeError(f"'python -m repro {_COMMAND}' ended with {done.returncode}:\n{said}")
    warm = seconds[1:]
    note = f"median of {ROUNDS}: {min(warm):.1f} to {max(warm):.1f} s"
    return [Figure("command", "warm repro-unstable, command to verdict", median(warm), "s", LIMIT_S, note)]
