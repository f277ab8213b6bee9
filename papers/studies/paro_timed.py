"""Records a job of our own engine with four micro-batches in its step, and times it with more of them on other links.

The program does not depend on the timing: the host reads nothing and waits for nothing within a step. So the work is
recorded once (as in :mod:`streamrace.studies.retiming`). The first micro-batch differs from the others, as nothing runs
when it begins, and so does the last, as its backward pass may wait for gradients on their way to the optimizer. The
others are alike. So a step of s takes the time of a step of four, plus s - 4 times the time between the ends of the
second and the third micro-batch's computation. A test compares this with whole steps, to the nanosecond.
"""

from __future__ import annotations

import shutil
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from streamrace.device.hardware import Profile
from streamrace.metrics import MemoryMetrics
from streamrace.replay.graph import Graph
from streamrace.replay.recording import Recording
from streamrace.scenarios import rehearsal
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.job import Job
from streamrace.scenarios.messages import ModelBuilt, RehearsalReport
from streamrace.trace.records import Collective, Launch, Phase, StreamName, TraceRecord

RECORDED = 4  # micro-batches
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class StepTimes(Generic[Key]):
    """Times of a job. ``steps``: nanoseconds of an optimizer step, by machine. ``peak``: bytes of a GPU."""

    steps: dict[Key, int]
    parameters: int
    trained: int
    peak: int


def on_flow(profile: Profile, gbits_per_s: float) -> Profile:
    """Return the machine with the given rate for one flow between nodes; a node's flows together keep their rate.

    A ring over all ranks is one flow there: the rates stand for numbers of NCCL's rings, which
    :mod:`streamrace.device.hardware.network` would decide from the cards.
    """
    together = profile.flow_gbits_per_s(1) if profile.node_gbits_per_s is None else profile.node_gbits_per_s
    return replace(profile, inter_node_gbits_per_s=gbits_per_s, node_gbits_per_s=together, network=None)


def timed(job: Job, folder: Path, *, machines: Mapping[Key, Profile], whole: bool = False) -> StepTimes[Key]:
    """Record ``job``, of our engine, and time a step of its ``accumulation``. ``folder`` is removed afterwards.

    ``machines``: the machines to time it on, which may differ from the job's in the links. ``whole``: run all
    micro-batches, not only four.

    Raises :class:`ScenarioError` for jobs that cannot be rehearsed,
    :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    if not job.sharding:
        raise ScenarioError("only jobs of our own engine are timed so: name a strategy")
    recorded = job.accumulation if whole else min(RECORDED, job.accumulation)
    built: list[ModelBuilt] = []

    def receive(report: RehearsalReport) -> None:
        if isinstance(report, ModelBuilt):
            built.append(report)

    few = job.model_copy(update={"accumulation": recorded, "steps": 1})
    rehearsal.run(few, folder=folder, receive=receive, answers=False)
    recording = Recording.load(folder / "trace", calls=False)
    steps = RecordedSteps(recording, recorded)
    memory = MemoryMetrics()
    memory.feed(recording.records[0])
    shutil.rmtree(folder)
    return StepTimes(
        steps={key: steps.at(profile, job.accumulation) for key, profile in machines.items()},
        parameters=built[0].parameters,
        trained=built[0].trained,
        peak=memory.result().peak,
    )


class RecordedSteps:
    """The recorded step, of ``recorded`` micro-batches, on any machine that differs in its links."""

    def __init__(self, recording: Recording, recorded: int) -> None:
        self._recording, self._recorded = recording, recorded
        self._graph = Graph(recording)
        self._before: list[int] = []  # ops that come before the step
        self._first: int | None = None  # op of the step
        self._computed: dict[int, int] = {}  # by micro-batch: the last op of its backward pass on the compute stream
        self._read(recording.records[0])

    def at(self, profile: Profile, accumulation: int) -> int:
        """Return nanoseconds from the step's first launch (or later end of earlier work) to the end of all work."""
        times = self._graph.times(self._recording.on(profile))
        assert self._first is not None
        began = max([times[self._graph.launches[0, self._first]], *(self._end(times, op) for op in self._before)])
        step = max(times) - began
        if accumulation == self._recorded:
            return step
        ends = [self._end(times, self._computed[at]) for at in (RECORDED - 2, RECORDED - 1)]
        return step + (accumulation - self._recorded) * (ends[1] - ends[0])

    def _end(self, times: Sequence[int], op: int) -> int:
        return times[self._graph.ends[0, op]]

    def _read(self, records: Sequence[TraceRecord]) -> None:
        names: dict[int, str] = {}
        now = Phase(0, 0, "init")
        for record in records:
            if isinstance(record, StreamName):
                names[record.stream] = record.name
            elif isinstance(record, Phase):
                now = record
            elif isinstance(record, (Launch, Collective)):
                if now.step == 0:
                    self._before.append(record.op)
                elif self._first is None:
                    self._first = record.op
                if now.name == "backward" and names[record.stream] == "compute":
                    self._computed[now.micro_batch] = record.op
