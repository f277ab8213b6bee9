"""Measures dry runs: command to verdict at 70 billion parameters, an operation there against one at 7, a sweep."""

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
from streamrace.studies.process_pool import cores

LIMIT_S, LIMIT_MANY_S, LIMIT_SWEEP_S = 8.0, 30.0, 60.0
LIMIT_PRICED_S = 12.0  # three steps in place of two
LIMIT_GIB, LIMIT_RATIO = 4.0, 1.2
ROUNDS = 2
_JOB = "--nodes 8 --gpus 8 --hpz 8 --micro-batch 16 --network 12.5 --fix none --expect race"
_MANY = {
    "Llama-2-70B, 1,024 ranks": "--model llama-2-70b --nodes 128 --gpus 8 --hpz 8 --micro-batch 4 --checkpointing",
    "Llama-3.1-405B, 16,384 ranks": "--model llama-3.1-405b --nodes 2048 --gpus 8 --hpz 8 --checkpointing --extend",
}
_SWEEP = "--model llama-2-7b --nodes 8 --checkpointing --name bench-sweep --overwrite"
_SWEPT = 9 * 6 * 5  # networks, micro-batches, configurations
_ALONE = "--model llama-2-7b --nodes 8 --gpus 8 --hpz 8 --checkpointing --one-rank --host none"
_FRAMEWORKS = "import torch, transformers, deepspeed"


def measure(say: Callable[[str], None]) -> list[Figure]:
    """Measure whole processes; both models in turn, so that both see the same load.

    The baseline is the frameworks' own imports, which no command can avoid. The time of an operation is that of the
    rehearsal alone, from the model's first line to the end of its last step. Memory is a bound: the peak of the largest
    process times the number of processes. Raises RuntimeError when a command does not end as expected.
    """
    seconds: list[float] = []
    imports: list[float] = []
    memory: list[float] = []
    ratios: list[float] = []
    priced: list[float] = []
    each: dict[str, list[float]] = {"llama-2-70b": [], "llama-2-7b": []}
    operations: dict[str, int] = {}
    processes = 2 + 2 * cores()  # the command and its rank, and on each processor a worker with a rank to compare
    for round_ in range(ROUNDS + 1):
        say(f"dry: {f'round {round_} of {ROUNDS}' if round_ else 'warming up'}")
        for model in each:
            took, peak, found = _dry(model, "none")
            if round_:
                each[model].append(found["host_s"] / found["operations"] * 1e6)
                operations[model] = found["operations"]
                if model == "llama-2-70b":
                    seconds.append(took)
                    memory.append(processes * peak / (1 << 30))
        if round_:
            priced.append(_dry("llama-2-70b", "epyc-7003")[0])
            imports.append(_imports())
            ratios.append(each["llama-2-70b"][-1] / each["llama-2-7b"][-1])
    figures = [
        Figure(
            "dry", "Llama-2-70B, 64 ranks, hpZ 8: command to verdict", median(seconds), "s", LIMIT_S, _rounds(seconds)
        ),
        Figure(
            "dry", "the same with a host whose Python takes time", median(priced), "s", LIMIT_PRICED_S, _rounds(priced)
        ),
        Figure("dry", f"its memory ({_bound(processes)})", median(memory), "GiB", LIMIT_GIB),
        Figure("dry", "torch, transformers and DeepSpeed imported", median(imports), "s", None, _rounds(imports)),
    ]
    for model, times in each.items():
        note = f"{operations[model]:,} operations"
        figures.append(Figure("dry", f"an operation of {model}", median(times), "us", None, note))
    note = f"median of {ROUNDS} rounds: {min(ratios):.2f} to {max(ratios):.2f}"
    figures.append(Figure("dry", "an operation at 70B against one at 7B", median(ratios), "times", LIMIT_RATIO, note))
    return figures


