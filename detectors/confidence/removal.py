"""Removes each wait of a run alone, in its trace, to see whether something else orders the same work.

The trace is judged again with one edge of order less. The result is exact for the order of this run: if no two
accesses race without a wait, every timing of the program computes the same without it, as long as the program does not
depend on time (a ``query``, a clock), and takes the same branches. A ``record_stream`` changes more: without it the
allocator hands memory out earlier, to the next allocation. So it is redundant only if all work that it protects comes
before the free on the streams that the allocator follows anyway; if that does not hold and no allocation of this run
got the memory too early, the result is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from streamrace.detectors.confidence.chains import Link, OrderGraph
from streamrace.detectors.confidence.delays import Delays
from streamrace.detectors.confidence.waits import RECORDS, AsIf, Keep, Waits, WaitSite, but_for, races_without
from streamrace.detectors.identity import PairKey, pair_of
from streamrace.detectors.order.races import Race
from streamrace.detectors.race_detector import EXAMPLES
from streamrace.trace.records import Free, TraceRecord, Wait

Load = Literal["carries load", "fragile cover", "redundant", "unknown"]
"""The role of a wait in the order of a run."""

CARRIES: Final = "carries load"
FRAGILE: Final = "fragile cover"
REDUNDANT: Final = "redundant"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class Removal:
    """The result for a line's waits. ``count``: of all ranks. ``held_ns``: see :class:`Delays`.

    ``by_chance``: without it only incidental waits of the host order the same. ``races``: the races that appear without
    it. ``pair``: a pair that it would order if it were the only wait, and ``chain``, what orders that pair instead
    (None: a ``record_stream``, or order that no chain shows). ``operation``: the operation by which a live run leaves
    it out; empty if impossible.
    """

    site: WaitSite
    load: Load
    count: int
    held_ns: int
    operation: str = ""
    races: tuple[Race, ...] = ()
    pair: Race | None = None
    chain: tuple[Link, ...] | None = None
    why: str = ""
    by_chance: bool = False


@dataclass(frozen=True)
class Removals:
    """``together``: redundant waits that can be removed at once, the costly ones first, such that nothing then rests on
    incidental waits. ``others``: waits of collectives and of autograd's engine, which no line requests. ``base``: races
    with all waits present.
    """

    each: tuple[Removal, ...]
    together: tuple[WaitSite, ...] = ()
    others: int = 0
    base: tuple[Race, ...] = ()


class Traces(Protocol):
    """The traces of a run, which can be read repeatedly (:func:`streamrace.detectors.files.take_away`)."""

    def read(self, reader: Waits | Delays | OrderGraph, keep: Keep | None = None) -> None: ...

    def races(self, keep: Keep | None = None, as_if: AsIf | None = None) -> list[Race]:
        """Return the races, all occurrences of each."""
        ...


def take_away(traces: Traces, progress: Callable[[str], None] = lambda sentence: None) -> Removals:
    """Judge a run's traces without each line's waits. ``progress``: called with a progress message now and then.

    The run must have recorded which line requested each wait (:func:`streamrace.device.overrides.tell`).
    """
    waits = Waits(every=True)
    traces.read(waits)
    return _Judged(traces, waits).removals(progress)


class _Judged:
    """A run, judged with all its waits."""

    def __init__(self, traces: Traces, waits: Waits) -> None:
        self._traces, self._waits = traces, waits
        self._base = traces.races()
        self._base_pairs = _pairs(self._base)
        delays = Delays(waits)
        traces.read(delays)
        self._held = delays.held
        self._chance = [site for site in waits.sites if site.incidental]
        self._known_by_chance = _pairs(self._without(self._chance))
        self._reads = waits.own(waits.sites)
        self._unordered: list[list[Race]] = []  # cache of _ordered_by

    def removals(self, progress: Callable[[str], None]) -> Removals:
        sites = sorted(self._waits.sites, key=self._waits.sites.__getitem__)
        removals = []
        for number, site in enumerate(sites, 1):
            progress(f"{number} of {len(sites)}: without {site}")
            removals.append(self._removal_of(site))
        can_go = [row.site for row in removals if row.load == REDUNDANT and not (row.site.incidental or row.by_chance)]
        together: list[WaitSite] = []
        for site in sorted(can_go, key=lambda site: (-self._held[site], self._waits.sites[site])):
            if not self._rests_on_chance([*together, site]) and not self._given_early([*together, site]):
                together.append(site)
        return Removals(tuple(removals), tuple(together), self._waits.others, tuple(map(_shortened, self._base)))

    def _removal_of(self, site: WaitSite) -> Removal:
        result = Removal(
            site, REDUNDANT, self._waits.counts[site], self._held[site], self._waits.operations.get(site, "")
        )
        if races := self._without([site]):
            load: Load = FRAGILE if site.incidental else CARRIES
            return replace(result, load=load, races=tuple(map(_shortened, races)))
        if early := self._given_early([site]):
            why = "no allocation got the memory too early in this run, but another one might"
            return replace(result, load=UNKNOWN, races=tuple(map(_shortened, early)), why=why)
        if not site.incidental and self._rests_on_chance([site]):
            result = replace(result, by_chance=True)
        pair = self._ordered_by(site)
        if pair is None:
            return replace(result, why="it orders no two accesses by itself")
        example = pair.examples[0]
        chain = None
        if example.first.op is not None and example.second.op is not None:
            order = OrderGraph()
            self._traces.read(order, self._waits.without([site]))
            first, second = (example.first.op, pair.first.access), (example.second.op, pair.second.access)
            chain = order.chain(example.rank, first, second)
        return replace(result, pair=_shortened(pair), chain=chain)

    def _without(self, sites: Sequence[WaitSite], *, as_if: AsIf | None = None) -> list[Race]:
        """Return the races that appear without these waits."""

        def judge(keep: Keep) -> list[Race]:
            return self._traces.races(keep, as_if)

        return self._without_known(races_without(self._waits, judge, sites), self._base_pairs)

    def _rests_on_chance(self, sites: Sequence[WaitSite]) -> list[Race]:
        """Return the races that appear without these waits once the incidental waits are removed, too."""
        return self._without_known(self._without([*sites, *self._chance]), self._known_by_chance)

    def _given_early(self, sites: Sequence[WaitSite]) -> list[Race]:
        """Return races of any next owner of memory that is reused too early without these lines' ``record_stream``."""
        blocks = self._waits.recorded(site for site in sites if site.how == RECORDS)
        if not blocks:
            return []

        def noticed(rank: int, record: TraceRecord) -> TraceRecord:
            if isinstance(record, Free) and record.quiet and (rank, record.block) in blocks:
                return record._replace(quiet=False)
            return record

        known = _pairs(self._traces.races(as_if=noticed))
        return self._without_known(self._without(sites, as_if=noticed), known)

    def _ordered_by(self, site: WaitSite) -> Race | None:
        """Return a race that appears without all waits, and not with this line's alone. Preferred: races that
        collectives and autograd's engine do not order, either.
        """
        if not self._unordered:
            self._unordered = [self._traces.races(_keeping(self._waits, None, others)) for others in (True, False)]
        for candidates, others in zip(self._unordered, (True, False), strict=True):
            remaining = _pairs(self._traces.races(_keeping(self._waits, site, others)))
            if ordered := self._without_known(but_for(candidates, self._is_own_read), remaining):
                return ordered[0]
        return None

    def _is_own_read(self, race: Race, at: int) -> bool:
        """Check whether the occurrence's first access is the read that a wait belongs to."""
        return (race.examples[at].rank, race.examples[at].first.op) in self._reads

    @staticmethod
    def _without_known(races: Sequence[Race], known: set[PairKey]) -> list[Race]:
        return but_for(races, lambda race, at: pair_of(race.examples[at]) in known)


def _keeping(waits: Waits, line: WaitSite | None, others: bool) -> Keep:
    """Keep only this line's waits; with ``others`` also those that no line requests."""
    without = waits.without([site for site in waits.sites if site != line])

    def keep(rank: int, record: TraceRecord) -> bool:
        if others or not isinstance(record, Wait):
            return without(rank, record)
        return line is not None and waits.site_of(rank, record) == line

    return keep


def _pairs(races: Iterable[Race]) -> set[PairKey]:
    return {pair_of(example) for race in races for example in race.examples}


def _shortened(race: Race) -> Race:
    return replace(race, examples=race.examples[:EXAMPLES])
