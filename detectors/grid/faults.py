"""Reads the faults inside of kernels that a trace has, and adds where each kernel was launched."""

from __future__ import annotations

from collections.abc import Iterable

from streamrace.detectors.base import Detector
from streamrace.detectors.kernel_defects import FOLLOWED, KernelDefect
from streamrace.trace.records import Frame, KernelFault, Launch, Stack, TraceRecord

_READ = frozenset({Launch, Stack, KernelFault})


class _Rank:
    def __init__(self) -> None:
        self.stacks: dict[int, tuple[Frame, ...]] = {}
        self.launches: dict[int, tuple[str, int]] = {}  # kernel and stack by operation


class KernelFaults(Detector):
    """Collects the faults of all launches, one for each pair of a kernel's lines. Accepts any interleaving of ranks."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._found: dict[tuple[object, ...], KernelDefect] = {}

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        state = self._ranks.setdefault(rank, _Rank())
        for record in records:
            if type(record) not in _READ:
                continue
            if isinstance(record, Stack):
                state.stacks[record.id] = record.frames
            elif isinstance(record, Launch):
                if record.kernel.startswith(FOLLOWED):
                    state.launches[record.op] = record.kernel, record.stack
            elif isinstance(record, KernelFault):
                self._add(rank, state, record)

    def findings(self) -> list[KernelDefect]:
        """Return the faults, races of programs first and hazards last."""
        return sorted(self._found.values(), key=lambda found: found.warns)

    def _add(self, rank: int, state: _Rank, fault: KernelFault) -> None:
        kernel, stack = state.launches.get(fault.op, ("", 0))
        first, second = (Frame(*place) for place in (fault.first, fault.second))
        key = fault.kind, fault.verb, kernel, first, second
        before = self._found.get(key)
        if before is None:
            frames = state.stacks.get(stack, ())
            programs = fault.programs[:3], fault.programs[3:]
            self._found[key] = KernelDefect(fault.kind, fault.verb, kernel, frames, first, second, programs, 1, (rank,))
        else:
            self._found[key] = before.again(tuple(sorted({*before.ranks, rank})))