def measure_sweep(say: Callable[[str], None]) -> list[Figure]:
    """Measure ``make sweep`` and one of its dry runs alone. Raises RuntimeError when either breaks."""
    say("sweep: one configuration alone")
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        _run(f"dry {_ALONE} --name bench --runs {folder}".split())
        alone = time.perf_counter() - began
    say("sweep: 9 networks, 6 micro-batches, five configurations")
    began, before = time.perf_counter(), os.times()
    _run(f"sweep {_SWEEP}".split())
    took, after = time.perf_counter() - began, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    note = f"hpZ with four fixes, and ZeRO-3; {used:.0f} s of processor time"
    return [
        Figure("sweep", "9 networks x 6 micro-batches, Llama-2-7B", took, "s", LIMIT_SWEEP_S, note),
        Figure("sweep", f"... for each of its {_SWEPT} dry runs", took / _SWEPT, "s"),
        Figure("sweep", "one such dry run alone, by 'streamrace dry'", alone, "s"),
    ]


def measure_many(say: Callable[[str], None]) -> list[Figure]:
    """Measure dry runs of many ranks from few layers; at 70B also of all. Raises RuntimeError if the two disagree.

    Whole processes, classes of ranks compared; seconds of the clock, with the processor time in the note. The baseline
    is the frameworks' own imports, which no command can avoid.
    """
    say("many: imports")
    imports = [_imports() for _ in range(ROUNDS + 1)][1:]
    figures = [
        Figure("many", "torch, transformers and DeepSpeed imported", median(imports), "s", None, _rounds(imports))
    ]
    processes = 1 + 2 * cores()  # the command, and on each processor a worker with its rank
    bound = _bound(processes)
    for what, job in _MANY.items():
        say(f"many: {what}")
        took, used, peak, found = _of_many(job)
        note = f"{used:.1f} s of processor time; {len(found['ranks']['classes'])} classes of ranks compared"
        figures += [
            Figure("many", f"{what}: command to verdict", took, "s", LIMIT_MANY_S, note),
            Figure("many", f"{what}: memory ({bound})", processes * peak / (1 << 30), "GiB", LIMIT_GIB),
        ]
        if "70b" in job:
            say(f"many: {what}, all layers")
            exact, used, _, all_ = _of_many(f"{job} --exact")
            figures.append(Figure("many", f"{what}, all layers", exact, "s", None, f"{used:.1f} s of processor time"))
            error = 100 * abs(found["step_s"] / all_["step_s"] - 1)
            figures.append(Figure("many", f"{what}, few layers against all: a step's time", error, "%", 0.5))
            for field in ("operations", "fits"):
                if found[field] != all_[field]:
                    raise RuntimeError(f"few layers and all do not agree on {field}: {found[field]}, {all_[field]}")
            if found["memory"]["peak"] != all_["memory"]["peak"]:
                raise RuntimeError("few layers and all do not agree on the peak of memory")
    return figures


def _bound(processes: int) -> str:
    return f"at most: {processes} processes, each with the largest one's peak"


def _of_many(job: str) -> tuple[float, float, int, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        began, before = time.perf_counter(), os.times()
        peak = _run(f"dry {job} --name bench --runs {folder}".split(), allowed=(0, 1))
        took, after = time.perf_counter() - began, os.times()
        found: dict[str, Any] = json.loads((Path(folder) / "bench" / "dry.json").read_text(encoding="utf-8"))
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return took, used, peak, found


def _rounds(seconds: list[float]) -> str:
    return f"median of {ROUNDS}: {min(seconds):.1f} to {max(seconds):.1f} s"


def _imports() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", _FRAMEWORKS], check=True, capture_output=True)
    return time.perf_counter() - began


def _dry(model: str, host: str) -> tuple[float, int, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        peak = _run(f"dry --model {model} {_JOB} --host {host} --name bench --runs {folder}".split(), allowed=(0, 1))
        took = time.perf_counter() - began
        found: dict[str, Any] = json.loads((Path(folder) / "bench" / "dry.json").read_text(encoding="utf-8"))
    if not found["races"]:
        raise RuntimeError(f"the dry run of {model} found no race without a fix")
    return took, peak, found


def _run(arguments: list[str], allowed: tuple[int, ...] = (0,)) -> int:
    """Return the largest peak, in bytes, among the command and the processes that it started (ru_maxrss of wait4)."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "streamrace", *arguments], stdout=said, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        if code not in allowed:
            said.seek(0)
            raise RuntimeError(f"'streamrace {' '.join(arguments)}' ended with {code}:\n{said.read()}")
    return usage.ru_maxrss * 1024
