"""Ctrl-C and SIGTERM while it judges: they are obeyed soon, and what was found until then is told."""

from __future__ import annotations

import ctypes
import json
import signal
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from operator import length_hint
from pathlib import Path
from typing import Any

import pytest

from streamrace.detectors import RaceDetector
from streamrace.detectors.base import Detector, Found
from streamrace.detectors.files import Following
from streamrace.detectors.native.engine import NativeHappensBefore
from streamrace.process.interrupts import concluding
from streamrace.repro.sessions import check_run, verdict
from streamrace.repro.sessions.child import ProgramEnd
from streamrace.trace.encoding import Encoded, encode
from streamrace.trace.records import Record, TraceRecord
from tests.detectors.story import Story
from tests.detectors.test_find_races import write

LONG = 3_000  # records
WITHOUT_PYTHON = ctypes.PyDLL(None)["raise"]  # no line of Python runs behind it, so no handler does


class Counts(Detector):
    """Counts what it is fed; ``at`` so many records ``does`` something, once."""

    def __init__(self, at: int = 0, does: Callable[[], object] = lambda: None) -> None:
        self.records: list[TraceRecord] = []
        self._at, self._does = at, does

    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        before = len(self.records)
        self.records += records
        if before <= self._at < len(self.records):
            self._does()

    def findings(self) -> list[Found]:
        return []


def racing(folder: Path) -> Path:
    """The traces of a run that races at once, and then goes on for long."""
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    gather.reads(a)
    for _ in range(LONG):
        compute.records()
    folder.mkdir(exist_ok=True)
    write(story, folder)
    return folder


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_between_two_slices_it_is_obeyed(tmp_path: Path, number: signal.Signals) -> None:
    """All detectors have seen the same then: none is interrupted in the middle."""
    first, second = Counts(100, lambda: signal.raise_signal(number)), Counts()
    with concluding(), pytest.raises(KeyboardInterrupt):
        Following(racing(tmp_path), [first, second]).finish()
    assert first.records == second.records
    assert 100 < len(first.records) < 300


def test_who_has_other_things_to_do_gets_the_rest_later(tmp_path: Path) -> None:
    counts, asked = Counts(), []
    following = Following(racing(tmp_path), [counts])
    assert following.poll(lambda: not asked.append(None))  # at once
    assert 0 < len(counts.records) < 100
    assert asked
    following.finish()
    whole = Counts()
    Following(tmp_path, [whole]).finish()
    assert counts.records == whole.records


def test_what_is_left_is_read_until_it_is_enough(tmp_path: Path) -> None:
    counts = Counts()
    following = Following(racing(tmp_path), [counts])
    assert not following.finish(lambda: len(counts.records) > 500)
    assert 500 < len(counts.records) < 700


def test_a_batch_of_the_native_engine_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is: it gets the records some at a time."""
    left = repeat(Record(0, 0), 5_000_000)
    records: Iterator[Any] = chain(filter(None, map(WITHOUT_PYTHON, [signal.SIGINT])), left)
    with pytest.raises(KeyboardInterrupt):
        RaceDetector(engine="native").feed(0, records)
    assert length_hint(left) > 1_000_000


def test_the_native_engine_tells_soon_what_it_found() -> None:
    """However many bytes it got: it stops by the work it has done, so that Python is asked."""
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    gather.reads(a)
    data = encode(story.trace) + encode([Record(0, 0)]) * 3_000_000

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    engine = NativeHappensBefore(interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.feed(0, Encoded(data, (len(data),), "it"))
    assert engine.work < 2_000_000


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who judges is interrupted early in the trace."""
    monkeypatch.setattr(verdict, "detectors", lambda noticed: [RaceDetector(), Counts(100, ctrl_c)])


def conclude(folder: Path, ended: ProgramEnd) -> dict[str, Any]:
    meanwhile = check_run.Meanwhile(folder, {"program": "it"}, dry=False)
    with pytest.raises(KeyboardInterrupt):
        check_run.conclude(ended, folder, meanwhile, folder, None, check_run.Telling())
    found: dict[str, Any] = json.loads((folder / "findings.json").read_text())
    return found


@pytest.mark.usefixtures("interrupting")
def test_what_was_found_until_then_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    racing(tmp_path / "trace")
    found = conclude(tmp_path, ProgramEnd(0))
    assert (found["verdict"], len(found["races"])) == ("race", 1)
    assert found["failure"] == "judging it was interrupted"
    assert "verdict: race" in capsys.readouterr().out


def test_of_a_program_that_was_interrupted_no_more_is_judged_than_there_is_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    racing(tmp_path / "trace")
    counts = Counts()
    monkeypatch.setattr(verdict, "detectors", lambda noticed: [RaceDetector(), counts])
    monkeypatch.setattr(verdict, "_seconds", lambda: len(counts.records) / 1000)  # a slow machine
    found = conclude(tmp_path, ProgramEnd(130, interrupted=True))
    assert (found["verdict"], len(found["races"])) == ("race", 1)
    assert found["failure"] == "it was interrupted, and its end was not judged"
    assert len(counts.records) < 1000
