"""What a clean verdict rests on: pairs that only an incidental host synchronisation orders.

``loss.item()`` in a line that logs makes the host wait for all earlier work of that stream, and so orders accesses
that nothing else orders. If the program logs every tenth step only, or the line is removed, there is a race. To find
such pairs the traces are judged again without these waits: first without all of them at once, which for most programs
shows that nothing rests on any; then without one *site* (a line of source) at a time.

Two kinds of waits are distinguished:

* *incidental*: the wait of a read (``.item()``, ``.tolist()``, a blocking copy to the host, a result whose size the
  host needs) and of a blocking copy to the device; and any synchronisation in a file that measures (a timer);
* *deliberate*: every other ``synchronize`` of a device, a stream or an event, a barrier, and a ``query`` that answered
  True: there is no other reason to ask for these.

A read's wait is always there for the read itself: a program that overwrites a tensor after ``.cpu()``, or uses what it
gave, relies on the purpose of that call. So pairs whose first access is the read's own are not reported.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from detectors.order.races import Race, describe, site
from detectors.race_detector import EXAMPLES, RaceKey, key_of
from simgpu.trace import HOST_STREAM, Collective, Frame, HostWait, Launch, Record, Stack, StreamName, TraceRecord

MOST_SITES = 16
_INCIDENTAL = ("read", "copy")
_MEASURES = re.compile(r"(^|[/_])(timer|timers|timing|profiler|profiling)\.py$")
How = Literal["read", "copy", "measurement"]
_WORDS: dict[How, str] = {
    "read": "the read",
    "copy": "the blocking copy to the device",
    "measurement": "the timer's wait",
}


class WaitSite(NamedTuple):
    """A line whose calls make the host wait, and for what."""

    how: How
    frame: Frame | None

    def __str__(self) -> str:
        frame = self.frame
        return f"{_WORDS[self.how]} at {frame.file}:{frame.line} {frame.function}" if frame else _WORDS[self.how]


@dataclass(frozen=True)
class Held:
    """``races`` that are there as soon as the waits of ``sites`` are not: of one site, or of several, all at once."""

    sites: tuple[WaitSite, ...]
    races: tuple[Race, ...]

    def sentence(self) -> str:
        """What holds which pairs."""
        where = ", ".join(str(one) for one in self.sites)
        pairs = "; ".join(
            f"{describe(race.first.kernel, race.first.stack)} and {describe(race.second.kernel, race.second.stack)}"
            for race in self.races
        )
        return f"without {where}: {pairs}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "sites": [{"how": one.how, "frame": one.frame._asdict() if one.frame else None} for one in self.sites],
            "sentence": self.sentence(),
            "races": [race.as_dict() for race in self.races],
        }


@dataclass(frozen=True)
class Holding:
    """``sites``: how many lines there were whose waits are incidental; ``unexamined``: of these, not left out alone."""

    held: tuple[Held, ...] = ()
    sites: int = 0
    unexamined: int = 0


Keep = Callable[[int, TraceRecord], bool]
"""Whether a record of a rank counts."""


class Waits:
    """The incidental waits of a run. :meth:`feed` it all ranks' records, each rank's in order."""

    def __init__(self) -> None:
        self.sites: dict[WaitSite, tuple[int, int]] = {}  # its first wait: which of its rank's, and the rank
        self._ranks: dict[int, _Rank] = {}
        self._markers: dict[WaitSite, set[tuple[int, int]]] = defaultdict(set)
        self._own: dict[WaitSite, set[tuple[int, int]]] = defaultdict(set)
        self._places: dict[int, list[tuple[int, WaitSite]]] = defaultdict(list)

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        state = self._ranks.setdefault(rank, _Rank())
        for record in records:
            if isinstance(record, HostWait):
                self._host_wait(rank, state, record)
            elif isinstance(record, (Launch, Collective)):
                state.last, state.ops = record, record.op
            elif isinstance(record, Record):
                state.marked = record
            elif isinstance(record, Stack):
                state.frames[record.id] = site(record.frames)
            elif isinstance(record, StreamName):
                state.names[record.stream] = record.name

    def _host_wait(self, rank: int, state: _Rank, record: HostWait) -> None:
        state.waits += 1
        frame = state.frames.get(record.stack)
        marked = state.marked if state.marked is not None and state.marked.marker == record.marker else None
        if marked is not None and state.names.get(marked.stream) == HOST_STREAM:
            return  # the host's own access to pinned memory, which is ordered by being the host's
        if record.how in _INCIDENTAL:
            found = WaitSite("read" if record.how == "read" else "copy", frame)
        elif record.how == "synchronize" and frame is not None and _MEASURES.search(frame.file):
            found = WaitSite("measurement", frame)
        else:
            return
        self.sites[found] = min((state.waits, rank), self.sites.get(found, (state.waits, rank)))
        self._markers[found].add((rank, record.marker))
        self._places[rank].append((state.ops, found))
        last = state.last
        if marked is not None and last is not None and last.stream == marked.stream and last.stack == record.stack:
            self._own[found].add((rank, last.op))

    def of(self, sites: Iterable[WaitSite]) -> set[tuple[int, int]]:
        """Rank and marker of their waits."""
        return set().union(*(self._markers[one] for one in sites))

    def own(self, sites: Iterable[WaitSite]) -> set[tuple[int, int]]:
        """Rank and operation of what these waits are for."""
        return set().union(*(self._own[one] for one in sites))

    def between(self, race: Race) -> Counter[WaitSite]:
        """The sites whose waits come between the two accesses, with the occurrences in which they do.

        None may: the pair is ordered by what another rank's host waits for.
        """
        found: Counter[WaitSite] = Counter()
        for one in race.examples:
            first, second = one.first.op, one.second.op
            if first is not None:
                found.update(
                    {place for at, place in self._places[one.rank] if first <= at and (second is None or at < second)}
                )
        return found


class _Rank:
    """Where a rank's host is."""

    __slots__ = ("frames", "last", "marked", "names", "ops", "waits")

    def __init__(self) -> None:
        self.frames: dict[int, Frame | None] = {}
        self.names: dict[int, str] = {}
        self.last: Launch | Collective | None = None
        self.marked: Record | None = None
        self.ops = self.waits = 0


