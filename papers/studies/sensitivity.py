"""Times a recorded job with one thing varied: the network, the kernels, the cost of a collective, the hidden part.

The work stays as recorded, as in :mod:`streamrace.studies.retiming`. The varied figures are those that papers leave
open about their machines, one at a time: so each variation shows the effect of that one alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamrace.replay.device_timing import DeviceTiming
from streamrace.studies.retiming import Retimer
from streamrace.trace.records import Collective, Launch

Spans = npt.NDArray[np.int64]


class Variation(NamedTuple):
    """A difference from the recorded timing.

    ``network``: Gbit/s between nodes; None: as recorded. ``kernels``: how many times as long every kernel takes;
    ``collective_us``: by how much longer every collective takes; ``launch_us``: of a launch, None: the profile's.
    ``hidden``: how much of the shorter of communication and computation is hidden behind the other; 0: one after the
    other, 1: the longer one counts; None: as the streams overlap. ``parameter_ps``: picoseconds more for each parameter
    of the model and micro-batch, whatever the network and the tokens are (copies, the host's work, the allocator's):
    not part of any timing of a recording, :func:`papers.studies.paper.timed_rows` adds it.
    """

    network: float | None = None
    kernels: float = 1.0
    collective_us: float = 0.0
    launch_us: float | None = None
    hidden: float | None = None
    parameter_ps: float = 0.0


class VariedRecording(Retimer):
    """A trace of a dry run, recorded with ``answers=False``, timed under variations."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ())
        records = self._recording.records[0]
        self._collectives = [record.op for record in records if isinstance(record, Collective)]
        kernels = [record for record in records if isinstance(record, Launch)]
        ends, begins = self._graph.ends, self._graph.begins
        self._kernel_ends = np.array([ends[0, record.op] for record in kernels], dtype=np.int64)
        self._kernel_times = np.array([record.end - record.start for record in kernels], dtype=np.int64)
        self._begins = np.array([begins[0, op] for op in self._collectives], dtype=np.int64)
        self._ends = np.array([ends[0, op] for op in self._collectives], dtype=np.int64)

    def seconds(self, variations: Iterable[Variation]) -> dict[Variation, float]:
        """Return the seconds of the last step. Variations that differ only in ``hidden`` share one timing."""
        found: dict[Variation, float] = {}
        timed: dict[Variation, tuple[int, int, int]] = {}
        for variation in variations:
            of = variation._replace(hidden=None)
            if of not in timed:
                timed[of] = self._once(of)
            step, at_once, shorter = timed[of]
            if variation.hidden is not None:
                step = step + at_once - round(variation.hidden * shorter)
            found[variation] = step / 1e9
        return found

    def _once(self, variation: Variation) -> tuple[int, int, int]:
        """Return nanoseconds: of the step; of computation and communication at once; of the shorter of them."""
        times = self._graph.times(self._varied(variation))
        first, before = self._last_step
        began = max(times[first], max((times[place] for place in before), default=0))
        at = np.array(times, dtype=np.int64)
        ends = at[self._kernel_ends]
        took = np.rint(self._kernel_times * variation.kernels).astype(np.int64)
        computing = joined(np.stack([ends - took, ends], axis=1), began)
        communicating = joined(np.stack([at[self._begins], at[self._ends]], axis=1), began)
        lengths = length(computing), length(communicating)
        either = length(joined(np.concatenate([computing, communicating]), began))
        return max(times) - began, sum(lengths) - either, min(lengths)

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


def joined(spans: Spans, began: int) -> Spans:
    """Merge the spans (rows of begin and end), from ``began`` on, into disjoint ones."""
    found = spans[spans[:, 1] > began]
    if not len(found):
        return found
    found = np.maximum(found[np.argsort(found[:, 0], kind="stable")], began)
    ends = np.maximum.accumulate(found[:, 1])
    starts = np.flatnonzero(np.concatenate([[True], found[1:, 0] > ends[:-1]]))
    joint: Spans = np.stack([found[starts, 0], np.maximum.reduceat(found[:, 1], starts)], axis=1)
    return joint


def length(spans: Spans) -> int:
    """Return the total length of disjoint spans."""
    return int((spans[:, 1] - spans[:, 0]).sum())
