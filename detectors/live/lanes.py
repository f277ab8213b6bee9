"""Carries measurements to the host: written on the stream they belong to, read back without waiting.

One lane per stream. A measurement goes into the next row of the lane's memory, by work on that same
stream, so it is ordered after the work it probes and before later work, and orders nothing between
streams. Now and then the rows are sent: a copy into pinned memory of the host, and after it, by a
second copy on the same stream, a stamp. The host finds out whether the stamp has arrived by reading its
own memory. It does not query the device: an ``event.query()`` that returns True is an ordering edge, and a
watch must add none.

On hardware where work is done when the call returns the rows are read in place.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamrace.detectors.live import ops
from streamrace.detectors.live.hardware import Hardware
from streamrace.detectors.live.native import native

_PROBES = 2048  # rows: 80 KiB
_SUMS = 8192  # numbers: 64 KiB


class Measured(NamedTuple):
    """The contents of a parcel: notes with rows of :data:`ops.PROBE_COLUMNS` numbers, and notes with checksums."""

    probe_notes: list[Any]
    probes: npt.NDArray[np.float64]  # a row for each note
    sums: list[tuple[Any, tuple[int, ...]]]


class _Parcel:
    """Rows that were sent to the host."""

    def __init__(self, lane: _Lane) -> None:
        self.lane = lane
        self.number = lane.sent
        self.probe_notes, self.sum_notes = lane.probe_notes, lane.sum_notes
        self.host = lane.host

    def arrived(self) -> bool:
        return self.host is None or int(self.host.stamp[0]) >= self.number

    def read(self) -> Measured:
        probes, sums = (self.host.probes, self.host.sums) if self.host else (self.lane.own_probes, self.lane.own_sums)
        measured = Measured(
            self.probe_notes,
            probes[: len(self.probe_notes)].copy(),
            [(note, tuple(ops.unsigned(int(value)) for value in sums[lo:hi])) for note, lo, hi in self.sum_notes],
        )
        if self.host:
            self.lane.spare.append(self.host)
        return measured


class _Host:
    """Pinned memory for one parcel. Accessed as arrays: no call of torch, and so no wait, is involved."""

    def __init__(self, hardware: Hardware) -> None:
        self.probes_pinned = hardware.pinned(torch.empty(_PROBES, ops.PROBE_COLUMNS, dtype=torch.float64, device="cpu"))
        self.sums_pinned = hardware.pinned(torch.empty(_SUMS, dtype=torch.int64, device="cpu"))
        self.stamp_pinned = hardware.pinned(torch.empty(1, dtype=torch.int64, device="cpu"))
        self.probes, self.sums = self.probes_pinned.numpy(), self.sums_pinned.numpy()
        self.stamp = self.stamp_pinned.numpy()
        self.stamp[0] = -1


class _Lane:
    """The memory of one stream. ``host``: the destination of the rows; None if they are read in place."""

    def __init__(self, hardware: Hardware, device: torch.device, stream: Hashable, checksums: bool) -> None:
        self.stream = stream
        self.hardware = hardware
        self.probes = torch.empty(_PROBES, ops.PROBE_COLUMNS, dtype=torch.float64, device=device)
        self.sums = torch.empty(_SUMS if checksums else 0, dtype=torch.int64, device=device)
        self.probe_notes: list[Any] = []
        self.sum_notes: list[tuple[Any, int, int]] = []
        self.sums_used = 0
        self.sent = 0
        self.spare: list[_Host] = []
        self.host: _Host | None = None
        if hardware.asynchronous:
            self.scratch = torch.empty(1, dtype=torch.int64, device=device)
        else:
            self.own_probes, self.own_sums = self.probes.numpy(), self.sums.numpy()

    def send(self) -> _Parcel | None:
        if not self.probe_notes and not self.sum_notes:
            return None
        self.sent += 1
        if self.hardware.asynchronous:
            self.host = self.spare.pop() if self.spare else _Host(self.hardware)
            self.host.stamp[0] = -1
            probes, sums = len(self.probe_notes), self.sums_used
            with self.hardware.on(self.stream):
                if probes:
                    ops.send(self.probes[:probes], self.host.probes_pinned[:probes])
                if sums:
                    ops.send(self.sums[:sums], self.host.sums_pinned[:sums])
                ops.stamp(self.scratch, self.host.stamp_pinned, self.sent)
        parcel = _Parcel(self)
        self.probe_notes, self.sum_notes, self.sums_used = [], [], 0
        return parcel


class Lanes:
    """All lanes of one watch."""

    def __init__(self, hardware: Hardware, *, checksums: bool = True) -> None:
        self.hardware = hardware
        self._checksums = checksums
        self._lanes: dict[tuple[Hashable, torch.device], _Lane] = {}
        self._measured: list[Measured] = []
        self._away: list[_Parcel] = []
        if not hardware.asynchronous:
            native()  # if it has to be built, then now, and not within a step

    def probe(self, values: Tensor, note: Any, *, extremes: bool = True) -> bool:
        """Measure ``values`` on the current stream; without ``extremes``, those of good values only if cheap.

        Return True if the values are bad; False also while the device is still at work.
        """
        lane = self._lane(values.device)
        if len(lane.probe_notes) == _PROBES:
            self._send(lane)
        lane.probe_notes.append(note)
        place = len(lane.probe_notes) - 1
        if self.hardware.asynchronous:
            ops.probe(values, lane.probes[place])
            return False
        ops.probe_now(values, lane.own_probes[place], extremes=extremes)
        return bool(lane.own_probes[place, :3].any())

    def checksum(self, values: Tensor, note: Any, *, first: int = 0, part: int = 0, parts: int = 1) -> None:
        """Checksum the bits of ``values``, on the current stream, in ``parts`` parts of ``part`` elements (at most)."""
        lane = self._lane(values.device)
        if parts > _SUMS:
            raise ValueError(f"a parameter in {parts} parts is more than a lane holds ({_SUMS})")
        if lane.sums_used + parts > _SUMS:
            self._send(lane)
        lo, hi = lane.sums_used, lane.sums_used + parts
        lane.sum_notes.append((note, lo, hi))
        lane.sums_used = hi
        if self.hardware.asynchronous:
            ops.checksum(values, lane.sums[lo:hi], first=first, part=part)
        else:
            ops.checksum_now(values, lane.own_sums[lo:hi], first=first, part=part)

    def _lane(self, device: torch.device) -> _Lane:
        key = (self.hardware.current_stream(), device)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(self.hardware, device, key[0], self._checksums)
        return lane

    def _send(self, lane: _Lane) -> None:
        parcel = lane.send()
        if parcel is None:
            return
        if parcel.host is None:
            self._measured.append(parcel.read())  # its memory is reused at once
        else:
            self._away.append(parcel)

    def send(self) -> None:
        """Send the contents of all lanes."""
        for lane in list(self._lanes.values()):
            self._send(lane)

    def arrived(self) -> Iterator[Measured]:
        """Yield the measurements that have arrived since. Never waits."""
        yield from self._measured
        self._measured.clear()
        remaining = []
        for parcel in self._away:
            if parcel.arrived():
                yield parcel.read()
            else:
                remaining.append(parcel)
        self._away = remaining

    @property
    def pending(self) -> bool:
        """Return whether anything is sent and has not arrived."""
        return bool(self._away)