def holding(waits: Waits, judge: Callable[[Keep], Sequence[Race]], *, most: int = MOST_SITES) -> Holding:
    """What a run without races rests on.

    ``judge`` gives the races, all occurrences of each, that are there when only some records count. ``most``: so many
    sites are left out alone, those between most pairs first.
    """

    def without(sites: Iterable[WaitSite]) -> list[Race]:
        dropped = waits.of(sites)
        found = judge(lambda rank, record: not (isinstance(record, HostWait) and (rank, record.marker) in dropped))
        return _but_for(found, waits.own(sites))

    found = without(waits.sites) if waits.sites else []
    between = {_key(race): waits.between(race) or Counter(waits.sites.keys()) for race in found}
    counted: Counter[WaitSite] = sum(between.values(), Counter())
    candidates = sorted(counted, key=lambda one: (-counted[one], waits.sites[one]))
    held: list[Held] = []
    explained: set[RaceKey] = set()
    for one in candidates[:most]:
        if alone := without([one]):
            held.append(Held((one,), tuple(map(_shortened, alone))))
            explained |= {_key(race) for race in alone}
    rest: dict[tuple[WaitSite, ...], list[Race]] = defaultdict(list)
    for race in found:
        if _key(race) not in explained:  # each of several is enough to order it
            rest[tuple(sorted(between[_key(race)], key=waits.sites.__getitem__))].append(race)
    for sites, races in rest.items():
        held.append(_fewest(sites, races, without, most))
    return Holding(tuple(held), len(waits.sites), max(0, len(candidates) - most))


def _fewest(
    sites: tuple[WaitSite, ...], races: Sequence[Race], without: Callable[[Iterable[WaitSite]], list[Race]], most: int
) -> Held:
    """The races with no more sites than it takes to have all of them, of the first ``most``."""
    wanted = {_key(race) for race in races}
    left = list(sites)
    for one in sites[:most]:
        fewer = [other for other in left if other != one]
        again = [race for race in without(fewer) if _key(race) in wanted] if fewer else []
        if wanted <= {_key(race) for race in again}:
            left, races = fewer, again
    return Held(tuple(left), tuple(map(_shortened, races)))


def _but_for(races: Sequence[Race], own: set[tuple[int, int]]) -> list[Race]:
    """The races without the occurrences whose first access is among ``own`` (rank, operation)."""
    kept = []
    for race in races:
        examples = tuple(one for one in race.examples if (one.rank, one.first.op) not in own)
        if examples:
            kept.append(
                replace(
                    race,
                    occurrences=len(examples),
                    manifested=sum(one.manifested for one in examples),
                    slack_ns=min(one.slack_ns for one in examples),
                    ranks=tuple(sorted({one.rank for one in examples})),
                    examples=examples,
                )
            )
    return kept


def _key(race: Race) -> RaceKey:
    return key_of(race.first, race.second)


def _shortened(race: Race) -> Race:
    return replace(race, examples=race.examples[:EXAMPLES])
