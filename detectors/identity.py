"""Says which races are the same one: within a run, and from one version of a program to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from streamrace.detectors.order.races import Occurrence, Race, RaceKind, Side, site
from streamrace.detectors.streams import first_made
from streamrace.trace.records import Frame


class SideKey(NamedTuple):
    """An access: kernel, kind, line, and stream (of streams that a loop creates anew, the first)."""

    kernel: str
    access: str
    site: Frame | None
    stream: str


class RaceKey(NamedTuple):
    """The identity of a race within a run, and between runs of the same program.

    ``allocated``: where memory was allocated again, for a race about reused memory (``reused``).
    """

    first: SideKey
    second: SideKey
    allocated: Frame | None
    reused: bool


Place = tuple[str, str] | None  # file and function


class LastingKey(NamedTuple):
    """The identity of a race while the program is edited: lines move and streams get other numbers."""

    kind: RaceKind
    first: tuple[str, str, Place]  # kernel, access, place
    second: tuple[str, str, Place]
    allocated: Place


class PairKey(NamedTuple):
    """The identity of an occurrence of a race, while the trace is judged with more order or with less."""

    rank: int
    block: int
    first: int | None
    second: int | None


def pair_of(occurrence: Occurrence) -> PairKey:
    """Return the key of the two accesses: their operations, and the block."""
    return PairKey(occurrence.rank, occurrence.block, occurrence.first.op, occurrence.second.op)


def identity(race: Race) -> RaceKey:
    """Return the key by which a run's races are told apart."""
    return identity_of(race.first, race.second)


def identity_of(first: Side, second: Side) -> RaceKey:
    """Return the key of the race that an occurrence with these two sides belongs to."""
    return RaceKey(_side(first), _side(second), site(second.allocated or ()), second.allocated is not None)


def lasting(race: Race, *, file: Callable[[str], str] = str, text: Callable[[str], str] = str) -> LastingKey:
    """Return the key that survives an edit elsewhere in the program.

    ``file``: maps a file's name to the one that other machines have; ``text``: cleans names from the program.
    """

    def place(frame: Frame | None) -> Place:
        return (text(file(frame.file)), text(frame.function)) if frame else None

    def side(access_side: Side) -> tuple[str, str, Place]:
        return text(access_side.kernel), access_side.access, place(site(access_side.stack))

    return LastingKey(race.kind, side(race.first), side(race.second), place(site(race.second.allocated or ())))


def _side(side: Side) -> SideKey:
    return SideKey(side.kernel, side.access, site(side.stack), first_made(side.stream))
