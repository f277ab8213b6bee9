"""A recorded job in which one thing is otherwise: the network, the kernels, what a collective costs, what is hidden.

The work stays what was recorded, as in :mod:`studies.retimed`. What is varied is what papers leave open of their
machines, one at a time: so each variation says what that one alone would do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.device_timing import DeviceTiming
from simgpu.trace import Collective, Launch
from studies.retimed import Retimer

Spans = npt.NDArray[np.int64]


class Variation(NamedTuple):
    """What is otherwise than recorded.

    ``network``: Gbit/s between nodes; None: as recorded. ``kernels``: how many times as long every kernel takes;
    ``collective_us``: by how much longer every collective takes; ``launch_us``: of a launch, None: the profile's.
    ``hidden``: the part of what can be hidden that is: of communication behind computing, or the other way round; 0:
    one after the other, 1: whichever takes longer; None: what the streams make of it.
    """

    network: float | None = None
    kernels: float = 1.0
    collective_us: float = 0.0
    launch_us: float | None = None
    hidden: float | None = None


class VariedRecording(Retimer):
    """A trace of a dry run, made with ``answers=False``, timed under variations."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ())
        records = self._recording.records[0]
        self._collectives = [record.op for record in records if isinstance(record, Collective)]
        self._kernels = [(record.op, record.end - record.start) for record in records if isinstance(record, Launch)]

    def seconds(self, variation: Variation) -> float:
        """Of the last step."""
        times = self._graph.times(self._varied(variation))
        first, before = self._last_step
        began = max(times[first], max((times[place] for place in before), default=0))
        step = max(times) - began
        if variation.hidden is None:
            return step / 1e9
        ends = {op: times[node] for (_, op), node in self._graph.ends.items()}
        computing = _joined(
            [(ends[op] - round(took * variation.kernels), ends[op]) for op, took in self._kernels], began
        )
        begins = {op: times[self._graph.begins[0, op]] for op in self._collectives}
        communicating = _joined([(begins[op], ends[op]) for op in self._collectives], began)
        either = _length(_joined([*map(tuple, computing), *map(tuple, communicating)], began))
        lengths = _length(computing), _length(communicating)
        one_after_the_other = step + sum(lengths) - either
        return (one_after_the_other - variation.hidden * min(lengths)) / 1e9

    def _varied(self, variation: Variation) -> DeviceTiming:
        recorded = self._recording.by_profile
        profile = recorded.profile
        if variation.network is not None:
            profile = profile.on_network(variation.network)
        if variation.launch_us is not None:
            profile = replace(profile, launch_us=variation.launch_us)
        slow = dict(recorded.slow)
        if variation.kernels != 1:
            slow["rank:0"] = slow.get("rank:0", 1.0) * variation.kernels
        timing = self._recording.timing.on(replace(recorded, profile=profile, slow=slow))
        if variation.collective_us:
            more = round(variation.collective_us * 1000)
            timing = replace(timing, delays={(0, op): (0, more) for op in self._collectives})
        return timing


def _joined(spans: Iterable[tuple[int, int]], began: int) -> Spans:
    """Where at least one is, from ``began`` on: no two of them meet."""
    found = np.array(sorted((max(first, began), last) for first, last in spans if last > began), dtype=np.int64)
    if not len(found):
        return found.reshape(0, 2)
    ends = np.maximum.accumulate(found[:, 1])
    starts = np.flatnonzero(np.concatenate([[True], found[1:, 0] > ends[:-1]]))
    return np.stack([found[starts, 0], np.maximum.reduceat(found[:, 1], starts)], axis=1)


def _length(spans: Spans) -> int:
    return int((spans[:, 1] - spans[:, 0]).sum())
