"""Defines the subject of fuzzing: a recorded run with its reference, its races, and what a timing can slow down."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from streamrace.detectors import RaceDetector
from streamrace.detectors.identity import RaceKey, identity
from streamrace.detectors.order.races import Occurrence, Race
from streamrace.detectors.race_detector import EXAMPLES
from streamrace.device.hardware import HardwareTiming
from streamrace.fuzz.verdict import ReplayVerdict, judge
from streamrace.replay.common_prefix import beginning
from streamrace.replay.deviations import Deviation, Stretch
from streamrace.replay.device_timing import DeviceTiming
from streamrace.replay.names import OperationName, UnknownOperation
from streamrace.replay.recording import Recording
from streamrace.replay.replayer import Replayer, ReplayOutcome
from streamrace.replay.sharing import SharingReplayer
from streamrace.trace.records import HOST_STREAM, Collective, Phase, StreamName


class Subject:
    """A recording that can be executed any number of times. ``executions``: the number of executions.

    ``replayer`` executes everything, each time; :attr:`sharing` executes work that timings have in common once.

    ``first_step``: effects before this step are the same in every timing, and were executed once for all (0: none).
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.replayer = Replayer(recording)
        self.executions = 0
        self.replayer.verify()
        self.first_step = self._settle()
        self.reference: ReplayOutcome = self.replayer.run_order(self.replayer.graph.issue_order())
        self.replayer.expected = self.reference.checksums

    @classmethod
    def load(cls, folder: Path) -> Subject:
        """Load the recording in ``folder``. Raises :class:`streamrace.replay.faults.ReplayError`."""
        return cls(Recording.load(folder))

    @cached_property
    def sharing(self) -> SharingReplayer:
        """Return the replayer that shares work between timings; created on first use, as that takes two timings."""
        return SharingReplayer(self.replayer)

    def run(self, deviations: Sequence[Deviation] = ()) -> ReplayVerdict:
        """Execute under the recorded timing, changed by ``deviations``."""
        return self.judged(self.sharing.run(self.timing(deviations)))

    def timing(self, deviations: Sequence[Deviation]) -> DeviceTiming:
        """Return the recorded timing with ``deviations``.

        Raises :class:`streamrace.replay.names.UnknownOperation` for an unknown operation, stream, link or rank.
        """
        for deviation in deviations:
            if isinstance(deviation, Stretch):
                self._check(deviation.what)
        return self.recording.deviated(deviations)

    def live_timing(self, deviations: Sequence[Deviation]) -> HardwareTiming:
        """Return the recorded timing with ``deviations`` for a run of a scenario on real ranks."""
        return self.timing(deviations).live()

    def judged(self, outcome: ReplayOutcome) -> ReplayVerdict:
        self.executions += 1
        return judge(self.replayer.looks, self.reference, outcome)

    # -- what a timing can affect ----------------------------------------------------------------------

    @cached_property
    def races(self) -> list[Race]:
        """Return the recording's races by happens-before, whatever its timing showed."""
        return _races(self.recording)

    def occurrences(self, race: Race) -> Sequence[Occurrence]:
        """Return all occurrences of the race: the race itself holds only its first few."""
        return self._occurrences[identity(race)]

    @cached_property
    def _occurrences(self) -> dict[RaceKey, Sequence[Occurrence]]:
        return {identity(race): race.examples for race in _races(self.recording, examples=None)}

    @cached_property
    def operations(self) -> tuple[OperationName, ...]:
        """Return the operations from :attr:`first_step` on, by rank in the order of issue."""
        names, graph = self.recording.names, self.replayer.graph
        begun = graph.begun.get(self.first_step, {})
        return tuple(names.name(*key) for key, seq in graph.issued.items() if seq > begun.get(key[0], (0, 0))[0])

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """Return the names of the streams, without those of collectives and of the host."""
        return tuple(name for name in self._stream_names if not name.startswith("nccl") and name != HOST_STREAM)

    @cached_property
    def links(self) -> tuple[str, ...]:
        """Return the names of the links that carry collectives."""
        links: dict[str, None] = {}
        for records in self.recording.records.values():
            links.update((record.link, None) for record in records if isinstance(record, Collective) and record.link)
        return tuple(links)

    @property
    def world(self) -> int:
        return self.recording.world

    def _check(self, target: str) -> None:
        kind, _, which = target.partition(":")
        ranks = tuple(map(str, range(self.world)))
        names = {"stream": self.streams, "link": self.links, "rank": ranks, "host": ranks}.get(kind, ())
        if which and names and "*" not in which and which not in names:
            raise UnknownOperation(f"there is no {kind} '{which}': there are {', '.join(names)}")

    @cached_property
    def _stream_names(self) -> tuple[str, ...]:
        last: dict[tuple[int, int], str] = {}
        for rank, records in self.recording.records.items():
            for record in records:
                if isinstance(record, StreamName):
                    last[rank, record.stream] = record.name
        return tuple(dict.fromkeys(last.values()))

    # -- the beginning ---------------------------------------------------------------------------------

    def _settle(self) -> int:
        """Execute the effects before the last possible step once for all, if none of them race; return the step."""
        for step in sorted(self.replayer.graph.begun, reverse=True):
            if step > 0 and not _races(self.recording, before=step):
                places = beginning(self.replayer.graph, step)
                if places:
                    self.replayer.settle(places)
                    return step
        return 0


def _races(recording: Recording, *, before: int | None = None, examples: int | None = EXAMPLES) -> list[Race]:
    detector = RaceDetector(examples)
    for rank, records in recording.records.items():
        if before is None:
            detector.feed(rank, records)
            continue
        end = next((at for at, record in enumerate(records) if isinstance(record, Phase) and record.step >= before), 0)
        detector.feed(rank, records[:end])
    detector.finish()
    return detector.races
