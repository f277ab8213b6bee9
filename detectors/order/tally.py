"""Counts the occurrences of races by the pair of places they come from."""

from __future__ import annotations

from typing import NamedTuple

from detectors.order.races import Name, Occurrence, Race, RaceKind, Side, site
from simgpu.trace import Frame

EXAMPLES = 8


class Key(NamedTuple):
    """What the occurrences of one race have in common."""

    first: tuple[str, str, Frame | None, str]  # kernel, access, site, stream
    second: tuple[str, str, Frame | None, str]
    allocated: Frame | None  # of memory that was handed out again: where
    reused: bool


def key_of(first: Side, second: Side) -> Key:
    return Key(
        (first.kernel, first.access, site(first.stack), first.stream),
        (second.kernel, second.access, site(second.stack), second.stream),
        site(second.allocated or ()),
        second.allocated is not None,
    )


class _OfRank:
    """One rank's occurrences of one race. Ranks stand apart so that the order in which they are fed is forgotten."""

    __slots__ = ("examples", "first", "manifested", "number", "occurrences", "second", "slack_ns")

    def __init__(self, first: Side, second: Side, number: int, slack_ns: int) -> None:
        self.first = first
        self.second = second
        self.number = number  # how many occurrences of any race the rank had before
        self.occurrences = 0
        self.manifested = 0
        self.slack_ns = slack_ns
        self.examples: list[Occurrence] = []


class Tally:
    """One race while it is being counted."""

    __slots__ = ("_ranks", "names")

    def __init__(self) -> None:
        self._ranks: dict[int, _OfRank] = {}
        self.names: set[Name] = set()

    def of(self, rank: int, first: Side, second: Side, number: int, slack_ns: int) -> _OfRank:
        mine = self._ranks.get(rank)
        if mine is None:
            mine = self._ranks[rank] = _OfRank(first, second, number, slack_ns)
        return mine

    def place(self) -> tuple[int, int]:
        """Where the race was met first. No two races share it."""
        rank = min(self._ranks)
        return rank, self._ranks[rank].number

    def race(self, more_names: set[Name], most: int | None) -> Race:
        ranks = tuple(sorted(self._ranks))
        parts = [self._ranks[rank] for rank in ranks]
        first, second = parts[0].first, parts[0].second
        kind: RaceKind
        if second.allocated is not None:
            kind = "reused"
        elif second.access == "free":
            kind = "freed"
        elif first.access == "read":
            kind = "read-write"
        else:
            kind = "write-read" if second.access == "read" else "write-write"
        return Race(
            kind=kind,
            first=first,
            second=second,
            occurrences=sum(part.occurrences for part in parts),
            manifested=sum(part.manifested for part in parts),
            slack_ns=min(part.slack_ns for part in parts),
            ranks=ranks,
            names=tuple(sorted(self.names | more_names)),
            examples=tuple(example for part in parts for example in part.examples)[:most],
        )


class Tallies:
    """All races met so far."""

    def __init__(self, examples: int | None = EXAMPLES) -> None:
        self._most = examples
        self.count = 0
        self._by_key: dict[Key, Tally] = {}
        self._counts: dict[int, int] = {}  # occurrences of any race, by rank

    def add(self, first: Side, second: Side, occurrence: Occurrence) -> Tally:
        """Count an occurrence; returns the race it belongs to."""
        key = key_of(first, second)
        tally = self._by_key.get(key)
        if tally is None:
            tally = self._by_key[key] = Tally()
        rank = occurrence.rank
        number = self._counts.get(rank, 0)
        self._counts[rank] = number + 1
        self.count += 1
        part = tally.of(rank, first, second, number, occurrence.slack_ns)
        part.occurrences += 1
        part.manifested += occurrence.manifested
        if occurrence.slack_ns < part.slack_ns:
            part.slack_ns = occurrence.slack_ns
        if self._most is None or len(part.examples) < self._most:
            part.examples.append(occurrence)
        return tally

    def races(self, names: dict[Tally, set[Name]]) -> list[Race]:
        """The races, by rank and then in the order in which the host met them; ``names`` are added to them."""
        tallies = sorted(self._by_key.values(), key=Tally.place)
        return [tally.race(names.get(tally, set()), self._most) for tally in tallies]
