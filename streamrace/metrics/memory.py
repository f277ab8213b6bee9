"""Computes how much device memory a run needs, when, and for what.

Replays the allocations and frees of one rank. A block takes its bytes *rounded up to 512*, as torch's CUDA caching
allocator does (``CUDACachingAllocator.cpp``, ``round_size``; nothing for no bytes), from the moment the host
allocates it until the host drops it: ``torch.cuda.memory_allocated`` counts the same. Exact bytes are reported too.

**Not modelled.** Fragmentation: free memory in pieces too small for a request. The allocator's segments (2 MiB
for small blocks, at least 20 MiB for others, in steps of 2 MiB), and that a block keeps a remainder of up to 1 MiB that
is not worth splitting off: ``memory_reserved`` is higher. The time for which ``record_stream`` holds memory back
after its free. Memory outside of torch: the CUDA context, NCCL's buffers, cuBLAS workspaces.

**Kinds.** Labelled bytes are of their label's kind, the later label over the earlier, except that gathered bytes
replace no primary ones. Labels may come later than the moments they explain, so kinds are settled when a block is
freed, or at the end. Unlabelled bytes are "activations" if allocated in a forward or backward pass (their
temporaries included), else "temporary". "rounding" is what the allocator adds; the kinds of a moment sum up to the
bytes allocated then.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrace.metrics.byte_kinds import Painted
from streamrace.trace.records import Alloc, Free, Label, Phase, TraceRecord

GRANULE = 512
ACTIVATIONS, TEMPORARY, ROUNDING = "activations", "temporary", "rounding"
_PASSES = ("forward", "backward")


@dataclass(frozen=True)
class MemoryMoment:
    """A moment: the host's virtual nanoseconds, step and phase, and the record's number in the trace, from 0."""

    time: int
    step: int
    micro_batch: int
    phase: str
    record: int


@dataclass(frozen=True)
class Excess:
    """The first moment at which more was allocated than exists: ``nbytes`` of ``capacity``."""

    moment: MemoryMoment
    nbytes: int
    capacity: int


@dataclass(frozen=True)
class PhasePeak:
    """The most that was allocated while the host was in this phase, rounded bytes."""

    step: int
    micro_batch: int
    phase: str
    nbytes: int


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of device memory, rounded up as the allocator does unless stated otherwise.

    ``peak``: the most that was allocated, first reached at ``moment`` (None if nothing was allocated), made up of
    ``kinds`` then. ``exact_peak``: the most without rounding, perhaps at another moment. ``kind_peaks``: the
    most of each kind alone, each at a moment of its own. ``excess``: where the capacity was first exceeded, if it was.
    ``alive``: bytes allocated at the end of the trace. ``phases``: in the order of the run.
    """

    peak: int
    moment: MemoryMoment | None
    exact_peak: int
    kinds: dict[str, int]
    kind_peaks: dict[str, int]
    excess: Excess | None
    alive: int
    phases: tuple[PhasePeak, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self)


