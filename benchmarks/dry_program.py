"""Measures dry runs of a program: ``streamrace check --dry`` of Llama-2-70B as rank 0 of 64, command to verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.device_rows import shell
from benchmarks.figures import Figure

LIMIT_S, LIMIT_GIB = 30.0, 2.0
ROUNDS = 2
_SCRIPT = Path(__file__).with_name("rehearsed_llama.py")
_JOB = "check --dry --nodes 8 --gpus 8 --hardware a100-12.5gbps --name bench"


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure whole processes; memory is that of the larger of the two.

    Raises RuntimeError where one does not end as expected.
    """
    seconds, ready, steps, peaks = [], [], [], []
    launches = ""
    for round_ in range(ROUNDS + 1):
        say(f"rehearsed: {f'round {round_} of {ROUNDS}' if round_ else 'warming up'}")
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            peak = _run([*_JOB.split(), "--runs", folder, str(_SCRIPT), "70b", f"{folder}/times"])
            took = time.perf_counter() - began
            times = json.loads(Path(folder, "times").read_text(encoding="utf-8"))
            found = json.loads(Path(folder, "bench", "findings.json").read_text(encoding="utf-8"))
        if round_:
            seconds.append(took)
            ready.append(times[0])
            steps.append(times[-1])
            peaks.append(peak / (1 << 30))
            launches = found["checked"]["seen"]
    what = "Llama-2-70B in a script of one's own, 64 ranks, hpZ 8"
    note = f"median of {ROUNDS}: {min(seconds):.1f} to {max(seconds):.1f} s"
    return [
        Figure("rehearsed", f"{what}: command to verdict", median(seconds), "s", LIMIT_S, note),
        Figure("rehearsed", "its model and deepspeed.initialize", median(ready), "s"),
        Figure("rehearsed", "its second step", median(steps), "s", None, launches),
        Figure("rehearsed", "its memory, the larger process", median(peaks), "GiB", LIMIT_GIB),
    ]


def _run(arguments: list[str]) -> int:
    """Return the peak memory, in bytes, of the command or its child, whichever is larger."""
    environment = {**shell(), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-m", "streamrace", *arguments]
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        if code:
            said.seek(0)
            raise RuntimeError(f"'streamrace {' '.join(arguments)}' ended with {code}:\n{said.read()}")
    return usage.ru_maxrss * 1024
