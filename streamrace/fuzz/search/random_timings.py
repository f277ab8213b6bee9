"""Searches by independent random timings.

The simplest search, the baseline for the others; noise makers for concurrent programs draw in this way (Edelstein,
Farchi, Nir, Ratsaby and Ur, "Multithreaded Java program test generation", IBM Systems Journal 41(1), 2002).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from streamrace.fuzz.search import Execution
from streamrace.fuzz.strategy import draw_timing
from streamrace.fuzz.subject import Subject


@dataclass(frozen=True)
class RandomTimings:
    """An endless search. Each timing is drawn by :func:`streamrace.fuzz.strategy.draw_timing`."""

    name: str = "random"

    def timings(self, subject: Subject, seed: int) -> Iterator[Execution]:
        random = Random(seed)
        while True:
            deviations = draw_timing(random, subject)
            yield Execution(subject.run(deviations), deviations)
