"""The NaN watch on the simulated GPU: it finds the race from inside, and does not hide it by looking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from streamrace.detectors import Cause, Kind
from streamrace.reports.data.findings import Findings, Verdict
from streamrace.trace.files import TraceReader, file_of
from streamrace.trace.records import HOST_STREAM, Collective, Launch, Stack, StreamName
from tests.runs.timings import TIMINGS as ALL

Run = Callable[..., Findings]
Shared = Callable[..., tuple[Findings, Path]]

# That leave time to look, that leave none, and that move everything.
TIMINGS = {name: ALL[name] for name in ("fast network", "paper", "launch bound", "jitter")}

PAIR: dict[str, Any] = {"steps": 2, "accumulation": 1, "ranks": 2, "nodes": 1}


def executed(folder: Path, rank: int) -> list[tuple[int, str, tuple[str, int]]]:
    """The program's own work on one rank in the order of its execution: stream, kernel, line of code."""
    reader = TraceReader(file_of(folder / "trace", rank))
    stacks = {}
    work = []
    host = -1
    for record in reader.read():
        if isinstance(record, StreamName) and record.name == HOST_STREAM:
            host = record.stream  # what the host does itself, the watch's pinned memory among it
        elif isinstance(record, Stack):
            stacks[record.id] = record.frames
        elif isinstance(record, (Launch, Collective)) and not record.kernel.startswith("detectors::"):
            if record.stream == host:
                continue
            frame = stacks[record.stack][0]
            work.append((record.end, record.op, (record.stream, record.kernel, (frame.function, frame.line))))
    reader.close()
    return [what for _, _, what in sorted(work, key=lambda one: one[:2])]


def race_facts(found: Findings) -> list[tuple[Any, ...]]:
    """Which races: both sides, parameters, ranks, and how often. Not when."""
    return [
        (
            *(race.kind, race.first.kernel, race.first.stream, race.second.kernel, race.second.stream),
            *(race.first.stack[:2], race.second.stack[:2], race.names, race.ranks, race.occurrences),
        )
        for race in found.races
    ]


@pytest.mark.parametrize(
    ("timing", "fix"),
    [
        ("paper", "none"),
        pytest.param("paper", "stream-sync", marks=pytest.mark.wide),
        *(pytest.param(timing, "none", marks=pytest.mark.wide) for timing in TIMINGS),
    ],
)
def test_with_the_watch_on_races_and_losses_are_the_same(
    run: Run, shared_run: Shared, tmp_path: Path, timing: str, fix: str
) -> None:
    """It takes time, as any kernel does, and still nothing that training computes is other."""
    bare, folder = shared_run(fix=fix, **PAIR, **TIMINGS[timing])
    watched = run(folder=tmp_path / "watched", fix=fix, watch="on", **PAIR, **TIMINGS[timing])
    assert race_facts(watched) == race_facts(bare)
    assert bool(bare.races) is (fix == "none")
    assert watched.verdict is bare.verdict
    losses = [pd.read_csv(place / "metrics.csv") for place in (folder, tmp_path / "watched")]
    pd.testing.assert_frame_equal(losses[0], losses[1], check_exact=True)


@pytest.mark.parametrize("fix", ["none", pytest.param("stream-sync", marks=pytest.mark.wide)])
def test_the_order_of_execution_is_the_same_where_looking_takes_no_time(
    run: Run, shared_run: Shared, tmp_path: Path, fix: str
) -> None:
    """What is left of the watch then is order, and there is none: every event of the program is at its old time."""
    _, folder = shared_run(fix=fix, **PAIR, **TIMINGS["paper"])
    found = run(folder=tmp_path / "watched", fix=fix, watch="weightless", **PAIR, **TIMINGS["paper"])
    assert all(race.witness and race.witness.token for race in found.races)  # such a trace can be timed anew, too
    for rank in range(2):
        bare = executed(folder, rank)
        assert len(bare) > 1000
        assert executed(tmp_path / "watched", rank) == bare


def test_without_the_sync_the_watch_names_the_race_from_inside_training(run: Run) -> None:
    """It sees no trace and knows no happens-before: the checksums are its evidence."""
    found = run(fix="none", watch="on", steps=2, ranks=2, nodes=1)  # of two micro-batches it names the right one
    assert found.verdict is Verdict.UNSTABLE
    watch = found.watch
    assert watch is not None
    assert (watch["cause"], watch["kind"]) == (Cause.RACE, Kind.SECONDARY)
    assert watch["parameter"] in {name.name for race in found.races for name in race.names}
    assert found.divergence is not None
    wrong = found.divergence.parameter
    assert wrong is not None
    assert (watch["step"], watch["micro_batch"]) == (wrong.step, wrong.micro_batch)
    assert "the write landed after the read" in " ".join(watch["evidence"])


def test_with_the_sync_the_watch_says_nothing(run: Run) -> None:
    found = run(fix="stream-sync", watch="on", ranks=2, nodes=1)
    assert found.verdict is Verdict.CLEAN
    assert found.watch is None


def test_a_check_that_waits_for_each_value_hides_the_race(run: Run, shared_run: Shared) -> None:
    """The trap: ``.item()`` after the partition orders the copy before the all-gather, and the bug is gone while it is
    looked for (DeepSpeed issue 5059). That is why the watch never reads a value at once."""
    found = run(fix="none", watch="blocking", **PAIR)
    assert found.verdict is Verdict.CLEAN
    assert not found.races
    bare, _ = shared_run(fix="none", **PAIR, **TIMINGS["paper"])
    assert bare.verdict is Verdict.UNSTABLE
