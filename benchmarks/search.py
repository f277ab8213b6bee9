"""Counts the timings that each search executes until one diverges, in every scenario that has a known race.

Runs in a process of its own with a simulated GPU, which the textbook programs use through ``torch.cuda``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from statistics import median, quantiles
from typing import Any

import torch

from benchmarks.device_rows import apart
from benchmarks.figures import Figure
from benchmarks.replay import recorded
from streamrace.fuzz.search import Search
from streamrace.fuzz.search.directed import Directed
from streamrace.fuzz.search.pct import Pct
from streamrace.fuzz.search.random_timings import RandomTimings
from streamrace.fuzz.subject import Subject
from streamrace.replay.record import record
from streamrace.scenarios import program
from streamrace.scenarios.textbook import TEXTBOOK

SEEDS = 50
MOST = 200  # timings: then a seed gives up
_RECORDED: Mapping[str, Mapping[str, Any]] = {
    "hpz-short": {},
    "hpz-falcon": {"slow": {"host": "3000"}},  # at full speed the race shows in the recording
    "hpz-accumulation": {},
}
_SEARCHES: tuple[Search, ...] = (Directed(), RandomTimings(), Pct(1), Pct(2))


def measure(say: Callable[[str], None]) -> list[Figure]:
    return apart("search", say)


def measured(say: Callable[[str], None]) -> Iterator[Figure]:
    """Yield each figure when it is measured, as there are many; runs in the process with the GPU."""
    program.preload()
    for name, subject in _subjects(say):
        for search in _SEARCHES:
            say(f"search: {name}, {search.name}, {SEEDS} seeds")
            what, value = _row(name, search, subject)
            yield Figure("search", what, value, "")


def _subjects(say: Callable[[str], None]) -> Iterator[tuple[str, Subject]]:
    """Yield subjects one at a time: they are large. Raises RuntimeError where the recording already shows the race."""
    for name in (*_RECORDED, *TEXTBOOK):
        say(f"search: recording {name}")
        subject = recorded(name, _RECORDED[name]) if name in _RECORDED else Subject(record(TEXTBOOK[name].program))
        torch.set_num_threads(1)
        if subject.run().diverged:
            raise RuntimeError(f"{name} diverges as it was recorded: there is nothing to search for")
        yield name, subject


def _row(name: str, search: Search, subject: Subject) -> tuple[str, float]:
    seeds = 1 if isinstance(search, Directed) else SEEDS  # it draws nothing at random
    firsts = [_first(search, subject, seed) for seed in range(seeds)]
    numbers = [MOST if first is None else first for first in firsts]
    lost = firsts.count(None)
    note = "nothing is drawn"
    if seeds > 1:
        cuts = quantiles(numbers, n=10, method="inclusive")
        note = f"median of {seeds} seeds, eight of ten {cuts[0]:.0f} to {cuts[-1]:.0f}"
    if lost:
        note += f"; {lost} found nothing in {MOST}"
    value = median(numbers)
    if options := _RECORDED.get(name, {}).get("slow"):
        name += "".join(f", {what} {factor} times as slow" for what, factor in options.items())
    return f"{name}, {search.name}: timings to the first that diverges ({note})", value


def _first(search: Search, subject: Subject, seed: int) -> int | None:
    """Return the number of timings up to the first divergence; None without a divergence."""
    executed = enumerate(islice(search.timings(subject, seed), MOST), 1)
    return next((number for number, one in executed if one.verdict.diverged), None)
