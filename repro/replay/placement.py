"""Where each block of a rank lies in a replay's memory.

The simulated accelerator never uses memory twice. The simulated GPU's allocator does, so there a new block gets bytes
of those before it (:class:`repro.trace.Reuse`), and a use after free shows in values.

Who has it after whom is the order of the program, in every timing, but for a block that ``record_stream`` named to
another stream: that one is handed out once the stream has got there, which depends on the timing. A new block that
would lie on such a one gets memory of its own instead, as the allocator may also give it: else a slower stream in
another timing would see its memory taken away though the device would have kept it. It begins with what stood in the
other one when it was made, so who reads it before anything is written finds what the recorded run found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from repro.trace import Alloc, RecordStream, Reuse, TraceRecord

_ALIGNMENT = 64


@dataclass
class _Island:
    """Blocks whose places relative to each other are known. ``shift``: of its addresses in ``into``."""

    into: _Island | None = None
    shift: int = 0
    held: list[tuple[int, int, int]] = field(default_factory=list)  # plane, from, to: nothing else may lie there


@dataclass
class _Place:
    island: _Island
    address: int
    nbytes: int
    plane: int = 0


class Placement:
    """``offsets``: by block, where it begins; ``size``: what all need together."""

    def __init__(self, records: Sequence[TraceRecord]) -> None:
        self._places: dict[int, _Place] = {}
        self._planes = 0
        self._reuses: dict[int, list[Reuse]] = {}  # by the new block
        held: set[int] = set()
        for number, record in enumerate(records):
            if isinstance(record, RecordStream):
                held.add(record.block)
            elif isinstance(record, Alloc):
                self._reuses[record.block] = _reuses(records, number, record.block)
                self._allocate(record, self._reuses[record.block], held)
        self.offsets: dict[int, int] = {}
        self.size = 0
        self._lay_out()

    def _allocate(self, record: Alloc, reuses: Sequence[Reuse], held: set[int]) -> None:
        place = self._places[record.block] = _Place(_Island(), 0, record.nbytes)
        formers: list[_Place] = []
        for one in reuses:
            former = self._places.get(one.former)
            if former is None:
                continue
            formers.append(former)
            self._join(place, former, _absolute(former)[1] + one.start - one.lo)
            if one.former in held:
                island, address = _absolute(former)
                island.held.append((former.plane, address, address + former.nbytes))
        if formers:
            island, address = _absolute(place)
            planes = dict.fromkeys(former.plane for former in formers)
            free = [one for one in planes if not _taken(island, one, address, address + place.nbytes)]
            if not free:
                self._planes += 1
                free = [self._planes]
            place.plane = free[0]

    @property
    def heirs(self) -> set[int]:
        """Blocks in memory of their own that begin with what stood in others."""
        return {block for block, reuses in self._reuses.items() if reuses and self.inherited(block)}

    def inherited(self, block: int) -> list[tuple[int, int, int]]:
        """What the block finds in memory of its own, as it was there when the block was made: from, to, bytes."""
        mine = self.offsets.get(block, 0)
        found = []
        for one in self._reuses.get(block, ()):
            there = self.offsets.get(one.former)
            if there is not None and there + one.start != mine + one.lo:
                found.append((there + one.start, mine + one.lo, one.hi - one.lo))
        return found

    def _join(self, place: _Place, former: _Place, address: int) -> None:
        """``place`` begins at ``address`` of the island that ``former`` is on."""
        mine, at = _absolute(place)
        island, _ = _absolute(former)
        if mine is not island:
            mine.into, mine.shift = island, address - at
            shift = mine.shift
            island.held += [(plane, lo + shift, hi + shift) for plane, lo, hi in mine.held]

    def _lay_out(self) -> None:
        lands: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for block, place in self._places.items():
            island, address = _absolute(place)
            lands.setdefault((id(island), place.plane), []).append((address, address + place.nbytes, block))
        for land in lands.values():
            begin = until = None
            for lo, hi, block in sorted(land):
                if begin is None or until is None or lo >= until:
                    self.size += 0 if begin is None or until is None else -(-(until - begin) // _ALIGNMENT) * _ALIGNMENT
                    begin, until = lo, hi
                self.offsets[block] = self.size + lo - begin
                until = max(until, hi)
            if begin is not None and until is not None:
                self.size += -(-(until - begin) // _ALIGNMENT) * _ALIGNMENT


def _reuses(records: Sequence[TraceRecord], number: int, block: int) -> list[Reuse]:
    """Those of the allocation at ``number``: they stand behind it."""
    made: list[Reuse] = []
    while (number := number + 1) < len(records) and isinstance(record := records[number], Reuse):
        if record.block == block:
            made.append(record)
    return made


def _absolute(place: _Place) -> tuple[_Island, int]:
    """The island it is on now, and its address there."""
    island, address = place.island, place.address
    while island.into is not None:
        address += island.shift
        island = island.into
    place.island, place.address = island, address
    return island, address


def _taken(island: _Island, plane: int, lo: int, hi: int) -> bool:
    return any(one == plane and begin < hi and lo < end for one, begin, end in island.held)
