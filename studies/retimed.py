"""A dry run, timed anew: the work is recorded once, and placed in time for each network.

What may be timed anew is a trace whose program did not depend on the timing. DeepSpeed's does in one place:
``fetch_sub_module`` (partitioned_param_coordinator.py) asks which fetches have passed, and waits for the oldest when
more than two have not. Recorded without answers (:func:`simgpu.dry.install`) it waits for the third last fetch every
time, which is what it comes to in every timing, but for the microseconds that asking and waiting take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from detectors import Occurrence, Race
from detectors.order.races import Moment
from replay.device_timing import DeviceTiming
from replay.graph import Graph
from replay.recording import Recording
from simgpu.trace import Collective, Launch


@dataclass(frozen=True)
class Retimed:
    """One timing of a recorded job.

    ``step_ns``: the last step (:mod:`metrics.busy` says when it begins), to the end of the run. ``races``: as
    recorded, with ``manifested`` and ``slack_ns`` of this timing (frees are left out: they have no place in the graph).
    """

    step_ns: int
    races: tuple[Race, ...]

    @property
    def manifested(self) -> int:
        return sum(race.manifested for race in self.races)

    @property
    def slack_ns(self) -> int | None:
        """Of all pairs the closest; None without a race."""
        return min((race.slack_ns for race in self.races), default=None)


class Retimer:
    """A trace of a dry run, made with ``answers=False``, and its races with all their occurrences."""

    def __init__(self, folder: Path, races: Sequence[Race]) -> None:
        self._recording = Recording.load(folder, calls=False)
        self._graph = Graph(self._recording)
        self._races = races

    def at(self, *, network: float | None = None) -> Retimed:
        """``network``: Gbit/s between nodes; None: as recorded."""
        timing = self._timing(network)
        times = self._graph.times(timing)
        races = []
        for race in self._races:
            slacks = [self._slack(race, one, times) for one in race.examples if one.second.op is not None]
            if slacks:
                manifested = sum(slack < 0 for slack in slacks)
                races.append(replace(race, manifested=manifested, slack_ns=min(slacks), occurrences=len(slacks)))
        first, before = self._last_step
        began = max(times[first], max((times[place] for place in before), default=0))
        return Retimed(max(times) - began, tuple(races))

    def _timing(self, network: float | None) -> DeviceTiming:
        if network is None:
            return self._recording.timing
        return self._recording.on(self._recording.by_profile.profile.on_network(network))

    @cached_property
    def _last_step(self) -> tuple[int, list[int]]:
        """Its first launch, and the ends of all work that was issued before; as nodes of the graph."""
        step = max(self._graph.begun)
        place, _ = self._graph.begun[step][0]
        records = self._recording.records[0]
        first = next(record.op for record in records[place:] if isinstance(record, (Launch, Collective)))
        before = [record.op for record in records[:place] if isinstance(record, (Launch, Collective))]
        return self._graph.launches[0, first], [self._graph.ends[0, op] for op in before]

    def _slack(self, race: Race, one: Occurrence, times: Sequence[int]) -> int:
        first = self._effect(one.first, race.first.access, times)
        return self._effect(one.second, race.second.access, times) - first

    def _effect(self, moment: Moment, access: str, times: Sequence[int]) -> int:
        """When it touches memory: a collective reads when it starts; all else happens at the end."""
        assert moment.op is not None
        nodes = self._graph.begins if access == "read" else self._graph.ends
        return times[nodes[0, moment.op]]
