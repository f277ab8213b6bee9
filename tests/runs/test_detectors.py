"""A registered detector reads the trace of a scenario while it runs, and its findings are the run's."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from streamrace.detectors import Detector, Unexercised, registry
from streamrace.reports.data.findings import Findings
from streamrace.trace.records import Collective, End, TraceRecord


class Collectives(Detector):
    """Counts the collectives, and the ranks whose traces have come to their end."""

    def __init__(self) -> None:
        self._count = 0
        self._ended: set[int] = set()

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        for record in records:
            self._count += isinstance(record, Collective)
            if isinstance(record, End):
                self._ended.add(rank)

    def findings(self) -> list[Unexercised]:
        many = "many" if self._count > 10 else "few"
        return [Unexercised(f"{many} collectives ran on ranks {sorted(self._ended)}")]


def test_one_registration_brings_a_detector_into_a_run(
    run: Callable[..., Findings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "DETECTORS", [*registry.DETECTORS, Collectives])
    found = run(ranks=2, nodes=1, steps=1, rests=True)
    assert found.verdict == "clean"
    assert "many collectives ran on ranks [0, 1]" in found.unexercised
