"""Each wait of a run taken away alone, in its trace: does it carry load, or does something else order the same?

An edge of order less, and the trace is judged again. What comes out is exact for the order of this run: where no two
accesses race without a wait, every timing of the program computes the same without it, as long as it does not ask what
time it is (a ``query``, a clock), and takes the same branches. A ``record_stream`` changes more: without it the
allocator hands memory out earlier, to whoever asks first. So it is redundant only where all that it protects comes
before the free on the streams that the allocator follows anyway; where that is not so and nobody of this run got the
memory too early, nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from detectors.confidence.chains import Link, Order
from detectors.confidence.delays import Delays
from detectors.confidence.waits import RECORDS, Keep, Waits, WaitSite, but_for, races_without
from detectors.files import AsIf, find_races, read
from detectors.order.races import Race
from detectors.race_detector import EXAMPLES
from simgpu.trace import Free, TraceRecord


class Load(StrEnum):
    """What a wait is for the order of a run."""

    CARRIES = "carries load"
    FRAGILE = "fragile cover"
    REDUNDANT = "redundant"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Removal:
    """What a trace says of a line's waits. ``count``: of all ranks. ``held_ns``: see :class:`Delays`.

    ``races``: those that are there without it. ``pair``: one that it would order if it were alone, and ``chain``, what
    orders that instead (None: a ``record_stream``, or the order goes over what no chain says). ``operation``: how a
    live run leaves it out; empty where none can.
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


@dataclass(frozen=True)
class Removals:
    """``together``: the redundant ones that can go at once, the costly ones first. ``others``: waits of collectives and
    of autograd's engine, which no line asks for. ``base``: races that are there with all waits.
    """

    each: tuple[Removal, ...]
    together: tuple[WaitSite, ...] = ()
    others: int = 0
    base: tuple[Race, ...] = ()


class _Pair(NamedTuple):
    rank: int
    block: int
    first: int | None
    second: int | None


def take_away(folder: Path, told: Callable[[str], None] = lambda sentence: None) -> Removals:
    """Judge the traces in ``folder`` without each line's waits. ``told`` gets what is done, now and then.

    The run must have told its waits apart (:func:`simgpu.overrides.tell`). Raises as :func:`detectors.files.read`.
    """
    waits = Waits(every=True)
    read(folder, [waits])
    return _Trace(folder, waits).all(told)


class _Trace:
    def __init__(self, folder: Path, waits: Waits) -> None:
        self._folder, self._waits = folder, waits
        self._base = find_races(folder, examples=None)
        self._known = _pairs(self._base)
        delays = Delays(waits)
        read(folder, [delays])
        self._held = delays.held
        self._bare: list[Race] | None = None

    def all(self, told: Callable[[str], None]) -> Removals:
        sites = sorted(self._waits.sites, key=self._waits.sites.__getitem__)
        each = []
        for number, one in enumerate(sites, 1):
            told(f"{number} of {len(sites)}: without {one}")
            each.append(self._alone(one))
        can_go = [one.site for one in each if one.load == Load.REDUNDANT]
        together: list[WaitSite] = []
        for one in sorted(can_go, key=lambda one: (-self._held[one], self._waits.sites[one])):
            if not self._without([*together, one]) and not self._given_early([*together, one]):
                together.append(one)
        return Removals(tuple(each), tuple(together), self._waits.others, tuple(map(_shortened, self._base)))

    def _alone(self, one: WaitSite) -> Removal:
        made = Removal(
            one, Load.REDUNDANT, self._waits.counts[one], self._held[one], self._waits.operations.get(one, "")
        )
        if races := self._without([one]):
            load = Load.FRAGILE if one.incidental else Load.CARRIES
            return replace(made, load=load, races=tuple(map(_shortened, races)))
        if early := self._given_early([one]):
            why = "nobody got the memory too early in this run, and another allocation might"
            return replace(made, load=Load.UNKNOWN, races=tuple(map(_shortened, early)), why=why)
        pair = self._ordered_by(one)
        if pair is None:
            return replace(made, why="it orders no two accesses by itself")
        example = pair.examples[0]
        chain = None
        if example.first.op is not None and example.second.op is not None:
            order = Order()
            read(self._folder, [order], keep=self._waits.without([one]))
            first, second = (example.first.op, pair.first.access), (example.second.op, pair.second.access)
            chain = order.chain(example.rank, first, second)
        return replace(made, pair=_shortened(pair), chain=chain)

    def _without(self, sites: Sequence[WaitSite], *, as_if: AsIf | None = None) -> list[Race]:
        """The races that come up without these."""

        def judge(keep: Keep) -> list[Race]:
            return find_races(self._folder, keep=keep, as_if=as_if, examples=None)

        return self._new(races_without(self._waits, judge, sites), self._known)

    def _given_early(self, sites: Sequence[WaitSite]) -> list[Race]:
        """What the next owner of memory could do too early without these lines' ``record_stream``, whoever that is."""
        blocks = self._waits.recorded(one for one in sites if one.how == RECORDS)
        if not blocks:
            return []

        def noticed(rank: int, record: TraceRecord) -> TraceRecord:
            if isinstance(record, Free) and record.quiet and (rank, record.block) in blocks:
                return record._replace(quiet=False)
            return record

        before = _pairs(find_races(self._folder, as_if=noticed, examples=None))
        return self._new(self._without(sites, as_if=noticed), before)

    def _ordered_by(self, one: WaitSite) -> Race | None:
        """A race that is there without all lines' waits, and not with this one's alone."""
        if self._bare is None:
            self._bare = self._without(list(self._waits.sites))
        left = _pairs(self._without([other for other in self._waits.sites if other != one]))
        found = self._new(self._bare, left)
        return next(iter(found), None)

    @staticmethod
    def _new(races: Sequence[Race], known: set[_Pair]) -> list[Race]:
        return but_for(races, lambda race, at: _pair(race, at) in known)


def _pair(race: Race, at: int) -> _Pair:
    one = race.examples[at]
    return _Pair(one.rank, one.block, one.first.op, one.second.op)


def _pairs(races: Iterable[Race]) -> set[_Pair]:
    return {_pair(race, at) for race in races for at in range(len(race.examples))}


def _shortened(race: Race) -> Race:
    return replace(race, examples=race.examples[:EXAMPLES])
