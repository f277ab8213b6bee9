"""Groups races by the wait that is missing: races that one more wait would order are one finding.

A wait is sought at the places of the accesses themselves: directly behind the first access of a race, or directly in
front of its second. There it orders every pair whose first access the host issued before that point, and whose second
it issued after. The place that orders most races is taken, then the one that orders most of the rest, and so on.

Without traces, examples decide: a race belongs to a wait if the wait, at the recorded occurrences of its place, orders
each of its kept occurrences. With :class:`TracedWaits` the wait is put into the traces, which are judged again: that
sees all occurrences, and waits by way of other streams. ``streamrace fix`` does the same for each cure.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from streamrace.detectors.confidence.edges import EdgeLine, Spot, put_in
from streamrace.detectors.identity import identity
from streamrace.detectors.order.races import Occurrence, Race, Side, site
from streamrace.detectors.streams import first_made
from streamrace.trace.records import HOST_STREAM, TraceRecord

_GROUP = re.compile(r"nccl [\d,>]+")  # of a process group without a name: the stream is named by its ranks

Where = Literal["behind", "before"]


class MissingWait(NamedTuple):
    """A wait that a program lacks. ``where``: behind the first access of race ``races[0]``, or before its second.

    ``races``: positions of the races that it orders. Where memory is freed too early (kinds ``freed`` and ``reused``),
    a ``record_stream`` behind the first access does, too.
    """

    where: Where
    races: tuple[int, ...]


def missing_waits(races: Sequence[Race], traced: TracedWaits | None = None) -> list[MissingWait]:
    """Return the waits that would order the races, each race once, in the order in which the races come."""
    waits = {(wait.races[0], wait.where): wait for at in range(len(races)) for wait in _waits_at(races, at)}
    taken = _fewest([*waits.values()], len(races))
    judged: set[int] = set()
    while traced is not None and len(races) > 1 and (seeds := {wait.races[0] for wait in taken} - judged):
        waits |= {key: traced.exactly(races, wait) for key, wait in waits.items() if key[0] in seeds}
        judged |= seeds
        taken = _fewest([*waits.values()], len(races))
    return taken


def _fewest(waits: Sequence[MissingWait], count: int) -> list[MissingWait]:
    """Return waits that together order all of ``count`` races, those that order most of them first taken."""
    left, taken = set(range(count)), list[MissingWait]()
    while left:
        possible = [wait for wait in waits if wait.races[0] in left]  # the race that marks the place belongs to it
        best = max(possible, key=lambda wait: len(left.intersection(wait.races)))
        taken.append(best._replace(races=tuple(number for number in best.races if number in left)))
        left.difference_update(best.races)
    return sorted(taken, key=lambda wait: min(wait.races))


def _waits_at(races: Sequence[Race], at: int) -> Iterator[MissingWait]:
    """Yield the waits at the two places of a race."""
    seed = races[at]
    others = [number for number in range(len(races)) if number != at]
    kept = {number for number in others if _lifetime(seed) and _same_memory(seed, races[number])}
    wheres: tuple[Where, ...] = ("behind", "before")
    for where in wheres:
        points: dict[int, list[int]] = defaultdict(list)
        for race in races:
            if _lanes_match(seed, race) and _place(seed, where) == _place(race, where):
                for pair in race.examples:
                    points[pair.rank] += [op] if (op := _op(pair, where)) is not None else []
        ops = {rank: sorted(numbers) for rank, numbers in points.items()}
        ordered = {number for number in others if _orders(seed, races[number], where, ops)}
        yield MissingWait(where, (at, *sorted(ordered | (kept if where == "behind" else set()))))


class TracedWaits:
    """Puts waits into a run's records, by rank, and judges them again: at most ``most`` records in all."""

    def __init__(self, records: Mapping[int, Sequence[TraceRecord]], most: int = 400_000) -> None:
        self._records = records
        self._size = sum(map(len, records.values()))
        self._left = most // max(self._size, 1)

    def exactly(self, races: Sequence[Race], wait: MissingWait) -> MissingWait:
        """Return the wait with the races that are gone with it; as it is if it is not reached, adds a race, or leaves
        the race whose place it has.

        Races of other ranks alone stay: there the same line uses a group of another name.
        """
        line = self._line(races[wait.races[0]], wait.where)
        if line is None or self._left < 1:
            return wait
        self._left -= 1
        changed = put_in(self._records, (line,))
        keys = {identity(race): number for number, race in enumerate(races)}
        after = {identity(race) for race in changed.races} if all(changed.reached) else set(keys)
        if not after <= keys.keys():
            return wait
        seed, *others = wait.races
        gone = {number for key, number in keys.items() if key not in after}
        if seed not in gone:
            return wait
        gone |= {number for number in others if set(races[number].ranks).isdisjoint(races[seed].ranks)}
        return wait._replace(races=(seed, *sorted(gone - {seed})))

    @staticmethod
    def _line(race: Race, where: Where) -> EdgeLine | None:
        side = race.first if where == "behind" else race.second
        frame = site(side.stack)
        if frame is None or side.access == "free":
            return None
        spot, behind = Spot(frame.file, frame.line, frame.line, frame.function), where == "behind"
        if _lifetime(race) and behind:
            return EdgeLine(spot, behind, "record_stream", side.kernel)
        if HOST_STREAM in (race.second.stream, waiting(race.second)):
            return EdgeLine(spot, behind, "synchronize stream", side.kernel, stream=race.first.stream)
        streams = {"stream": waiting(race.second)} if behind else {"awaited": race.first.stream}
        return EdgeLine(spot, behind, "wait for stream", side.kernel, **streams)


