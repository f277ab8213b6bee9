"""Collects the metrics of a dry run: the memory of each GPU, and the duration of a step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streamrace.metrics import MemoryMetrics
from streamrace.reports.data.dry_program import Dry, DryTogether
from streamrace.trace.records import Launch, TraceRecord

TOGETHER = "dry_together"  # in a request: as how many ranks the program runs dry together


class DryMetrics:
    """Reads the ranks' records. ``request``: see :func:`streamrace.repro.sessions.folders.request`."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._ranks, self._nodes = int(request["ranks"]), int(request["dry_on_nodes"])
        self._memory: dict[int, MemoryMetrics] = {}
        self._computed: Counter[int] = Counter()
        self._together = TOGETHER in request

    def feed(self, rank: int, records: Sequence[TraceRecord]) -> None:
        self._memory.setdefault(rank, MemoryMetrics()).feed(records)
        if self._together:
            self._computed[rank] += sum(record.end - record.start for record in records if type(record) is Launch)

    def result(self, file: Path) -> Dry:
        """Return the metrics. ``file``: written at the run's end; missing if a script ended its process itself."""
        ends, capacity = [], 0
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            ends, capacity = [int(end) for end in data["step_ends"]], int(data["capacity"])
        except (OSError, ValueError, LookupError, TypeError):
            pass
        step = ends[-1] - ends[-2] if len(ends) > 1 else 0
        peaks = {rank: memory.result().peak for rank, memory in sorted(self._memory.items())} or {0: 0}
        fullest = max(peaks, key=lambda rank: peaks[rank])
        if not self._together:
            return Dry(self._ranks, self._nodes, peaks[fullest], capacity, step)
        computed = tuple(self._computed[rank] for rank in peaks)
        return DryTogether(self._ranks, self._nodes, peaks[fullest], capacity, step, tuple(peaks), fullest, computed)
