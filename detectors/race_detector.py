"""Detects races: groups the unordered pairs that happens-before finds by their pair of source places."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from streamrace.detectors.base import Detector
from streamrace.detectors.engines import Engine, EnginesDiffer, OrderEngine, orders
from streamrace.detectors.identity import RaceKey, identity_of
from streamrace.detectors.order.races import Name, Occurrence, Race, RaceKind, Side
from streamrace.trace.encoding import Encoded
from streamrace.trace.records import TraceRecord

EXAMPLES = 8
Counts = Callable[[Occurrence], bool]
_Answer = TypeVar("_Answer")


Noticed = Callable[[RaceKey, Occurrence], None]


class _OfRank:
    """One rank's occurrences of one race. Ranks are kept apart, so that the result does not depend on their order."""

    __slots__ = ("examples", "first", "manifested", "number", "occurrences", "second", "slack_ns")

    def __init__(self, first: Side, second: Side, number: int, slack_ns: int) -> None:
        self.first = first
        self.second = second
        self.number = number  # how many occurrences of any race the rank had before
        self.occurrences = 0  # those that count
        self.manifested = 0
        self.slack_ns = slack_ns
        self.examples: list[Occurrence] = []


class _Race:
    """One race while it is being counted. ``names`` are added when the labels of its bytes arrive."""

    __slots__ = ("_ranks", "names")

    def __init__(self) -> None:
        self._ranks: dict[int, _OfRank] = {}
        self.names: set[Name] = set()

    def of(self, rank: int, first: Side, second: Side, number: int, slack_ns: int) -> _OfRank:
        rank_part = self._ranks.get(rank)
        if rank_part is None:
            rank_part = self._ranks[rank] = _OfRank(first, second, number, slack_ns)
        return rank_part

    def place(self) -> tuple[int, int]:
        """Return the race's first occurrence, as rank and number. No two races share it."""
        rank = min(self._ranks)
        return rank, self._ranks[rank].number

    @property
    def counts(self) -> bool:
        """Return whether any occurrence of the race counts."""
        return any(rank_part.occurrences for rank_part in self._ranks.values())

    def race(self, most: int | None) -> Race:
        began = self._ranks[min(self._ranks)]
        first, second = began.first, began.second
        ranks = tuple(sorted(rank for rank, rank_part in self._ranks.items() if rank_part.occurrences))
        parts = [self._ranks[rank] for rank in ranks]
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
            names=tuple(sorted(self.names)),
            examples=tuple(example for part in parts for example in part.examples)[:most],
        )


class _Tally:
    """The races that one engine reports, each with its occurrences."""

    def __init__(self, most: int | None, counts: Counts | None, noticed: Noticed | None) -> None:
        self.count = 0  # occurrences of races so far
        self._most, self._counted, self._noticed = most, counts, noticed
        self._by_key: dict[RaceKey, _Race] = {}
        self._counts: dict[int, int] = {}  # occurrences of any race, by rank

    def races(self) -> list[Race]:
        """Return the races by rank and then in the order in which the host issued them."""
        return [race.race(self._most) for race in sorted(self._by_key.values(), key=_Race.place) if race.counts]

    def add(self, first: Side, second: Side, occurrence: Occurrence) -> _Race:
        """Count an occurrence; return the race it belongs to."""
        key = identity_of(first, second)
        race = self._by_key.get(key)
        if race is None:
            race = self._by_key[key] = _Race()
        rank = occurrence.rank
        number = self._counts.get(rank, 0)
        self._counts[rank] = number + 1
        rank_part = race.of(rank, first, second, number, occurrence.slack_ns)
        if self._counted is not None and not self._counted(occurrence):
            return race
        if self._noticed is not None:
            self._noticed(key, occurrence)
        self.count += 1
        if not rank_part.occurrences or occurrence.slack_ns < rank_part.slack_ns:
            rank_part.slack_ns = occurrence.slack_ns
        rank_part.occurrences += 1
        rank_part.manifested += occurrence.manifested
        if self._most is None or len(rank_part.examples) < self._most:
            rank_part.examples.append(occurrence)
        return race


class RaceDetector(Detector):
    """Finds races between streams. Accepts the ranks' records in any interleaving; the races are the same.

    ``examples``: how many occurrences of each race are kept (None: all). ``engine``: see
    :func:`streamrace.detectors.engines.orders`, also for the errors raised. ``counts``: predicate that selects the
    occurrences to count (None: all); a race without one is not reported. ``noticed``: called per counted occurrence.
    """

    def __init__(
        self,
        examples: int | None = EXAMPLES,
        *,
        engine: Engine | None = None,
        counts: Counts | None = None,
        noticed: Noticed | None = None,
    ) -> None:
        self._engines: list[tuple[OrderEngine, _Tally]] = []
        for make in orders(engine):
            tally = _Tally(examples, counts, None if self._engines else noticed)
            self._engines.append((make(tally.add), tally))

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        """Take the next records of ``rank``'s trace.

        Raises :class:`streamrace.trace.records.TraceError` for inconsistent records, ValueError after :meth:`finish`.
        """
        if len(self._engines) > 1 and not isinstance(records, Encoded):
            records = list(records)
        for order, _ in self._engines:
            order.feed(rank, records)

    def finish(self) -> None:
        """End the input: no more records will come. Further calls do nothing."""
        for order, _ in self._engines:
            order.finish()

    def waits(self, rank: int) -> bool:
        return self._agreed([order.waits(rank) for order, _ in self._engines])

    def findings(self) -> list[Race]:
        """Return the races so far, by rank and then in the order in which the host issued them.

        Raises :class:`streamrace.detectors.engines.EnginesDiffer`.
        """
        for order, _ in self._engines:
            order.settle()
        return self._agreed([tally.races() for _, tally in self._engines])

    @property
    def races(self) -> list[Race]:
        return self.findings()

    @property
    def count(self) -> int:
        """Return the number of occurrences of races so far."""
        return self._agreed([tally.count for _, tally in self._engines])

    @property
    def live_state(self) -> int:
        """Return how many blocks, markers and open collectives are kept, as a measure of memory."""
        return self._agreed([order.live_state for order, _ in self._engines])

    @staticmethod
    def _agreed(answers: list[_Answer]) -> _Answer:
        if any(answer != answers[0] for answer in answers):
            raise EnginesDiffer(
                f"the two engines do not agree, which is a bug of this project: {answers[0]} and {answers[-1]}"
            )
        return answers[0]
