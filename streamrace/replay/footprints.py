"""Determines the bytes that each effect of a recording reads and writes when it is executed.

An effect's result in memory, and the value it shows, are a function of what it reads: therefore one timing can use what
another one computed (:mod:`streamrace.replay.sharing`). So no read or write may be missing here. All arguments of an
operator count as read; written are the bytes that its schema declares, that the device recorded, and its outputs. If
not every byte of a range is written, the range counts as read too: its final content depends on its previous content.

Ranges run from the first byte to the last: the gaps between the elements of a strided tensor count. This may
distinguish equal computations, but never treats different ones as equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from streamrace.device.probes import READ
from streamrace.device.values import dtype_of, operator
from streamrace.replay import work
from streamrace.replay.host import Effect
from streamrace.replay.recording import Recording
from streamrace.trace.records import LOOK, NOBODY, WROTE, Access, Call, Collective, Launch, Probe, Transfer, View

# These operators do not read the tensor that they write in place.
_FILLS = {"aten::copy_.default", "aten::fill_.Scalar", "aten::zero_.default"}


class Region(NamedTuple):
    """The bytes ``lo`` to ``hi`` of a block of a rank."""

    rank: int
    block: int
    lo: int
    hi: int


@dataclass
class Footprint:
    """The regions that an effect reads and writes, each once. ``written``: regions that are overwritten as a whole."""

    reads: list[Region] = field(default_factory=list)
    writes: list[Region] = field(default_factory=list)
    written: set[Region] = field(default_factory=set)

    def read(self, region: Region | None) -> None:
        if region is not None and region not in self.reads:
            self.reads.append(region)

    def write(self, region: Region | None, *, whole: bool) -> None:
        """Add a written region. ``whole``: every byte is written, whatever was in memory before."""
        if region is None:
            return
        if region not in self.writes:
            self.writes.append(region)
        if whole:
            self.written.add(region)
        elif region not in self.written:
            self.read(region)


class Footprints:
    """Computes the footprint of each effect that moves or shows values; :meth:`of` returns an empty one for others."""

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
        """Return the effect's footprint. Raises the same errors on a damaged recording as binding the effect does."""
        key, rank, footprint = (effect.rank, effect.item), effect.rank, Footprint()
        if effect.what in ("kernel", "read"):
            made = self._calls[key]
            self._call(rank, made, footprint, known=effect.what == "kernel" and not work.is_sized_before(made))
        elif effect.what == "arrive":
            for view in self._transfers[key].inputs:
                footprint.read(region_of(rank, view))
        elif effect.what == "leave":
            for view in self._transfers[key].outputs:
                footprint.write(region_of(rank, view), whole=_dense(view))
        elif effect.what == "probe":
            self._probe(rank, self._probes[key], footprint)
        if effect.what in ("kernel", "read", "host"):
            launch = self._launches[key]
            call = self._calls.get(key)
            for access in launch.reads:
                footprint.read(_accessed(rank, access))
            for access in launch.writes:
                host = effect.what == "host" or (call is not None and call.function == WROTE)
                footprint.write(_accessed(rank, access), whole=host and access[3] is None)
        return footprint

    def _call(self, rank: int, call: Call, footprint: Footprint, *, known: bool) -> None:
        """Add what the call touches. ``known``: the outputs have the recorded shapes."""
        fills = call.function in _FILLS and all(_dense(view) for view in _views(call.args[:1]))
        for view in _views((*call.args[fills:], *call.kwargs.values())):
            footprint.read(region_of(rank, view))
        if call.function == LOOK:
            return
        for at, name in _in_place(call.function):
            argument = call.args[at] if at < len(call.args) else call.kwargs.get(name)
            for view in _views([argument]):
                footprint.write(region_of(rank, view), whole=fills)
        for view in call.outputs:
            footprint.write(region_of(rank, view), whole=known and _dense(view))

    def _probe(self, rank: int, probe: Probe, footprint: Footprint) -> None:
        if probe.kind == "final" and probe.view[1] == "uint8":  # covers the bytes of the block that were ever written
            lo, hi = self._extents.get((rank, probe.view[0]), (0, 0))
            if hi > lo:
                footprint.read(Region(rank, probe.view[0], lo, hi))
            return
        footprint.read(region_of(rank, probe.view))

    def _extend(self, rank: int, writes: Sequence[Access]) -> None:
        for block, lo, hi, _ in writes:
            first, last = self._extents.get((rank, block), (lo, hi))
            self._extents[rank, block] = min(first, lo), max(last, hi)


@cache
def _in_place(function: str) -> tuple[tuple[int, str], ...]:
    """Return the arguments (index, name) that an operator writes. Overloads for plain numbers have the same ones."""
    schema = operator(function)._schema.arguments
    return tuple(
        (at, item.name) for at, item in enumerate(schema) if item.alias_info is not None and item.alias_info.is_write
    )


def region_of(rank: int, view: View) -> Region | None:
    """Return the region from a tensor's first byte to its last; None for an empty tensor."""
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
    """Check whether the tensor's elements cover every byte from its first to its last."""
    count = 1
    for step, size in sorted(zip(view[3], view[2], strict=True)):
        if size != 1:
            if step != count:
                return False
            count *= size
    return True


def _views(arguments: Iterable[Any]) -> Iterator[View]:
    """Yield the views of all tensors among the encoded arguments (:func:`streamrace.device.values.encoded`)."""
    for argument in arguments:
        if isinstance(argument, (list, tuple)) and len(argument) == 2:
            if argument[0] == "tensor":
                yield tuple(argument[1])
            elif argument[0] == "list":
                yield from _views(argument[1])
