"""Finds what a clean verdict rests on: pairs that only an incidental host synchronisation orders.

``loss.item()`` in a line that logs makes the host wait for all earlier work of that stream, and so orders accesses
that nothing else orders. If the program logs every tenth step only, or the line is removed, it has a race. To find
such pairs the traces are judged again without these waits: first without all of them at once, which for most programs
shows that nothing rests on any; then without one *site* (a line of source) at a time.

Which waits are incidental, and a trace without them: :mod:`streamrace.detectors.confidence.waits`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from streamrace.detectors.base import Detector
from streamrace.detectors.confidence.waits import WAITING, Counts, Keep, Waits, WaitSite
from streamrace.detectors.identity import RaceKey, identity
from streamrace.detectors.order.races import Occurrence, Race, describe
from streamrace.detectors.race_detector import RaceDetector
from streamrace.trace.encoding import replaced
from streamrace.trace.records import TraceRecord

MOST_SITES = 16


@dataclass(frozen=True)
class IncidentalOrder:
    """``races`` that appear as soon as the waits of ``sites`` are removed: of one site, or of several, all at once."""

    sites: tuple[WaitSite, ...]
    races: tuple[Race, ...]

    def sentence(self) -> str:
        """Return a sentence that names the waits and the pairs that they alone order."""
        lines = ", ".join(str(wait_site) for wait_site in self.sites)
        pairs = "; ".join(
            f"{describe(race.first.kernel, race.first.stack)} and {describe(race.second.kernel, race.second.stack)}"
            for race in self.races
        )
        return f"without {lines}: {pairs}"


@dataclass(frozen=True)
class OrderBasis:
    """``sites``: number of lines with incidental waits; ``unexamined``: of these, the number not left out alone."""

    held: tuple[IncidentalOrder, ...] = ()
    sites: int = 0
    unexamined: int = 0


Judge = Callable[[Keep, Counts], Sequence[Race]]
"""Returns the races if only the selected records are judged, and only the selected occurrences counted."""


class WithoutIncidentalWaits(Detector):
    """Judges a run without any incidental waits, also while it runs. ``waits`` has to be fed the same records first.
    ``between``: for a race, the incidental waits between its accesses, with the number of occurrences. Call ``stop``
    once the result is no longer needed.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._detector = RaceDetector(counts=waits.counted, noticed=self._notice)
        self._stopped = False
        self._between: dict[RaceKey, Counter[WaitSite]] = defaultdict(Counter)
        self._open: list[tuple[RaceKey, Occurrence]] = []  # pairs that end in a free: all later waits count

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        if not self._stopped:
            site_of = self._waits.site_of
            records = records if isinstance(records, Sequence) else list(records)
            waits = {at: None for at, record in enumerate(records) if type(record) in WAITING and site_of(rank, record)}
            self._detector.feed(rank, replaced(records, waits))

    def finish(self) -> None:
        self._detector.finish()

    def stop(self) -> None:
        self._stopped = True

    def waits(self, rank: int) -> bool:
        return not self._stopped and self._detector.waits(rank)

    def findings(self) -> list[Race]:
        """Return the races, none if the run has no incidental waits. Call at the end of the run only."""
        assert not self._stopped
        return self._detector.findings() if self._waits.sites else []

    def between(self, race: Race) -> Counter[WaitSite]:
        for key, occurrence in self._open:
            self._between[key].update(self._waits.between(occurrence))
        self._open.clear()
        return self._between[_key(race)] or Counter(self._waits.sites.keys())

    def _notice(self, key: RaceKey, occurrence: Occurrence) -> None:
        if occurrence.second.op is None:
            self._open.append((key, occurrence))
        else:
            self._between[key].update(self._waits.between(occurrence))


def together(waits: Waits, stripped: WithoutIncidentalWaits) -> OrderBasis:
    """Return what a run without races rests on, without judging its traces again: it is not known then which of the
    waits between a pair are needed to order it.
    """
    groups: dict[tuple[WaitSite, ...], list[Race]] = defaultdict(list)
    for race in stripped.findings():
        groups[tuple(sorted(stripped.between(race), key=waits.sites.__getitem__))].append(race)
    orders = tuple(IncidentalOrder(sites, tuple(races)) for sites, races in groups.items())
    return OrderBasis(orders, len(waits.sites), len({wait_site for sites in groups for wait_site in sites}))


def holding(waits: Waits, stripped: WithoutIncidentalWaits, judge: Judge, *, most: int = MOST_SITES) -> OrderBasis:
    """Return what a run without races rests on, whose records ``waits`` and ``stripped`` were fed. ``most``: number of
    sites left out alone, those between most pairs first.
    """

    def without(sites: Iterable[WaitSite]) -> Sequence[Race]:
        dropped = tuple(sites)
        return judge(waits.without(dropped), waits.besides_own(dropped))

    racing = stripped.findings()
    between = {_key(race): stripped.between(race) for race in racing}
    counted: Counter[WaitSite] = sum(between.values(), Counter())
    candidates = sorted(counted, key=lambda wait_site: (-counted[wait_site], waits.sites[wait_site]))
    orders: list[IncidentalOrder] = []
    explained: set[RaceKey] = set()
    for wait_site in candidates[:most]:
        if exposed := without([wait_site]):
            orders.append(IncidentalOrder((wait_site,), tuple(exposed)))
            explained |= {_key(race) for race in exposed}
    unexplained: dict[tuple[WaitSite, ...], list[Race]] = defaultdict(list)
    for race in racing:
        if _key(race) not in explained:  # each of several waits is enough to order it
            unexplained[tuple(sorted(between[_key(race)], key=waits.sites.__getitem__))].append(race)
    for sites, races in unexplained.items():
        orders.append(_fewest(sites, races, without, most))
    return OrderBasis(tuple(orders), len(waits.sites), max(0, len(candidates) - most))


def _fewest(
    sites: tuple[WaitSite, ...],
    races: Sequence[Race],
    without: Callable[[Iterable[WaitSite]], Sequence[Race]],
    most: int,
) -> IncidentalOrder:
    """Drop sites, of the first ``most``, whose removal the races do not need; return the races with the rest."""
    needed = {_key(race) for race in races}
    remaining = list(sites)
    for wait_site in sites[:most]:
        fewer = [site for site in remaining if site != wait_site]
        reappearing = [race for race in without(fewer) if _key(race) in needed] if fewer else []
        if needed <= {_key(race) for race in reappearing}:
            remaining, races = fewer, reappearing
    return IncidentalOrder(tuple(remaining), tuple(races))


def _key(race: Race) -> RaceKey:
    return identity(race)
