"""Searches the timings given by happens-before: each race is executed with its accesses reversed.

A detector finds unordered pairs, and a scheduler executes them (Sen, "Race Directed Random Testing of Concurrent
Programs", PLDI 2008). Here the scheduler is deterministic: a recording has one host thread per rank, so the pair of a
race is reversed by delaying the access that was issued first by enough (:mod:`streamrace.fuzz.witness`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, zip_longest

from streamrace.fuzz.search import Execution
from streamrace.fuzz.subject import Subject
from streamrace.fuzz.witness import reverse
from streamrace.replay.deviations import Deviation


@dataclass(frozen=True)
class Directed:
    """A finite search. The seed has no effect, as nothing is drawn.

    First one pair of each race, the most frequent race first (of equally frequent races the one whose first access was
    issued last: its delay holds up the least other work); then the other examples; then two pairs at once.
    """

    name: str = "directed"

    def timings(self, subject: Subject, seed: int = 0) -> Iterator[Execution]:
        done: dict[frozenset[Deviation], None] = {}
        for deviations in _singles(subject):
            if frozenset(deviations) not in done:
                done[frozenset(deviations)] = None
                yield Execution(subject.run(deviations), deviations)
        for first, second in combinations(list(done), 2):
            both = tuple(sorted({*first, *second}))
            if frozenset(both) not in done and len({deviation[:2] for deviation in both}) == len(both):
                done[frozenset(both)] = None
                yield Execution(subject.run(both), both)


def _singles(subject: Subject) -> Iterator[tuple[Deviation, ...]]:
    races = sorted(subject.races, key=lambda race: (-race.occurrences, -(race.examples[0].first.op or 0)))
    for examples in zip_longest(*(race.examples for race in races)):
        for race, occurrence in zip(races, examples, strict=True):
            if occurrence is not None:
                reversal = reverse(subject.recording, subject.replayer.graph, race, occurrence)
                if not reversal.reason:
                    yield reversal.deviations
