"""Finds when the work of each step had ended, which may be long after the host went on to the next step."""

from __future__ import annotations

from collections.abc import Iterable

from streamrace.trace.records import Collective, Launch, Phase, TraceRecord


class EndMetrics:
    """Computes the end of each step's work from one rank's records, in order."""

    def __init__(self) -> None:
        self._step = 0
        self._ends = {0: 0}

    def feed(self, records: Iterable[TraceRecord]) -> None:
        """Take the next records."""
        for record in records:
            if isinstance(record, (Launch, Collective)):
                if record.end > self._ends[self._step]:
                    self._ends[self._step] = record.end
            elif isinstance(record, Phase) and record.step != self._step:
                before, self._step = self._ends[self._step], record.step
                self._ends[self._step] = before

    def result(self) -> dict[int, int]:
        """Return, by step (0: before the first), the virtual time in nanoseconds at which all work issued up to the
        step's end had ended.
        """
        return dict(self._ends)
