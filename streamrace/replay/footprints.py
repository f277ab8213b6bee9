"""Which bytes each effect of a recording reads and writes, as it is executed.

What an effect leaves in memory, and what it shows, is a function of what it reads: that is what lets one timing use
what another one computed (:mod:`streamrace.replay.sharing`). So nothing may be missing here. Whatever is handed to an
operator counts as read; written is what its schema says, what the device recorded, and what it gives. Where not every
byte of a range is written, what stood there is read too: the range as a whole is what the effect makes of it.

Ranges are whole from the first byte to the last: what lies between the elements of a strided tensor counts. That may
tell apart what is the same, never the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from streamrace.device.probes import READ
from streamrace.device.values import dtype_of, operator
from streamrace.replay.host import Effect
from streamrace.replay.recording import Recording
from streamrace.trace.records import LOOK, NOBODY, WROTE, Access, Call, Collective, Launch, Probe, Transfer, View

# Of what they write in place they read nothing.
_FILLS = {"aten::copy_.default", "aten::fill_.Scalar", "aten::zero_.default"}


class Region(NamedTuple):
    """Bytes ``lo`` to ``hi`` of a block of a rank."""

    rank: int
    block: int
    lo: int
    hi: int


@dataclass
class Footprint:
    """What an effect reads and writes, each region once. ``written``: those of ``writes`` of which nothing is read."""

    reads: list[Region] = field(default_factory=list)
    writes: list[Region] = field(default_factory=list)
    written: set[Region] = field(default_factory=set)

    def read(self, region: Region | None) -> None:
        if region is not None and region not in self.reads:
            self.reads.append(region)

    def write(self, region: Region | None, *, whole: bool) -> None:
        """``whole``: every byte is written, whatever stood there."""
        if region is None:
            return
        if region not in self.writes:
            self.writes.append(region)
        if whole:
            self.written.add(region)
        elif region not in self.written:
            self.read(region)


class Footprints:
    """Those of the effects of a recording that move or show values; :meth:`of` gives an empty one for all others."""

    def __init__(self, recording: Recording) -> None:
        self._launches: dict[tuple[int, int], Launch] = {}
        self._calls: dict[tuple[int, int], Call] = {}
        self._transfers: dict[tuple[int, int], Transfer] = {}
        self._probes: dict[tuple[int, int], Probe] = {}
        self._extents: dict[tuple[int, int], tuple[int, int]] = {}  # by block, the first and last byte ever written
        for rank, records in recording.records.items():
            for record in records:
                if isinstance(record, Call):
                    self._calls[rank, record.op] = record
                elif isinstance(record, Launch):
                    self._launches[rank, record.op] = record
                    self._extend(rank, record.writes)
                elif isinstance(record, Transfer):
                    self._transfers[rank, record.op] = record
                elif isinstance(record, Collective):
                    self._extend(rank, record.writes)
                elif isinstance(record, Probe) and record.kind != READ:
                    self._probes[rank, record.probe] = record

    def of(self, effect: Effect) -> Footprint:
        """Raises what reading a damaged recording may raise, as binding it does."""
        key, rank, made = (effect.rank, effect.item), effect.rank, Footprint()
        if effect.what in ("kernel", "read"):
            self._call(rank, self._calls[key], made, known=effect.what == "kernel")
        elif effect.what == "arrive":
            for view in self._transfers[key].inputs:
                made.read(region_of(rank, view))
        elif effect.what == "leave":
            for view in self._transfers[key].outputs:
                made.write(region_of(rank, view), whole=_dense(view))
        elif effect.what == "probe":
            self._probe(rank, self._probes[key], made)
        if effect.what in ("kernel", "read", "host"):
            launch = self._launches[key]
            call = self._calls.get(key)
            for access in launch.reads:
                made.read(_accessed(rank, access))
            for access in launch.writes:
                host = effect.what == "host" or (call is not None and call.function == WROTE)
                made.write(_accessed(rank, access), whole=host and access[3] is None)
        return made

    def _call(self, rank: int, call: Call, made: Footprint, *, known: bool) -> None:
        """``known``: the shapes of what it gives are those that were recorded."""
        fills = call.function in _FILLS and all(_dense(view) for view in _views(call.args[:1]))
        for view in _views((*call.args[fills:], *call.kwargs.values())):
            made.read(region_of(rank, view))
        if call.function == LOOK:
            return
        for at, name in _in_place(call.function):
            given = call.args[at] if at < len(call.args) else call.kwargs.get(name)
            for view in _views([given]):
                made.write(region_of(rank, view), whole=fills)
        for view in call.outputs:
            made.write(region_of(rank, view), whole=known and _dense(view))

    def _probe(self, rank: int, probe: Probe, made: Footprint) -> None:
        if probe.kind == "final" and probe.view[1] == "uint8":  # of what was ever written to the block
            lo, hi = self._extents.get((rank, probe.view[0]), (0, 0))
            if hi > lo:
                made.read(Region(rank, probe.view[0], lo, hi))
            return
        made.read(region_of(rank, probe.view))

    def _extend(self, rank: int, writes: Sequence[Access]) -> None:
        for block, lo, hi, _ in writes:
            first, last = self._extents.get((rank, block), (lo, hi))
            self._extents[rank, block] = min(first, lo), max(last, hi)


@cache
def _in_place(function: str) -> tuple[tuple[int, str], ...]:
    """The arguments that an operator writes to. Of its overloads for plain numbers they are the same."""
    schema = operator(function)._schema.arguments
    return tuple(
        (at, one.name) for at, one in enumerate(schema) if one.alias_info is not None and one.alias_info.is_write
    )


def region_of(rank: int, view: View) -> Region | None:
    """From the first byte of a tensor to its last; None of one that has none."""
    block, dtype, shape, stride, offset = view[:5]
    if block == NOBODY or 0 in shape:
        return None
    size = dtype_of(dtype).itemsize
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    return Region(rank, block, offset * size, (last + 1) * size)


def _accessed(rank: int, access: Access) -> Region | None:
    block, lo, hi, _ = access
    return Region(rank, block, lo, hi) if hi > lo else None


def _dense(view: View) -> bool:
    """Does the tensor have every byte from its first to its last?"""
    count = 1
    for step, size in sorted(zip(view[3], view[2], strict=True)):
        if size != 1:
            if step != count:
                return False
            count *= size
    return True


def _views(arguments: Iterable[Any]) -> Iterator[View]:
    """Of all tensors among arguments as data (:func:`streamrace.device.values.encoded`)."""
    for one in arguments:
        if isinstance(one, (list, tuple)) and len(one) == 2:
            if one[0] == "tensor":
                yield tuple(one[1])
            elif one[0] == "list":
                yield from _views(one[1])
