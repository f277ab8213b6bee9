"""A new detector is a class and one registration: then each session that judges a trace has its findings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from streamrace.detectors import Detector, Race, Unseen, registry
from streamrace.repro.sessions.verdict import judge
from streamrace.trace.records import End, Launch, TraceRecord
from tests.detectors.story import Story
from tests.detectors.test_find_races import write


class Sums(Detector):
    """Counts the sums, and accuses the story's race once more."""

    def __init__(self) -> None:
        self._sums = 0
        self._finished = False

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        assert not self._finished
        self._sums += sum(isinstance(record, Launch) and record.kernel == "aten::sum" for record in records)

    def finish(self) -> None:
        self._finished = True

    def findings(self) -> list[Unseen | Race]:
        races = raced().races() if self._sums > 2 else []
        return [Unseen(f"{self._sums} sums"), *races]


def raced() -> Story:
    story = Story()
    compute, side = story.streams("compute", "side")
    a = story.block()
    compute.writes(a)
    side.reads(a)
    return story


def summing(times: int) -> Story:
    story = Story()
    compute, side = story.streams("compute", "side")
    side.writes(story.block())
    for _ in range(times):
        compute.writes(story.block(), kernel="aten::sum")
    return story


def checked(story: Story, folder: Path) -> tuple[str, list[str], list[str]]:
    (folder / "trace").mkdir(parents=True)
    story.adds(End(0))
    write(story, folder / "trace")
    found = judge(folder, {}, failure=None, beside=folder).model_dump()
    return found["verdict"], found["checked"]["unseen"], [race["kind"] for race in found["races"]]


def test_one_registration_brings_a_detector_into_the_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(summing(3), tmp_path / "before") == ("clean", [], [])
    monkeypatch.setattr(registry, "DETECTORS", [*registry.DETECTORS, Sums])
    assert checked(summing(2), tmp_path / "few") == ("unknown", ["2 sums"], [])
    assert checked(summing(3), tmp_path / "many") == ("race", ["3 sums"], ["write-read"])
