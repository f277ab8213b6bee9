"""Checks whether a secondary partition of hpZ that training had written was ever read: a clean verdict rests on it.

A model that stays below ``stage3_max_live_parameters`` is gathered once a step, from its primary partitions, and
released only after it. Then nothing reads the copies, and the wait between copy and all-gather is not tested. Reads by
the first forward pass, of copies written when the model was built, do not count as training's.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamrace.detectors.base import Detector, Unexercised
from streamrace.trace.records import Collective, Launch, Stack, TraceRecord

_COPY = "Init._partition_param_sec"  # deepspeed/runtime/zero/partition_parameters.py: only it writes secondaries
_TRAINING = "PartitionedParameterCoordinator."  # partitioned_param_coordinator.py: gathers and releases parameters


class SecondaryPartitions(Detector):
    """Detects whether reads of secondary partitions follow training's writes to them.

    Secondary partitions are the memory that work issued in DeepSpeed's ``_partition_param_sec`` writes.
    """

    def __init__(self) -> None:
        self._copying: set[tuple[int, int]] = set()  # rank and number of stacks
        self._training: set[tuple[int, int]] = set()
        self._secondary: set[tuple[int, int]] = set()  # rank and block, of those that training wrote
        self.on = False
        self.reads = 0

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        """Process the next records of ``rank``."""
        for record in records:
            if isinstance(record, Stack):
                if any(frame.function == _COPY for frame in record.frames):
                    self._copying.add((rank, record.id))
                if any(frame.function.startswith(_TRAINING) for frame in record.frames):
                    self._training.add((rank, record.id))
            elif isinstance(record, (Launch, Collective)):
                place = (rank, record.stack)
                self.on |= place in self._copying
                if place not in self._training:
                    continue
                if place in self._copying:
                    self._secondary.update((rank, block) for block, *_ in record.writes)
                else:
                    self.reads += any((rank, block) in self._secondary for block, *_ in record.reads)

    def findings(self) -> list[Unexercised]:
        """Return a finding if hpZ is on and nothing was read."""
        if not self.on or self.reads:
            return []
        return [
            Unexercised(
                "hpZ is on, and no secondary partition that training wrote was ever read: the model stays below "
                "stage3_max_live_parameters, or its parameters below stage3_param_persistence_threshold"
            )
        ]
