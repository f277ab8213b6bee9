"""A dry run does what a live run does: the same work on the same streams, ordered and timed alike, without a value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamrace.detectors import Race, RaceDetector
from streamrace.device import hardware
from streamrace.scenarios import program
from streamrace.scenarios.scenario import Scenario, scenario
from streamrace.trace.files import TraceReader, file_of
from streamrace.trace.records import Begin, HostStep, Seal, Stack, TraceRecord
from tests.touched import rehearsed_alike

_STARTERS = ("streamrace/scenarios/program.py",)  # a dry run is started from another line

PRICED = "a100-12.5gbps with a host"

# Each setting stands in one of the first four; those that they imply are wide.
TRAININGS = {
    "Falcon, checkpointing, accumulation": {"hpz": 1, "checkpointing": True, "model": "falcon", "accumulation": 2},
    "padded partitions, fp32, frozen, another fix and timing": {
        "hpz": 2,
        "size": "odd",
        "precision": "fp32",
        "frozen": ("*mlp*",),
        "fix": "event",
        "slow": {"stream:all-gather": 9.0, "link:nccl world": 3.0},
    },
    "the program's own code takes time": {"hpz": 2, "hardware": PRICED},
    "quantized": {"hpz": 2, "qwz": True, "qgz": True},
    "ZeRO-3": {"hpz": 1},
    "hpZ": {"hpz": 2},
    "accumulation": {"hpz": 2, "accumulation": 3},
    "checkpointing": {"hpz": 2, "checkpointing": True},
    "padded partitions": {"hpz": 2, "size": "odd"},
}


def chosen(**options: Any) -> Scenario:
    return scenario(**{"size": "tiny", "sequence": 32, "steps": 2, "accumulation": 1, **options})


def priced(folder: Path) -> Path:
    """Write the profile of a machine on which calls of Python functions take time."""
    text = (Path(hardware.__file__).parent / "profiles" / "a100-12.5gbps.toml").read_text(encoding="utf-8")
    file = folder / "priced.toml"
    file.write_text(f"call_ns = 950.0\n{text}", encoding="utf-8")
    return file


def told(folder: Path) -> list[TraceRecord]:
    """Rank 0's records; stacks in place of their numbers."""
    stacks: dict[int, Any] = {}
    records: list[TraceRecord] = []
    for record in TraceReader(file_of(folder / "trace", 0)).read():
        if isinstance(record, Stack):
            stacks[record.id] = tuple(frame for frame in record.frames if frame.file not in _STARTERS)
        elif hasattr(record, "stack"):
            records.append(record._replace(stack=stacks[record.stack]))
        elif not isinstance(record, (Begin, Seal)):
            records.append(record)
    return records


def races(folder: Path, ranks: int) -> tuple[Race, ...]:
    detector = RaceDetector()
    for rank in range(ranks):
        detector.feed(rank, TraceReader(file_of(folder / "trace", rank)).read())
    detector.finish()
    return tuple(detector.races)


def both(made: Scenario, folder: Path) -> tuple[Path, Path]:
    program.run(made, simulated=True, folder=folder / "live")
    program.rehearse(made, folder=folder / "dry")
    return folder / "live", folder / "dry"


@pytest.mark.parametrize(
    "training",
    [pytest.param(name, marks=[] if place < 3 else [pytest.mark.wide]) for place, name in enumerate(TRAININGS)],
)
def test_every_record_is_that_of_the_live_run(training: str, tmp_path: Path) -> None:
    """Operations, bytes they touch, streams, events, waits, allocations, frees, labels, all virtual times."""
    options = TRAININGS[training]
    if options.get("hardware") == PRICED:
        options = {**options, "hardware": str(priced(tmp_path))}
    live, dry = both(chosen(**options), tmp_path)
    expected, found = told(live), told(dry)
    assert len(expected) > 3000
    assert any(isinstance(record, HostStep) and record.calls for record in found) == ("hardware" in options)
    for left, right in zip(expected, found, strict=True):
        assert rehearsed_alike(left, right), (left, right)
    assert not races(dry, 1)


def test_the_race_is_found_without_a_value(tmp_path: Path) -> None:
    """Where it does not show: wrong values would lead the live run to skip a step that the dry run takes."""
    live, dry = both(chosen(hpz=2, fix="none", stands_for="itself"), tmp_path)
    expected, found = races(live, 4), races(dry, 1)
    assert len(expected) == len(found) == 2
    for whole, mine in zip(expected, found, strict=True):
        assert (mine.kind, mine.first, mine.second, mine.names) == (whole.kind, whole.first, whole.second, whole.names)
        assert mine.occurrences * 4 == whole.occurrences and mine.manifested == whole.manifested == 0
        assert mine.examples == tuple(one for one in whole.examples if one.rank == 0)
        assert mine.ranks == (0,)
    for left, right in zip(told(live), told(dry), strict=True):
        assert rehearsed_alike(left, right), (left, right)
