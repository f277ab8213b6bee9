"""How many timings of a recorded training step can be executed in a second, on one core.

The scenario is 'hpz-short': four ranks of stock DeepSpeed, two optimizer steps. The first is settled, so every replay
executes one. Timings are drawn at random, as a campaign draws them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.apart import apart
from benchmarks.figures import Figure
from fuzz.strategy import draw_timing
from fuzz.subject import Subject
from scenarios import program
from scenarios.messages import Report, StepDone
from scenarios.named import named

LIMIT_MS = 20.0  # 50 a second
ROUNDS = 7
REPLAYS = 50


def measure(say: Callable[[str], None]) -> list[Figure]:
    return apart("replay", say)


def measured(say: Callable[[str], None]) -> list[Figure]:
    """Rounds of the same timings. What is measured is the wall time of one process with one thread."""
    program.preload()
    say("replay: a live run")
    live, step = _live("hpz-short")
    say("replay: recording")
    subject = recorded("hpz-short")
    random = Random(0)
    timings = [draw_timing(random, subject) for _ in range(REPLAYS)]
    replayer = subject.replayer
    whole, ordering, processor = [], [], []
    for round_ in range(1, ROUNDS + 1):
        say(f"replay: round {round_} of {ROUNDS}")
        began, spent = time.perf_counter(), time.process_time()
        for deviations in timings:
            subject.run(deviations)
        whole.append(_ms_each(began))
        processor.append((time.process_time() - spent) * 1e3 / REPLAYS)
        began = time.perf_counter()
        for deviations in timings:
            replayer.graph.order(replayer.graph.times(subject.timing(deviations)))
        ordering.append(_ms_each(began))
    settled = subject.first_step - 1
    note = (
        f"{1000 / median(whole):.0f} a second; median of {ROUNDS} rounds: {min(whole):.1f} to {max(whole):.1f}; "
        f"processor time: {median(processor):.1f}"
    )
    of = f"{subject.world} ranks, hpZ, {len(subject.operations):,} operations; settled before: {settled} of 2 steps"
    return [
        Figure("replay", f"a random timing of one optimizer step, executed and judged ({of})", median(whole), "ms",
               LIMIT_MS, note),
        Figure("replay", "of that: when each piece of work takes place", median(ordering), "ms"),
        Figure("replay", "the same step live, in four processes (the second of the run)", step * 1e3, "ms"),
        Figure("replay", "a live run of both steps, processes started and ended", live, "s"),
    ]  # fmt: skip


def recorded(name: str, options: Mapping[str, Any] | None = None) -> Subject:
    """The scenario of that name, ``options`` changed, recorded and made ready; torch is left with one thread."""
    chosen = named(name, options)
    with TemporaryDirectory() as folder:
        program.run(chosen, simulated=True, folder=Path(folder), record=True)
        torch.set_num_threads(1)
        return Subject.load(Path(folder) / "trace")


def _live(name: str) -> tuple[float, float]:
    """Seconds of a run, and of its last step, the slowest rank's."""
    steps: dict[int, float] = {}

    def receive(rank: int, report: Report) -> None:
        if isinstance(report, StepDone) and report.seconds:
            steps[rank] = report.seconds

    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        program.run(named(name), simulated=True, folder=Path(folder), receive=receive)
        return time.perf_counter() - began, max(steps.values())


def _ms_each(began: float) -> float:
    return (time.perf_counter() - began) * 1e3 / REPLAYS