def _orders(seed: Race, race: Race, where: Where, ops: Mapping[int, Sequence[int]]) -> bool:
    """Check whether a wait at the operations ``ops`` of each rank orders each kept occurrence of ``race``."""
    if "free" in (seed.second.access, race.second.access) or not _lanes_match(seed, race):
        return False
    if _place(seed, where) == _place(race, where):
        return True
    count = bisect_left if where == "behind" else bisect_right

    def ordered(pair: Occurrence) -> bool:
        first, second, here = pair.first.op, pair.second.op, ops.get(pair.rank, ())
        return first is not None and second is not None and count(here, first) < count(here, second)

    return bool(race.examples) and all(map(ordered, race.examples))


def _op(pair: Occurrence, where: Where) -> int | None:
    return (pair.first if where == "behind" else pair.second).op


def _place(race: Race, where: Where) -> object:
    side = race.first if where == "behind" else race.second
    return site(side.stack) or side.kernel


def _lifetime(race: Race) -> bool:
    return race.kind in ("freed", "reused")


def _same_memory(one: Race, other: Race) -> bool:
    """Check whether one ``record_stream`` keeps the memory of both: the same use, or the same blocks."""
    if not _lifetime(other) or one.first.stream != other.first.stream:
        return False
    blocks = {(pair.rank, pair.block) for pair in one.examples}
    return _place(one, "behind") == _place(other, "behind") or not blocks.isdisjoint(
        (pair.rank, pair.block) for pair in other.examples
    )


def _lanes_match(one: Race, other: Race) -> bool:
    """Check whether in both the same stream would wait for the same one.

    Process groups without a name are named by their ranks: on other ranks the same lines use a group of another name.
    """
    lanes = _lanes(one), _lanes(other)
    if lanes[0] == lanes[1]:
        return True
    if not set(one.ranks).isdisjoint(other.ranks):
        return False
    bare = [tuple(_GROUP.sub("nccl", lane) for lane in pair) for pair in lanes]
    places = [(_place(race, "behind"), _place(race, "before")) for race in (one, other)]
    return bare[0] == bare[1] and places[0] == places[1]


def _lanes(race: Race) -> tuple[str, str]:
    """Return the stream that would wait, and the one that it would wait for."""
    return first_made(waiting(race.second)), first_made(race.first.stream)


def waiting(second: Side) -> str:
    """Return the stream that does not wait: of a collective the one that issued it."""
    return second.issuer or second.stream
