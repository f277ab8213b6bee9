"""Dry runs: from command to verdict at 70 billion parameters, an operation there against one at 7, a whole sweep."""

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
from typing import Any

from benchmarks.figures import Figure

LIMIT_S, LIMIT_GIB, LIMIT_RATIO, LIMIT_SWEEP_S = 30.0, 4.0, 1.2, 300.0
ROUNDS = 2
_JOB = "--nodes 8 --gpus 8 --hpz 8 --micro-batch 16 --network 12.5 --fix none --expect race"
_SWEEP = "--model llama-2-7b --name bench-sweep --overwrite"


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Whole processes; both models in turn, so that both meet the same weather.

    The time of an operation is that of the rehearsal alone, from the model's first line to the end of its last step.
    Memory is a bound: twice the peak of the larger of the two processes. Raises RuntimeError when a
    command does not end as expected.
    """
    seconds: list[float] = []
    memory: list[float] = []
    ratios: list[float] = []
    each: dict[str, list[float]] = {"llama-2-70b": [], "llama-2-7b": []}
    operations: dict[str, int] = {}
    for round_ in range(ROUNDS + 1):
        say(f"dry: {f'round {round_} of {ROUNDS}' if round_ else 'warming up'}")
        for model in each:
            took, peak, found = _dry(model)
            if round_:
                each[model].append(found["host_s"] / found["operations"] * 1e6)
                operations[model] = found["operations"]
                if model == "llama-2-70b":
                    seconds.append(took)
                    memory.append(peak / (1 << 30))
        if round_:
            ratios.append(each["llama-2-70b"][-1] / each["llama-2-7b"][-1])
    rounds = f"median of {ROUNDS}: {min(seconds):.1f} to {max(seconds):.1f} s"
    figures = [
        Figure("dry", "Llama-2-70B, 64 ranks, hpZ 8: command to verdict", median(seconds), "s", LIMIT_S, rounds),
        Figure("dry", "its memory, both processes (at most: twice the larger peak)", median(memory), "GiB", LIMIT_GIB),
    ]
    for model, times in each.items():
        note = f"{operations[model]:,} operations"
        figures.append(Figure("dry", f"an operation of {model}", median(times), "us", None, note))
    note = f"median of {ROUNDS} rounds: {min(ratios):.2f} to {max(ratios):.2f}"
    figures.append(Figure("dry", "an operation at 70B against one at 7B", median(ratios), "times", LIMIT_RATIO, note))
    return figures


def measure_sweep(say: Callable[[str], None]) -> list[Figure]:
    """``make sweep`` as it is. Raises RuntimeError when it does not end as expected."""
    say("sweep: 9 networks, 6 micro-batches, five configurations")
    began = time.perf_counter()
    _run(f"sweep {_SWEEP}".split())
    note = "hpZ with four fixes, and ZeRO-3; two configurations are what the limit is for"
    took = time.perf_counter() - began
    return [Figure("sweep", "9 networks x 6 micro-batches, Llama-2-7B", took, "s", LIMIT_SWEEP_S, note)]


def _dry(model: str) -> tuple[float, int, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        peak = _run(f"dry --model {model} {_JOB} --name bench --runs {folder}".split(), allowed=(0, 1))
        took = time.perf_counter() - began
        found: dict[str, Any] = json.loads((Path(folder) / "bench" / "dry.json").read_text(encoding="utf-8"))
    if not found["races"]:
        raise RuntimeError(f"the dry run of {model} found no race without a fix")
    return took, peak, found


def _run(arguments: list[str], allowed: tuple[int, ...] = (0,)) -> int:
    """Bytes that the command and its child have together, at most: twice the larger peak, which is what wait4 tells."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([sys.executable, "-m", "repro", *arguments], stdout=said, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        if code not in allowed:
            said.seek(0)
            raise RuntimeError(f"'python -m repro {' '.join(arguments)}' ended with {code}:\n{said.read()}")
    return usage.ru_maxrss * 1024 * 2
