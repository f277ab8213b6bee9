"""Runs one dry run and reads its trace with detectors and metrics while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from streamrace.detectors import Race, RaceDetector, Unexercised, registry
from streamrace.detectors.base import found_by
from streamrace.detectors.race_detector import EXAMPLES
from streamrace.frameworks.deepspeed.secondary_reads import SecondaryPartitions
from streamrace.metrics import BusyMetrics, MemoryMetrics, MemoryUse, StepTime, Traffic, TrafficMetrics
from streamrace.scenarios import rehearsal
from streamrace.scenarios.job import Job
from streamrace.scenarios.messages import ModelBuilt, RehearsalBegan, RehearsalEnded, RehearsalReport, StepRehearsed
from streamrace.studies.classes import CheckedClasses
from streamrace.trace.files import TraceReader, file_of

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Extension:
    """The extrapolation of a dry run with few layers to all of them (:mod:`streamrace.studies.layers`).

    ``recorded``: layers of each recording; ``layers``: of the whole model. The order repeats with each ``period``
    layers. ``units``: by phase, the number of records that these add. ``trace``: the deepest recording.
    """

    recorded: tuple[int, ...]
    layers: int
    period: int
    units: dict[str, list[int]]
    trace: Path


class Cache(NamedTuple):
    """The GPU's memory that torch's allocator takes, over all steps: the most bytes that it ``reserved``, how often it
    gave cached memory back and asked again (``retries``), and how often even that was not enough (``shortages``).
    """

    reserved: int
    retries: int
    shortages: int


@dataclass(frozen=True)
class Rehearsed:
    """The result of a dry run.

    ``step``: composition of the last step's time. ``traffic``: bytes that each GPU sends, by step. ``memory``: of the
    whole run, against the hardware profile's capacity. ``judged``: the races, None if races were not looked for.
    ``flops``: floating point operations of the last step on each GPU; ``forward_flops``: those of its forward passes.
    ``host_s``: duration of the dry run itself, seconds. ``rank``: the rank that ran. ``sizes``: of the parameters,
    elements, each size once. ``classes``: ranks that behave alike; None: assumed, not checked. ``extension``: the
    extrapolation from few layers; None: a dry run of the whole model. ``unexercised``: features that were on and never
    happened (of an extended run: in the deepest recording), if races were looked for. ``cache``: of torch's allocator;
    None: unknown, as the run is extended.
    """

    job: Job
    folder: Path
    parameters: int
    trained: int
    micro_batch: int
    accumulation: int
    operations: int
    judged: tuple[Race, ...] | None
    step: StepTime
    steps: tuple[StepTime, ...]
    traffic: Traffic
    memory: MemoryUse
    flops: int
    forward_flops: int
    host_s: float
    rank: int = 0
    sizes: tuple[int, ...] = ()
    classes: CheckedClasses | None = None
    extension: Extension | None = None
    unexercised: tuple[str, ...] = ()
    cache: Cache | None = None

    @property
    def races(self) -> tuple[Race, ...]:
        """Return the races. Raises RuntimeError if races were not looked for."""
        if self.judged is None:
            raise RuntimeError("this dry run was timed and not judged: rehearse it with races=True")
        return self.judged

    @property
    def fits(self) -> bool:
        return self.memory.excess is None and not (self.cache and self.cache.shortages)

    @property
    def step_s(self) -> float:
        """Return the seconds of virtual time of an optimizer step."""
        return self.step.time / 1e9

    @property
    def tokens_per_second(self) -> float:
        """Return the tokens per second of all GPUs together."""
        return self.job.ranks * self.micro_batch * self.accumulation * self.job.sequence / self.step_s

    @property
    def tflops(self) -> float:
        """Return the model TFLOPs per GPU and second: three times the forward pass, without recomputation."""
        return 3 * self.forward_flops / self.step_s / 1e12

    @property
    def trace(self) -> Path:
        """Return the path of the trace; of an extended run: of the deepest recording."""
        return self.extension.trace if self.extension else file_of(self.folder / "trace", self.rank)


@dataclass
class _Reported:
    """Values that the rank has reported."""

    parameters: int = 0
    trained: int = 0
    operations: int = 0
    flops: int = 0
    forward_flops: int = 0
    seconds: float = 0.0
    batch: tuple[int, int] = (0, 0)
    sizes: list[int] = field(default_factory=list)
    cache: Cache | None = None


def rehearse(
    job: Job,
    folder: Path,
    tell: Tell = lambda text: None,
    *,
    answers: bool = True,
    races: bool = True,
    examples: int | None = EXAMPLES,
    rank: int = 0,
    layers: int | None = None,
    started: Callable[[], None] = lambda: None,
) -> Rehearsed:
    """Dry-run ``job`` and read its trace while it runs. ``tell`` is called with each step of progress.

    The detectors run in this process. ``answers``: see :func:`streamrace.device.dry.install`; ``races``: look for
    races, which takes a third of the time; ``examples``: how many occurrences of each race are kept (None: all).
    ``rank``: the rank that runs; a rank other than 0 needs the broadcasts of rank 0, so a dry run of rank 0 with the
    same ``layers`` comes first. ``layers``, ``started``: see :func:`streamrace.scenarios.rehearsal.run`.

    Raises :class:`streamrace.scenarios.base.ScenarioError` for a job that cannot be rehearsed,
    :class:`streamrace.device.ranks.cluster.RankFailed` when the dry run itself breaks.
    """
    timing, profile = job.timing(), job.profile()
    detector, memory = RaceDetector(examples), MemoryMetrics(profile.capacity)
    using = [detector, *(make() for make in registry.EXERCISE), SecondaryPartitions()] if races else []
    traffic, busy = TrafficMetrics(timing.nodes_of), BusyMetrics()
    reported = _Reported()
    path = file_of(folder / "trace", rank)
    readers: list[TraceReader] = []

    def follow() -> None:
        if not readers and path.exists():
            readers.append(TraceReader(path))
        for reader in readers:
            records = list(reader.read())
            for watcher in using:
                watcher.feed(rank, records)
            for metric in (memory, traffic, busy):
                metric.feed(records)

    who = f"our engine ({job.sharding})" if job.sharding else "DeepSpeed"

    def receive(report: RehearsalReport) -> None:
        if isinstance(report, ModelBuilt):
            reported.parameters, reported.trained, reported.sizes = report
            tell(f"{reported.parameters / 1e9:.1f} billion parameters; {who} starts on {job.ranks} ranks")
        if isinstance(report, RehearsalBegan):
            reported.batch = report
            tell(f"training, rank {rank}")
        if isinstance(report, StepRehearsed):
            reported.flops, reported.forward_flops = report.flops, report.forward_flops
            tell(f"step {report.step} of {job.steps}: {report.operations:,} operations so far")
        if isinstance(report, RehearsalEnded):
            reported.seconds, reported.operations, *cache = report
            reported.cache = Cache(*cache)
        follow()

    try:
        if rank:
            tell("what rank 0 broadcasts")
            rehearsal.run(job, folder=folder, receive=lambda _: None, answers=answers, layers=layers)
            file_of(folder / "trace", 0).unlink()
        rehearsal.run(
            job, folder=folder, receive=receive, answers=answers, ranks=(rank,), layers=layers, started=started
        )
        follow()
    finally:
        for reader in readers:
            reader.close()
    for watcher in using:
        watcher.finish()
    steps = busy.result().steps
    return Rehearsed(
        job=job,
        folder=folder,
        parameters=reported.parameters,
        trained=reported.trained,
        micro_batch=reported.batch[0],
        accumulation=reported.batch[1],
        operations=reported.operations,
        judged=tuple(detector.races) if races else None,
        step=steps[-1],
        steps=steps,
        traffic=traffic.result(),
        memory=memory.result(),
        flops=reported.flops,
        forward_flops=reported.forward_flops,
        host_s=reported.seconds,
        rank=rank,
        sizes=tuple(reported.sizes),
        unexercised=tuple(found_by(using, Unexercised)),
        cache=reported.cache,
    )
