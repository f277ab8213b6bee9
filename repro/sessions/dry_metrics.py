"""Collects the metrics of a dry run: the memory of each GPU, and the duration of a step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streamrace.metrics import MemoryMetrics
from streamrace.reports.data.dry_program import Dry
from streamrace.trace.records import TraceRecord


class DryMetrics:
    """Reads rank 0's records. ``request``: see :func:`streamrace.repro.sessions.folders.request`."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._ranks, self._nodes = int(request["ranks"]), int(request["dry_on_nodes"])
        self._memory = MemoryMetrics()

    def feed(self, rank: int, records: Sequence[TraceRecord]) -> None:
        self._memory.feed(records)

    def result(self, file: Path) -> Dry:
        """Return the metrics. ``file``: written at the run's end; missing if a script ended its process itself."""
        ends, capacity = [], 0
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            ends, capacity = [int(end) for end in data["step_ends"]], int(data["capacity"])
        except (OSError, ValueError, LookupError, TypeError):
            pass
        step = ends[-1] - ends[-2] if len(ends) > 1 else 0
        return Dry(self._ranks, self._nodes, self._memory.result().peak, capacity, step)
