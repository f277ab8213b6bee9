"""Places each block of a rank in a replay's memory.

A new block gets bytes of earlier blocks from the device's allocator (:class:`streamrace.trace.records.Reuse`), so a use
after free shows in values.

Blocks own the same bytes in the order of the program, in every timing, except for a block that ``record_stream`` named
to another stream: it is handed out once the stream has reached that point (:class:`Hold`), which depends on the timing.
If the stream had not reached it, the new block has memory of its own, as the device would have given it other memory.
This memory begins with the content of the former block at the time of the allocation, so a read before any write finds
what the recorded run found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streamrace.trace.records import Alloc, RecordStream, Reuse, TraceRecord

_ALIGNMENT = 64


class Hold(NamedTuple):
    """Says that ``block`` got memory of ``former``, which streams other than its owner's had to finish with first."""

    former: int
    block: int


@dataclass
class _Island:
    """Blocks whose relative addresses are known. ``shift``: offset of its addresses in ``into``, if merged."""

    into: _Island | None = None
    shift: int = 0
    held: list[tuple[int, int, int]] = field(default_factory=list)  # plane, from, to: ranges reserved for held blocks


@dataclass
class _Place:
    island: _Island
    address: int
    nbytes: int
    plane: int = 0


class Placement:
    """The addresses of a rank's blocks. ``offsets``: address of each block; ``size``: bytes of all blocks together.

    ``late``: the holds that were not over when the new block was allocated, which then lies elsewhere. Empty: as
    recorded.
    """

    def __init__(self, records: Sequence[TraceRecord], late: Collection[Hold] = ()) -> None:
        self._allocs = [record for record in records if isinstance(record, Alloc)]
        self._reuses: Mapping[int, Sequence[Reuse]] = _reuses(records)
        self._by_island: dict[int, list[Alloc]] = {}
        self._place(late)

    def elsewhere(self, late: Collection[Hold]) -> Placement:
        """Return the placement of the blocks that may move when these holds are not over; ``self`` must be as recorded.

        They are the blocks on the islands of the formers: islands are independent of each other.
        """
        moved = {id(_absolute(self._places[hold.former])[0]) for hold in late if hold.former in self._places}
        if not self._by_island:
            for record in self._allocs:
                island, _ = _absolute(self._places[record.block])
                self._by_island.setdefault(id(island), []).append(record)
        placement = Placement([])
        placement._allocs = [record for island in moved for record in self._by_island[island]]
        placement._reuses = self._reuses
        placement._place(late)
        return placement

    def _place(self, late: Collection[Hold]) -> None:
        self._places: dict[int, _Place] = {}
        self._planes = 0
        for record in self._allocs:
            self._allocate(record, self._reuses.get(record.block, ()), late)
        self.offsets: dict[int, int] = {}
        self.size = 0
        self._lay_out()

    def _allocate(self, record: Alloc, reuses: Sequence[Reuse], late: Collection[Hold]) -> None:
        place = self._places[record.block] = _Place(_Island(), 0, record.nbytes)
        formers: list[_Place] = []
        for reuse in reuses:
            former = self._places.get(reuse.former)
            if former is None:
                continue
            formers.append(former)
            self._join(place, former, _absolute(former)[1] + reuse.start - reuse.lo)
            if late and Hold(reuse.former, record.block) in late:
                island, address = _absolute(former)
                island.held.append((former.plane, address, address + former.nbytes))
        if formers:
            island, address = _absolute(place)
            planes = dict.fromkeys(former.plane for former in formers)
            free = [plane for plane in planes if not _taken(island, plane, address, address + place.nbytes)]
            if not free:
                self._planes += 1
                free = [self._planes]
            place.plane = free[0]

    def inherited(self, block: int) -> list[tuple[int, int, int]]:
        """Return the ranges (from, to, bytes) that a block in memory of its own copies from its formers."""
        offset = self.offsets.get(block, 0)
        moves = []
        for reuse in self._reuses.get(block, ()):
            former_offset = self.offsets.get(reuse.former)
            if former_offset is not None and former_offset + reuse.start != offset + reuse.lo:
                moves.append((former_offset + reuse.start, offset + reuse.lo, reuse.hi - reuse.lo))
        return moves

    def _join(self, place: _Place, former: _Place, address: int) -> None:
        """Let ``place`` begin at ``address`` of the island that ``former`` is on."""
        joined, at = _absolute(place)
        island, _ = _absolute(former)
        if joined is not island:
            joined.into, joined.shift = island, address - at
            shift = joined.shift
            island.held += [(plane, lo + shift, hi + shift) for plane, lo, hi in joined.held]

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


class Holds:
    """The memory of a rank that is handed on only when other streams are done with it.

    ``all``: the holds, in the order of the program. ``heirs``: blocks that may have memory of their own in some timing,
    and then begin with the content of others. ``held``: by former, the streams that it waits for.
    """

    def __init__(self, records: Sequence[TraceRecord]) -> None:
        self.all: list[Hold] = []
        self.heirs: set[int] = set()
        self.held: dict[int, set[int]] = {}
        owners: dict[int, int] = {}
        for record in records:
            if isinstance(record, Alloc):
                owners[record.block] = record.stream
            elif isinstance(record, RecordStream) and record.stream != owners.get(record.block):
                self.held.setdefault(record.block, set()).add(record.stream)
            elif isinstance(record, Reuse):
                if record.former in self.held:
                    self.all.append(Hold(record.former, record.block))
                if record.former in self.held or record.former in self.heirs:
                    self.heirs.add(record.block)
        self.all = list(dict.fromkeys(self.all))
        formers = {hold.former for hold in self.all}
        self.held = {block: streams for block, streams in self.held.items() if block in formers}


def _reuses(records: Sequence[TraceRecord]) -> dict[int, list[Reuse]]:
    """Return the reuses by the new block."""
    reuses: dict[int, list[Reuse]] = {}
    for record in records:
        if isinstance(record, Reuse):
            reuses.setdefault(record.block, []).append(record)
    return reuses


def _absolute(place: _Place) -> tuple[_Island, int]:
    """Return the island that the place is on now, and its address there."""
    island, address = place.island, place.address
    while island.into is not None:
        address += island.shift
        island = island.into
    place.island, place.address = island, address
    return island, address


def _taken(island: _Island, plane: int, lo: int, hi: int) -> bool:
    return any(held_plane == plane and begin < hi and lo < end for held_plane, begin, end in island.held)