def rounded(nbytes: int) -> int:
    """Return the bytes that the allocator takes for a request of ``nbytes`` bytes."""
    return -(-nbytes // GRANULE) * GRANULE


class MemoryMetrics:
    """Computes :class:`MemoryUse` from one rank's records, in order. ``capacity``: bytes of device memory.

    Keeps 16 bytes for each allocation and 8 for each free, and the labels of live blocks.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self._capacity = capacity
        self._index = 0
        self._total = self._exact = self._exact_peak = 0
        self._peak = self._peak_at = 0  # at: the number of events when it was reached
        self._moment: MemoryMoment | None = None
        self._excess: Excess | None = None
        self._phase = Phase(0, 0, "init")
        self._phases: list[PhasePeak] = []
        self._phase_peak = 0
        self._kinds: dict[str, int] = {}  # numbered as they come
        # Allocations are numbered as they come; an event is an allocation's number, inverted for its free.
        self._sizes = array("q")
        self._unlabelled = array("b")  # the kind of its unlabelled bytes
        self._events = array("q")
        self._alive: dict[int, int] = {}  # block: allocation
        self._painted: dict[int, Painted] = {}  # by block, while it is alive
        self._labelled: tuple[array[int], array[int], array[int]] = (array("q"), array("b"), array("q"))

    def feed(self, records: Iterable[TraceRecord]) -> None:
        """Take the next records."""
        index = self._index
        for record in records:
            kind = type(record)
            if kind is Alloc:
                self._alloc(record, index)  # type: ignore[arg-type]
            elif kind is Free:
                self._free(record)  # type: ignore[arg-type]
            elif kind is Label:
                self._label(record)  # type: ignore[arg-type]
            elif kind is Phase:
                self._enter(record)  # type: ignore[arg-type]
            index += 1
        self._index = index

    def _alloc(self, record: Alloc, index: int) -> None:
        block, nbytes, stream, time, *_ = record
        if stream < 0:
            return  # the host's
        phase = self._phase
        number = self._alive[block] = len(self._sizes)
        self._sizes.append(nbytes)
        self._unlabelled.append(self._number(ACTIVATIONS if phase.name in _PASSES else TEMPORARY))
        self._events.append(number)
        self._exact += nbytes
        total = self._total = self._total + -(-nbytes // GRANULE) * GRANULE
        if self._exact > self._exact_peak:
            self._exact_peak = self._exact
        if total > self._phase_peak:
            self._phase_peak = total
            if total > self._peak:
                self._peak, self._peak_at = total, len(self._events)
                self._moment = MemoryMoment(time, *phase, index)
        if self._capacity is not None and total > self._capacity and self._excess is None:
            self._excess = Excess(MemoryMoment(time, *phase, index), total, self._capacity)

    def _free(self, record: Free) -> None:
        number = self._alive.pop(record.block, None)
        if number is None:
            return  # allocation not traced
        nbytes = self._sizes[number]
        self._events.append(~number)
        self._exact -= nbytes
        self._total -= -(-nbytes // GRANULE) * GRANULE
        painted = self._painted.pop(record.block, None)
        if painted is not None:
            self._settle(number, painted, self._labelled)

    def _label(self, record: Label) -> None:
        block, lo, hi, kind, _ = record
        number = self._alive.get(block)
        if number is None:
            return  # the host's, or already freed
        painted = self._painted.get(block)
        if painted is None:
            painted = self._painted[block] = Painted()
        painted.paint(max(lo, 0), min(hi, self._sizes[number]), kind)

    def _enter(self, phase: Phase) -> None:
        self._end_phase()
        self._phase, self._phase_peak = phase, self._total

    def _end_phase(self) -> None:
        if self._phase_peak or self._phases:
            self._phases.append(PhasePeak(*self._phase, self._phase_peak))

    def _number(self, kind: str) -> int:
        return self._kinds.setdefault(kind, len(self._kinds))

    def _settle(self, number: int, painted: Painted, into: tuple[array[int], array[int], array[int]]) -> None:
        for kind, nbytes in painted.sizes().items():
            for column, value in zip(into, (number, self._number(kind), nbytes), strict=True):
                column.append(value)

    # -- the result -----------------------------------------------------------------------------------

    def result(self) -> MemoryUse:
        """Return the memory use so far."""
        labelled = tuple(column[:] for column in self._labelled)
        assert len(labelled) == 3
        for block, painted in self._painted.items():
            self._settle(self._alive[block], painted, labelled)
        alloc, kind, nbytes = (np.array(column, dtype=np.int64) for column in labelled)
        sizes = np.array(self._sizes, dtype=np.int64)
        events = np.array(self._events, dtype=np.int64)
        which, sign = np.where(events < 0, ~events, events), np.where(events < 0, -1, 1)
        rest = sizes.copy()
        np.subtract.at(rest, alloc, nbytes)
        default = np.array(self._unlabelled, dtype=np.int64)

        at_peak: dict[str, int] = {}
        peaks: dict[str, int] = {}

        def follow(name: str, of_alloc: npt.NDArray[np.int64]) -> None:
            course = np.cumsum(of_alloc[which] * sign)
            if peak := int(course.max(initial=0)):
                peaks[name] = peak
            if self._peak_at and (then := int(course[self._peak_at - 1])):
                at_peak[name] = then

        for name, number in self._kinds.items():
            own = np.where(default == number, rest, 0)
            np.add.at(own, alloc[kind == number], nbytes[kind == number])
            follow(name, own)
        follow(ROUNDING, -(-sizes // GRANULE) * GRANULE - sizes)
        open_phase = PhasePeak(*self._phase, self._phase_peak)
        return MemoryUse(
            peak=self._peak,
            moment=self._moment,
            exact_peak=self._exact_peak,
            kinds=at_peak,
            kind_peaks=peaks,
            excess=self._excess,
            alive=self._total,
            phases=(*self._phases, open_phase),
        )
