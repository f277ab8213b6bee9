"""Measures the timings of a recorded training step that are executed and judged in a second, on one core.

The scenario is 'hpz-short': four ranks of stock DeepSpeed, two optimizer steps. The first is settled, so every replay
executes one. Timings are drawn at random, as a campaign draws them. Each is ordered and judged separately; work shared
with an earlier timing is not computed again (:mod:`streamrace.replay.sharing`).
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

from benchmarks.device_rows import apart
from benchmarks.figures import Figure
from streamrace.fuzz.campaign import campaign
from streamrace.fuzz.strategy import draw_timing
from streamrace.fuzz.subject import Subject
from streamrace.replay.deviations import Deviation
from streamrace.replay.sharing import SharingReplayer
from streamrace.scenarios import program
from streamrace.scenarios.messages import Report, StepDone
from streamrace.scenarios.registry import named

LIMIT_MS = 4.0  # 250 a second
LIMIT_CAMPAIGN_S = 60.0
LIMIT_WORST = 1.2  # times the time of a replay that shares nothing
ROUNDS = 5
TIMINGS = 1000  # of a round, all different
PLAINLY = 20
CAMPAIGN = 10_000


def measure(say: Callable[[str], None]) -> list[Figure]:
    return apart("replay", say)


def measured(say: Callable[[str], None]) -> list[Figure]:
    """Measure rounds that begin with nothing cached, each with its own timings; processor time of one thread."""
    program.preload()
    say("replay: a live run")
    live, step = _live("hpz-short")
    say("replay: recording")
    subject = recorded("hpz-short")
    each, ordering, own, effects = [], [], [], []
    for round_ in range(1, ROUNDS + 1):
        say(f"replay: round {round_} of {ROUNDS}")
        random, timings = Random(round_), dict[tuple[Deviation, ...], None]()
        while len(timings) < TIMINGS:
            timings[draw_timing(random, subject)] = None
        spent = time.process_time()
        subject.sharing = SharingReplayer(subject.replayer)
        for deviations in timings:
            subject.run(deviations)
        each.append(_ms_each(spent, TIMINGS))
        shared = subject.sharing.shared
        own.append(shared.whole + shared.part)
        effects.append(shared.effects / TIMINGS)
        spent = time.process_time()
        for deviations in timings:
            subject.replayer.graph.timed(subject.timing(deviations))
        ordering.append(_ms_each(spent, TIMINGS))
    say("replay: a campaign")
    again = Subject(subject.recording)
    began, spent = time.perf_counter(), time.process_time()
    found = campaign(again, examples=CAMPAIGN)
    wall, processor = time.perf_counter() - began, time.process_time() - spent
    settled = subject.first_step - 1
    of = f"{subject.world} ranks, hpZ, {len(subject.operations):,} operations; settled before: {settled} of 2 steps"
    note = (
        f"{1000 / median(each):.0f} a second; processor time, median of {ROUNDS} rounds of {TIMINGS:,} different "
        f"timings that begin with nothing known: {min(each):.2f} to {max(each):.2f}; {min(own)} to {max(own)} of "
        f"{TIMINGS:,} had an order of their own, {median(effects):.0f} pieces of work a timing were carried out"
    )
    ran = (
        f"processor time: {processor:.1f} s; {found.own:,} had an order of their own and were executed, the others as "
        f"far as these had not done the same; {found.diverged:,} diverged, {found.shrinking} more to make one small"
    )
    return [
        Figure("replay", f"a random timing of one optimizer step, executed and judged ({of})", median(each), "ms",
               LIMIT_MS, note),
        Figure("replay", "of that: when each piece of work takes place", median(ordering), "ms"),
        Figure("replay", f"a campaign of {found.timings:,} timings, Hypothesis included", wall, "s",
               LIMIT_CAMPAIGN_S, ran),
        *_worst(subject),
        Figure("replay", "the same step live, in four processes (the second of the run)", step * 1e3, "ms"),
        Figure("replay", "a live run of both steps, processes started and ended", live, "s"),
    ]  # fmt: skip


def _worst(subject: Subject) -> list[Figure]:
    """Measure timings that share nothing: as if each diverged from all others with its first operation."""
    random = Random(0)
    timings = [subject.timing(draw_timing(random, subject)) for _ in range(PLAINLY)]
    alone, plainly = [], []
    for timing in timings:
        subject.sharing.forget()
        spent = time.process_time()
        subject.sharing.run(timing)
        alone.append(_ms_each(spent, 1))
        spent = time.process_time()
        subject.replayer.run(timing)
        plainly.append(_ms_each(spent, 1))
    ratios = [one / other for one, other in zip(alone, plainly, strict=True)]
    return [
        Figure("replay", "the worst case: a timing that shares nothing with any other", median(alone), "ms",
               note=f"processor time, median of {PLAINLY}: {min(alone):.0f} to {max(alone):.0f}"),
        Figure("replay", "... executed by what shares nothing, the specification", median(plainly), "ms",
               note=f"processor time, median of {PLAINLY}: {min(plainly):.0f} to {max(plainly):.0f}; the slowest lay "
               "out memory anew"),
        Figure("replay", "the worst case against the specification", median(ratios), "times", LIMIT_WORST,
               f"median of {PLAINLY} side by side: {min(ratios):.2f} to {max(ratios):.2f}"),
    ]  # fmt: skip


def recorded(name: str, options: Mapping[str, Any] | None = None) -> Subject:
    """Return the scenario of that name, ``options`` changed, recorded and ready to replay; torch keeps one thread."""
    chosen = named(name, options)
    with TemporaryDirectory() as folder:
        program.run(chosen, simulated=True, folder=Path(folder), record=True)
        torch.set_num_threads(1)
        return Subject.load(Path(folder) / "trace")


def _live(name: str) -> tuple[float, float]:
    """Return the seconds of a run, and of the slowest rank's last step."""
    steps: dict[int, float] = {}

    def receive(rank: int, report: Report) -> None:
        if isinstance(report, StepDone) and report.seconds:
            steps[rank] = report.seconds

    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        program.run(named(name), simulated=True, folder=Path(folder), receive=receive)
        return time.perf_counter() - began, max(steps.values())


def _ms_each(spent: float, count: int) -> float:
    """Return the milliseconds of processor time since ``spent``, divided by ``count``."""
    return (time.process_time() - spent) * 1e3 / count
