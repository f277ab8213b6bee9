"""What the tests say of a program on the device: its trace, and what the detector makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamrace.detectors import RaceDetector
from streamrace.detectors.order.races import Race
from streamrace.device.costs import Costs, use
from streamrace.device.tracing import Tracer
from streamrace.trace.records import Access, Launch, TraceRecord


class Story:
    """The records of what ran inside :func:`story`."""

    def __init__(self) -> None:
        self.records: list[TraceRecord] = []

    @property
    def races(self) -> list[Race]:
        detector = RaceDetector()
        detector.feed(0, self.records)
        detector.finish()
        return detector.races

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The kernels of each race, first and second."""
        return [(race.first.kernel, race.second.kernel) for race in self.races]

    @property
    def launches(self) -> list[Launch]:
        """With accesses that have names, where a reader has plain tuples."""
        found = [record for record in self.records if isinstance(record, Launch)]
        return [
            one._replace(
                reads=tuple(Access(*each) for each in one.reads), writes=tuple(Access(*each) for each in one.writes)
            )
            for one in found
        ]

    def of(self, kind: type) -> list[TraceRecord]:
        return [record for record in self.records if isinstance(record, kind)]


@contextmanager
def story(**slow: float) -> Iterator[Story]:
    """Record what runs inside. ``slow``: kernels (``mm=1000``) that take so many times longer."""
    use(Costs(slow={f"kernel:aten::{kernel}": factor for kernel, factor in slow.items()}))
    told = Story()
    tracer = Tracer(told.records.extend, skipped=("judged.py", "recorded_beside.py", "contextlib.py"))
    try:
        yield told
    finally:
        tracer.close()
