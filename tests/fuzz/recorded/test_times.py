"""A replay's clock is the live one: work ends when it would if DeepSpeed ran again.

Of small programs in any timing: tests/fuzz/test_textbook.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from streamrace.device.hardware import HardwareTiming
from streamrace.fuzz.confirm import checksums
from streamrace.fuzz.subject import Subject
from streamrace.replay.deviations import Deviation, Jitter, OperationDelay, Stretch
from streamrace.replay.graph import Graph
from streamrace.replay.recording import Recording
from streamrace.scenarios import program
from streamrace.scenarios.registry import named


def ends(recording: Recording, timing: HardwareTiming | None = None) -> dict[tuple[int, int], int]:
    """When each operation ends, by rank and number."""
    graph = Graph(recording)
    times = graph.times(timing)
    return {key: times[node] for key, node in graph.ends.items()}


@pytest.mark.parametrize("fix", [pytest.param("none", marks=pytest.mark.wide), "event"])
def test_four_ranks_of_deepspeed_too(fix: str, recorded: Callable[[str], Path], tmp_path: Path) -> None:
    recording = Recording.load(recorded(fix))
    gather = next(name for name in recording.names.of_rank(2) if name.kernel == "all_gather" and name.step == 2)
    copy = next(name for name in recording.names.of_rank(1) if name.kernel == "copy_" and name.phase == "forward")
    deviations: list[Deviation] = [
        Jitter(40, 7),
        Stretch("host:3", 4),
        Stretch("link:nccl hpz", 8),
        OperationDelay(gather, "late", 3_000_000),
        OperationDelay(gather, "long", 2_000_000),
        OperationDelay(copy, "long", 50_000_000),
    ]
    if fix != "none":  # or the race shows, and the live host goes its own way
        deviations.append(Stretch("rank:0", 2))
    subject = Subject(recording)
    timing = subject.timing(deviations)
    program.preload()
    program.run(
        named("hpz-short", {"fix": fix}),
        simulated=True,
        folder=tmp_path,
        record=True,
        timing=subject.live_timing(deviations),
    )
    live = Recording.load(tmp_path / "trace")
    assert ends(recording, timing) == ends(live)
    outcome = subject.replayer.run(timing)
    assert outcome.departure is None
    assert dict(zip(subject.replayer.looks, outcome.checksums, strict=True)) == checksums(live)
