"""Times a recorded dry run anew: the work is recorded once, and its start and end are computed for each network.

This is valid for a program that does not depend on the timing. DeepSpeed depends on it in one place:
``fetch_sub_module`` (partitioned_param_coordinator.py) queries which fetches have completed, and waits for the oldest
when more than two have not. Recorded without answers (:func:`streamrace.device.dry.install`) it waits for the third
last fetch every time, which is the effect in every timing, but for the duration of queries and waits: a host whose
query answers True skips a wait, which takes microseconds even for completed work, and gains one happens-before edge. If
the GPU is the bottleneck, that shifts nothing. If the host is, a step is shorter in a run with answers, and has fewer
unordered pairs: :attr:`Retimed.asking_ns` is reported with each timing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from streamrace.detectors import Race
from streamrace.detectors.order.races import Moment
from streamrace.device.hardware import Profile
from streamrace.replay.device_timing import DeviceTiming
from streamrace.replay.graph import Graph
from streamrace.replay.recording import Recording
from streamrace.studies.harm import Pair, pairs_of
from streamrace.trace.records import Collective, Launch


@dataclass(frozen=True)
class TimedPair:
    """A pair in one timing. ``slack_ns``: below 0 if reversed; ``harms``: it is reversed and a wrong value is read."""

    pair: Pair
    slack_ns: int
    harms: bool


@dataclass(frozen=True)
class Retimed:
    """One timing of a recorded job.

    ``step_ns``: the last step (:mod:`streamrace.metrics.busy` says when it begins), to the end of the run. ``races``:
    as recorded, with ``manifested`` and ``slack_ns`` of this timing (frees are left out: they have no place in the
    graph). ``pairs``: their occurrences. ``asking_ns``: total duration of the waits that answered queries would save,
    an upper bound on the change of ``step_ns``.
    """

    step_ns: int
    races: tuple[Race, ...]
    pairs: tuple[TimedPair, ...]
    asking_ns: int

    @property
    def manifested(self) -> int:
        return sum(race.manifested for race in self.races)

    @property
    def slack_ns(self) -> int | None:
        """Return the slack of the closest pair; None without a race."""
        return min((race.slack_ns for race in self.races), default=None)

    @property
    def harmful(self) -> tuple[TimedPair, ...]:
        """Return the pairs whose other order changes a value, whatever order this timing has."""
        return tuple(timed for timed in self.pairs if timed.pair.harmful or timed.harms)

    @property
    def harmful_slack_ns(self) -> int | None:
        """Return the slack of the closest harmful pair, without reversed pairs that read the right value, or None."""
        return min((timed.slack_ns for timed in self.harmful if timed.harms or timed.slack_ns >= 0), default=None)


class Retimer:
    """Times a dry run's trace anew, recorded with ``answers=False``. ``races``: with all their occurrences."""

    def __init__(self, folder: Path, races: Sequence[Race]) -> None:
        self._recording = Recording.load(folder, calls=False)
        self._graph = Graph(self._recording)
        self._races = races
        self._pairs = pairs_of(races, self._recording.records[0])

    def at(
        self,
        *,
        network: float | None = None,
        machine: Callable[[Profile], Profile] | None = None,
        slow: Mapping[str, float] | None = None,
    ) -> Retimed:
        """Compute a timing. ``network``: Gbit/s between nodes; ``machine``: maps the profile; ``slow``: as a job's."""
        timing = self._timing(network, machine, slow)
        times = self._graph.times(timing)
        pairs = tuple(self._timed(pair, times) for pair in self._pairs)
        races = []
        for number, race in enumerate(self._races):
            slacks = [timed.slack_ns for timed in pairs if timed.pair.race == number]
            if slacks:
                manifested = sum(slack < 0 for slack in slacks)
                races.append(replace(race, manifested=manifested, slack_ns=min(slacks), occurrences=len(slacks)))
        first, before = self._last_step
        began = max(times[first], max((times[place] for place in before), default=0))
        passed = sum(times[moment] <= times[ask] for ask, moment in self._graph.asks)
        asking = passed * timing.costs[0].synchronize_ns
        return Retimed(max(times) - began, tuple(races), pairs, asking)

    def _timing(
        self,
        network: float | None,
        machine: Callable[[Profile], Profile] | None,
        slow: Mapping[str, float] | None,
    ) -> DeviceTiming:
        recording = self._recording
        if network is None and machine is None and slow is None:
            return recording.timing
        timing = recording.by_profile
        profile = timing.profile if network is None else timing.profile.on_network(network)
        return recording.timing.on(
            replace(
                timing,
                profile=profile if machine is None else machine(profile),
                slow=timing.slow if slow is None else dict(slow),
            )
        )

    @cached_property
    def _last_step(self) -> tuple[int, list[int]]:
        """Return the first launch of the last step, and the ends of all work issued before; as nodes of the graph."""
        step = max(self._graph.begun)
        place, _ = self._graph.begun[step][0]
        records = self._recording.records[0]
        first = next(record.op for record in records[place:] if isinstance(record, (Launch, Collective)))
        before = [record.op for record in records[:place] if isinstance(record, (Launch, Collective))]
        return self._graph.launches[0, first], [self._graph.ends[0, op] for op in before]

    def _timed(self, pair: Pair, times: Sequence[int]) -> TimedPair:
        race, occurrence = self._races[pair.race], pair.occurrence
        second = self._effect(occurrence.second, race.second.access, times)
        slack = second - self._effect(occurrence.first, race.first.access, times)
        read = next((earlier for earlier in pair.before if times[self._graph.ends[0, earlier.op]] <= second), None)
        return TimedPair(pair, slack, slack < 0 and (read is None or not read.same))

    def _effect(self, moment: Moment, access: str, times: Sequence[int]) -> int:
        """Return when an operation touches memory: a collective reads at its start; all else is at the end."""
        assert moment.op is not None
        nodes = self._graph.begins if access == "read" else self._graph.ends
        return times[nodes[0, moment.op]]
