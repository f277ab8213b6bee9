"""Reports what a recording of a real GPU lacks, as the recorder noted it."""

from __future__ import annotations

from collections.abc import Iterable

from streamrace.detectors.base import Detector, Unseen
from streamrace.detectors.order.races import site
from streamrace.trace import wording
from streamrace.trace.records import Frame, Stack, TraceRecord, Unrecorded


class UnrecordedWork(Detector):
    """Collects the records :class:`Unrecorded` of all ranks. Each kind of thing is one finding."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[int, int], tuple[Frame, ...]] = {}
        self._met: dict[str, tuple[Frame | None, int]] = {}  # where it was met first, and how often

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        for record in records:
            if isinstance(record, Stack):
                self._stacks[rank, record.id] = record.frames
            elif isinstance(record, Unrecorded):
                first, count = self._met.get(record.what, (None, 0))
                first = first or site(self._stacks.get((rank, record.stack), ()))
                self._met[record.what] = first, count + record.times

    def findings(self) -> list[Unseen]:
        """Return one finding for each kind of thing."""
        return [
            Unseen(f"{what} ({wording.times(count)}{_at(first)})") for what, (first, count) in sorted(self._met.items())
        ]


def _at(first: Frame | None) -> str:
    return f", first at {wording.frame(first, path=True)}" if first else ""
