"""Chooses the occurrences of a race that are tried before it is judged benign."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from streamrace.detectors.files import read
from streamrace.detectors.identity import RaceKey
from streamrace.detectors.order.races import Occurrence
from streamrace.detectors.race_detector import RaceDetector


def spread(occurrences: Sequence[Occurrence]) -> list[Occurrence]:
    """Choose a few occurrences: of the lowest rank the first, last and one between, of the highest the middle one.

    ``occurrences`` are sorted by rank and time. Training repeats a pair in each layer and step. Its damage may appear
    only from the second step on, or in one layer, and neighbouring occurrences behave much the same.
    """
    ranks: dict[int, list[Occurrence]] = defaultdict(list)
    for occurrence in occurrences:
        ranks[occurrence.rank].append(occurrence)
    return [*dict.fromkeys(ranks[rank][at] for rank, at in _few({rank: len(items) for rank, items in ranks.items()}))]


def spread_of(trace_folder: Path, races: Iterable[RaceKey]) -> dict[RaceKey, list[Occurrence]]:
    """Choose as :func:`spread` does among all occurrences of each of these races of a run, which may be very many.

    The traces are read twice, and only the chosen ones are kept. Raises :class:`streamrace.trace.records.TraceError`.
    """
    counts: dict[RaceKey, Counter[int]] = {key: Counter() for key in races}

    def count(key: RaceKey, occurrence: Occurrence) -> None:
        if key in counts:
            counts[key][occurrence.rank] += 1

    read(trace_folder, [RaceDetector(noticed=count)])
    chosen = {key: _few(by_rank) for key, by_rank in counts.items() if by_rank}
    counts = {key: Counter() for key in chosen}
    occurrences: dict[RaceKey, dict[tuple[int, int], Occurrence]] = {key: {} for key in chosen}

    def keep(key: RaceKey, occurrence: Occurrence) -> None:
        if key in chosen:
            place = occurrence.rank, counts[key][occurrence.rank]
            counts[key][occurrence.rank] += 1
            if place in chosen[key]:
                occurrences[key][place] = occurrence

    read(trace_folder, [RaceDetector(noticed=keep)])
    return {key: [*dict.fromkeys(occurrences[key][place] for place in places)] for key, places in chosen.items()}


def _few(counts: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the rank and index of the occurrences to try, given the number of occurrences of each rank."""
    lowest, highest = min(counts), max(counts)
    many = counts[lowest]
    return [(lowest, 0), (highest, counts[highest] // 2), (lowest, many - 1), (lowest, many // 4)]
