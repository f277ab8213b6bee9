"""Measures the time from command to verdict of ``make repro-unstable``."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

from benchmarks.figures import Figure

LIMIT_S, LIMIT_KEPT_S = 20.0, 9.0
ROUNDS = 3
_COMMAND = "-m streamrace run --fix none --name bench-unstable --overwrite --expect unstable"
_PLAIN = """
from benchmarks.step import once
from streamrace.scenarios import program
from streamrace.scenarios.scenario import scenario
program.preload()
once(scenario().steps, simulated=False)
"""


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure the whole process, with the reference run executed and with a kept one, in turns, after a warm-up.

    The baseline is the same training without a simulated GPU, imports and four ranks included. Raises RuntimeError when
    the command does not end as expected.
    """
    plain: list[float] = []
    again: list[float] = []
    kept: list[float] = []
    for round_ in range(ROUNDS + 1):
        say(f"command: {f'round {round_} of {ROUNDS}' if round_ else 'warming up'}")
        plain.append(_seconds("-c", _PLAIN))
        again.append(_seconds(*_COMMAND.split(), "--reference-again"))
        kept.append(_seconds(*_COMMAND.split()))
    found = [
        Figure("command", f"warm repro-unstable, command to verdict{how}", median(one[1:]), "s", limit, _note(one[1:]))
        for how, one, limit in (("", kept, LIMIT_KEPT_S), (", reference run again", again, LIMIT_S))
    ]
    what = "its training plainly on gloo, in a process of its own"
    return [*found, Figure("command", what, median(plain[1:]), "s", None, _note(plain[1:]))]


def _seconds(*arguments: str) -> float:
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        said = done.stdout + done.stderr
        raise RuntimeError(f"'python {' '.join(arguments)}' ended with {done.returncode}:\n{said}")
    return time.perf_counter() - began


def _note(seconds: list[float]) -> str:
    return f"median of {ROUNDS}: {min(seconds):.1f} to {max(seconds):.1f} s"
