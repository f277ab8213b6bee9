"""Executes again what the simulated GPU's host did: its reads of the device and its own use of pinned memory.

The checksums are those that the device recorded in the live run (``streamrace/device/csrc/probes.h``): of the same
bytes in the same order. The host writes the recorded bytes: its program does not run again.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamrace.device.values import dtype_of
from streamrace.replay.faults import ReplayError
from streamrace.replay.memory import Arena
from streamrace.replay.work import Action, bound, kernel
from streamrace.trace.records import LOOK, Access, Call, Collective, Launch, Probe, TraceRecord

_NUMBERS: dict[type, Callable[[Any], bytes]] = {
    bool: lambda value: struct.pack("<q", value),
    int: lambda value: struct.pack("<Q", value & 0xFFFFFFFFFFFFFFFF),
    float: lambda value: struct.pack("<d", value),
    complex: lambda value: struct.pack("<dd", value.real, value.imag),
}
See = Callable[[int], None]
"""Callback that receives a checksum."""


def device_kernel(call: Call, rank: int, arena: Arena, see: See | None) -> Action:
    """Return the effect of a launch. ``see``: receives the checksum of the bytes copied to the host."""
    if call.function != LOOK:
        run = kernel(call, rank, arena)
        if see is None:
            return run
        _, view = call.args[0]
        target, report = arena.view(rank, view), see

        def copy() -> None:
            run()
            report(checksum([target]))

        return copy
    try:
        (_, view), (_, dtype), (_, shape) = call.args
        place = torch.empty(tuple(shape), dtype=dtype_of(dtype))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ReplayError(f"rank {rank}, operation {call.op}: what the host read is damaged") from error
    source = arena.view(rank, view)
    if see is None:
        return _nothing

    def look() -> None:
        place.copy_(source)
        see(checksum([place]))

    return look


def device_read(call: Call, rank: int, arena: Arena, see: See) -> Action:
    """Return the action of a host call that waited for the stream. ``see`` receives the checksum of its result."""
    run = bound(call, rank, arena)
    outputs = [arena.view(rank, view) for view in call.outputs]

    def read() -> None:
        result = run()
        values = result if isinstance(result, (list, tuple)) else [result]
        see(checksum(values))
        for output, place in zip(outputs, call.places, strict=True):
            if values[place].shape == output.shape:  # else the host sees other values, which ``see`` reports
                output.copy_(values[place])

    return read


def host_access(launch: Launch, call: Call | None, rank: int, arena: Arena, see: See | None) -> Action:
    """Return the action in which the host reads pinned memory and then writes the bytes that it wrote when recorded."""
    reads = [arena.part(rank, access) for access in launch.reads]
    writes = [arena.part(rank, access) for access in launch.writes]
    if writes and call is None:
        raise ReplayError(f"rank {rank}: what the host wrote in operation {launch.op} was not recorded")
    data = np.frombuffer(call.result if call is not None and writes else b"", dtype=np.uint8)
    pairs, at = [], 0
    for place in writes:
        part = data[at : at + place.size]
        if part.size != place.size:
            raise ReplayError(f"rank {rank}: what the host wrote in operation {launch.op} is damaged")
        pairs.append((place, part.reshape(place.shape)))
        at += place.size

    def access() -> None:
        if see is not None and reads:
            crc = 0
            for place in reads:
                crc = zlib.crc32(place.tobytes(), crc)
            see(crc)
        for place, part in pairs:
            place[...] = part

    return access


class Finals:
    """Reads the bytes of a rank's blocks that any operation wrote: final probes are checksums of these bytes."""

    def __init__(self, rank: int, records: Iterable[TraceRecord], arena: Arena) -> None:
        self._rank, self._arena = rank, arena
        self._written: dict[int, list[Access]] = {}
        for record in records:
            if isinstance(record, (Launch, Collective)):
                for access in record.writes:
                    self._written.setdefault(access[0], []).append(access)

    def probed(self, probe: Probe) -> Callable[[], int]:
        """Return a function that computes the checksum of the written bytes of the probe's block."""
        block = probe.view[0]
        block_bytes = self._arena.part(self._rank, Access(block, 0, self._arena.nbytes(self._rank, block)))
        mask = np.zeros(block_bytes.size, dtype=np.bool_)
        for access in dict.fromkeys(self._written.get(block, ())):
            self._arena.part_of(mask, 0, access)[...] = True
        if mask.all():
            return lambda: zlib.crc32(block_bytes.tobytes())
        return lambda: zlib.crc32(block_bytes[mask].tobytes())


def checksum(values: Sequence[Any]) -> int:
    """Return the CRC-32 of tensors (in row order) and numbers (as words), concatenated."""
    crc = 0
    for value in values:
        if isinstance(value, Tensor):
            crc = zlib.crc32(row(value), crc)
        elif isinstance(value, (list, tuple)):
            for item in value:
                crc = zlib.crc32(row(item), crc)
        elif type(value) in _NUMBERS:
            crc = zlib.crc32(_NUMBERS[type(value)](value), crc)
    return crc


def row(tensor: Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    if not flat.numel():
        return b""
    data: npt.NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return data.tobytes()


def _nothing() -> None:
    """Do nothing: no probe recorded the value of this read, so the read is not executed."""
