"""A replay's clock is the live one: under any timing, work ends when it would if the program ran again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.confirm import checksums
from fuzz.strategy import stream_timings
from fuzz.subject import Subject
from repro.accelerator.costs import Timing
from repro.replay.deviations import Delay, Deviation, Jitter, Stretch
from repro.replay.graph import Graph
from repro.replay.record import record
from repro.replay.recording import Recording
from scenarios import program
from scenarios.named import named
from scenarios.textbook import TEXTBOOK
from tests.examples import examples


def ends(recording: Recording, timing: Timing | None = None) -> dict[tuple[int, int], int]:
    """When each operation ends, by rank and number."""
    graph = Graph(recording)
    times = graph.times(timing)
    return {key: times[node] for key, node in graph.ends.items()}


@cache
def textbook(name: str) -> Subject:
    return Subject(record(TEXTBOOK[name].program))


@examples(60)
@given(st.sampled_from(sorted(TEXTBOOK)), st.data())
def test_times_and_values_are_those_of_running_again(name: str, data: st.DataObject) -> None:
    subject = textbook(name)
    timing = subject.timing(data.draw(stream_timings(subject)))
    again = record(TEXTBOOK[name].program, timing)
    assert ends(subject.recording, timing) == ends(again)
    outcome = subject.replayer.run_timing(timing)
    if outcome.departure is None:
        assert dict(zip(subject.replayer.looks, outcome.checksums, strict=True)) == checksums(again)


@pytest.mark.parametrize("fix", [pytest.param("none", marks=pytest.mark.wide), "event"])
def test_four_ranks_of_deepspeed_too(fix: str, recorded: Callable[[str], Path], tmp_path: Path) -> None:
    recording = Recording.load(recorded(fix))
    gather = next(name for name in recording.names.of_rank(2) if name.kernel == "all_gather" and name.step == 2)
    copy = next(name for name in recording.names.of_rank(1) if name.kernel == "copy_" and name.phase == "forward")
    deviations: list[Deviation] = [
        Jitter(40, 7),
        Stretch("host:3", 4),
        Stretch("link:nccl hpz", 8),
        Delay(gather, "late", 3_000_000),
        Delay(gather, "long", 2_000_000),
        Delay(copy, "long", 50_000_000),
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
        hear=lambda rank, message: None,
        record=True,
        timing=timing,
    )
    live = Recording.load(tmp_path / "trace")
    assert ends(recording, timing) == ends(live)
    outcome = subject.replayer.run_timing(timing)
    assert outcome.departure is None
    assert dict(zip(subject.replayer.looks, outcome.checksums, strict=True)) == checksums(live)
