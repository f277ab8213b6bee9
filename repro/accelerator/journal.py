"""Collects one rank's trace. Work is written once its times are known, in the order of issue."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from repro.accelerator.timeline import CollectiveWork, Work
from repro.trace import Access, Collective, Launch, TraceRecord


class _Issued(NamedTuple):
    """Work as it was issued; its times follow."""

    work: Work
    op: int
    stream: int
    kernel: str
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    stack: int
    root: int
    issuer: int
    nominal: int


class Journal:
    """What the host did, in order. ``write`` takes finished records."""

    def __init__(self, write: Callable[[list[TraceRecord]], None]) -> None:
        self._write = write
        self._entries: list[TraceRecord | _Issued] = []
        self.note = self._entries.append
        self.ops = 0

    def issued(
        self,
        work: Work,
        stream: int,
        kernel: str,
        reads: list[Access],
        writes: list[Access],
        stack: int,
        nominal: int,
        root: int = -1,
        issuer: int = -1,
    ) -> None:
        """A launch, or a collective when ``work`` is one."""
        self.ops += 1
        self.note(_Issued(work, self.ops, stream, kernel, tuple(reads), tuple(writes), stack, root, issuer, nominal))

    def flush(self, *, everything: bool = False) -> None:
        """Hand on what is finished; with ``everything`` also work whose times never became known (-1)."""
        done: list[TraceRecord] = []
        count = 0
        for entry in self._entries:
            if isinstance(entry, _Issued):
                work = entry.work
                if work.end < 0 and not everything:
                    break
                start = work.start if work.end >= 0 else -1
                fixed = (entry.op, entry.stream, entry.kernel, entry.reads, entry.writes, entry.stack)
                if isinstance(work, CollectiveWork):
                    met = (work.group, work.number, entry.root, entry.issuer)
                    done.append(Collective(*fixed, work.issued, start, work.end, *met, entry.nominal))
                else:
                    done.append(Launch(*fixed, work.issued, start, work.end, entry.nominal))
            else:
                done.append(entry)
            count += 1
        del self._entries[:count]
        if done:
            self._write(done)
