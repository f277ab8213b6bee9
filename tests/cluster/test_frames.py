"""What a call costs does not depend on how many functions stand above it."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from streamrace.device.ranks.cluster import Rank, run_ranks
from streamrace.process.frames import roomy

CALLS = 300
DEPTHS = range(10, 200)


class Faults(NamedTuple):
    most: int


def leaf(value: int) -> int:
    return value


def calls() -> int:
    """Pages that the system had to find for a loop of calls."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for number in range(CALLS):
        leaf(number)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def below(depth: int, work: Callable[[], int]) -> int:
    return work() if depth == 0 else below(depth - 1, work)


def most() -> int:
    return max(below(depth, calls) for depth in DEPTHS)


def test_a_loop_of_calls_maps_no_memory_however_deep_it_stands() -> None:
    assert most() >= CALLS, "somewhere a piece of frames ends"
    assert roomy(lambda: most())() < CALLS / 3


def test_a_rank_has_room(tmp_path: Path) -> None:
    found: list[int] = []

    def rank(me: Rank) -> None:
        me.report(Faults(most()))

    run_ranks(1, rank, folder=tmp_path, kinds=(Faults,), receive=lambda _, message: found.append(message.most))
    assert len(found) == 1 and found[0] < CALLS / 3
