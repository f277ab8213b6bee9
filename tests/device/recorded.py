"""Programs run live on ranks of their own and recorded, and what a replay of them says of the same timing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from streamrace.device import costs, hardware
from streamrace.device.hardware_costs import clocked
from streamrace.device.launch import traced
from streamrace.device.ranks import processes
from streamrace.device.timing import Timing, timed
from streamrace.replay.recording import Recording
from streamrace.replay.replayer import Replayer, ReplayOutcome
from streamrace.trace.files import file_of
from streamrace.trace.records import Collective, Launch, Probe, Probed

Program = Callable[[int, int], object]
"""Gets rank and world."""
Look = tuple[int, str, int]
"""A probe: of which rank, its kind and its number."""


def live(
    program: Program,
    folder: Path,
    timing: str = "t1",
    *,
    world: int = 1,
    profile: hardware.HardwareTiming | None = None,
) -> Recording:
    """Run ``program`` on each rank in this timing, recorded into ``folder``. ``profile``: on such hardware."""
    folder.mkdir(parents=True)

    def target(rank: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(rank)
        if profile is not None:
            costs.use(clocked(profile, rank))
        with (
            timed(Timing.parse(timing), rank=rank),
            traced(file_of(folder, rank), skipped=("recorded.py",), record=True, token=timing),
        ):
            _held: Any = program(rank, world)

    processes.run(range(world), target)
    return Recording.load(folder)


def times(recording: Recording) -> dict[tuple[int, int], tuple[int, int, int]]:
    """By rank and number, when work was issued, and when it started (of a kernel: ended) and ended."""
    return {
        (rank, one.op): (one.issued, one.start if isinstance(one, Collective) else one.end, one.end)
        for rank, records in recording.records.items()
        for one in records
        if isinstance(one, (Launch, Collective))
    }


def seen(recording: Recording) -> dict[Look, int]:
    """The checksums of all probes of a live run."""
    told: dict[Look, int] = {}
    for rank, records in recording.records.items():
        last: dict[int, str] = {}
        for one in records:
            if isinstance(one, Probe):
                last[one.probe] = one.kind
            elif isinstance(one, Probed):
                told[rank, last[one.probe], one.probe] = one.checksum
    return told


def replayed_times(replayer: Replayer, timing: str) -> dict[tuple[int, int], tuple[int, int, int]]:
    graph = replayer.graph
    when = graph.times(replayer.recording.deviated(Timing.parse(timing).deviations))
    return {key: (when[graph.launches[key]], when[graph.begins[key]], when[graph.ends[key]]) for key in graph.ends}


def replayed(replayer: Replayer, timing: str) -> tuple[dict[Look, int], ReplayOutcome]:
    """The checksums of all probes of a replay in this timing."""
    outcome = replayer.run(replayer.recording.deviated(Timing.parse(timing).deviations))
    looks = zip(replayer.looks, outcome.checksums, strict=True)
    return {(one.rank, one.kind, one.probe): told for one, told in looks}, outcome


def same(replayer: Replayer, there: Recording, timing: str) -> ReplayOutcome:
    """The live run in this timing and the replay in it agree in every time and in every checksum."""
    assert replayed_times(replayer, timing) == times(there)
    told, outcome = replayed(replayer, timing)
    assert told == seen(there)
    return outcome


def here(program: Callable[[], object]) -> Recording:
    """Run ``program`` on the device of this process, recorded."""
    from streamrace.device import collectives, probes, recording
    from streamrace.device.tracing import Tracer
    from streamrace.trace.records import TraceRecord, begin

    torch.cuda.synchronize()
    records: list[TraceRecord] = [begin(0, 1, recording.info("t1", record=True))]
    tracer = Tracer(records.extend, skipped=("recorded.py",), record=True)
    probes.begin()
    _held: Any = program()
    collectives.drain()
    tracer.flush(everything=True)
    records.extend(probes.collected())
    tracer.close()
    return Recording.of({0: records})
