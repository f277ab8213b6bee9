"""The engine of happens-before stands twice: to be read, and to be fast. They find the same.

All tests of this project judge with both (tests/conftest.py), and end where they differ; here is what only one has.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.detectors import RaceDetector, find_races
from streamrace.detectors.engines import EnginesDiffer
from streamrace.detectors.order.rank import RankAccesses
from streamrace.detectors.race_detector import _Race
from streamrace.trace import records
from streamrace.trace.files import TraceWriter
from streamrace.trace.records import Access, Collective, Launch, TraceError, begin
from tests.detectors.story import Story
from tests.examples import examples

ROOT = Path(__file__).parents[2]


def racing() -> Story:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    gather.reads(a)
    return story


def test_engines_that_differ_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one in Python is made blind; were it not compared, the test suite would prove nothing."""
    monkeypatch.setattr(RankAccesses, "_compare", lambda *_, **__: None)
    detector = RaceDetector(engine="both")
    detector.feed(0, racing().trace)
    with pytest.raises(EnginesDiffer, match="a bug of this project"):
        detector.findings()


def test_each_alone_finds_it() -> None:
    found = []
    for engine in ("native", "python"):
        detector = RaceDetector(engine=engine)
        detector.feed(0, racing().trace)
        detector.finish()
        found.append(detector.findings())
    assert len(found[0]) == 1 and found[0] == found[1]


def test_an_unknown_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMRACE_ENGINE", "rust")
    with pytest.raises(ValueError, match="STREAMRACE_ENGINE names an engine, native, python, both, not 'rust'"):
        RaceDetector()


def test_where_it_cannot_be_built_the_other_serves_and_says_so(tmp_path: Path) -> None:
    program = (
        "from streamrace import RaceDetector as D; d = D(); d.feed(0, []); print(type(d._engines[0][0]).__module__)"
    )
    environment = {**os.environ, "PATH": str(tmp_path), "CXX": ""}
    del environment["STREAMRACE_ENGINE"]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "streamrace.detectors.order.happens_before\n"
    assert "RuntimeWarning: the engine in Python is used, with the same findings, ten times as slow" in done.stderr


def test_what_it_remembers_goes_with_it() -> None:
    """Memory is given back: an engine and its races are counted references, and nobody else holds them."""

    def races() -> int:
        gc.collect()
        return sum(type(one) is _Race for one in gc.get_objects())

    before = races()
    detector = RaceDetector(engine="native")
    detector.feed(0, racing().trace)
    assert races() == before + 1
    del detector
    assert races() == before


# -- traces that somebody has changed -----------------------------------------------------------------

HUGE = 1 << 70
BAD = [
    Launch(0, 0, "k", (Access(0, 0, 8, (4, (2,), (-8,))),), (), 0, 0, 0, 0),
    Launch(0, 0, "k", (Access(0, 0, 8, (4, (2, 2), (8,))),), (), 0, 0, 0, 0),
    Launch(0, 0, "k", ((0, 8),), (), 0, 0, 0, 0),  # type: ignore[arg-type]
    Launch(0, 0, 5, (), (), 0, 0, 0, 0),  # type: ignore[arg-type]
    Launch("0", 0, "k", (), (), 0, 0, 0, 0),  # type: ignore[arg-type]
    Collective(0, 0, "k", (), (), 0, 0, 0, 0, 5, 0, -1),
]


@pytest.mark.parametrize("record", BAD, ids=range(len(BAD)))
def test_a_record_that_makes_no_sense_is_refused_in_a_sentence(
    record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMRACE_ENGINE", "native")
    writer = TraceWriter(tmp_path / "rank0.trace", rank=0, world=1, info={})
    writer.write([record])
    writer.close()
    with pytest.raises(TraceError, match=r"rank0\.trace"):
        find_races(tmp_path)


def test_a_number_that_no_file_can_hold_is_refused_too() -> None:
    detector = RaceDetector(engine="native")
    with pytest.raises(ValueError, match="a field is no integer of 64 bits"):
        detector.feed(0, [Launch(0, 0, "k", (Access(0, 0, HUGE),), (), 0, 0, 0, 0)])


TYPES = st.sampled_from([getattr(records, name) for name in (
    "Launch", "Collective", "Record", "Wait", "HostWait", "Alloc", "Free", "RecordStream", "Reuse", "Label", "Phase",
    "Stack", "StreamName", "Group",
)])  # fmt: skip
NUMBER = st.one_of(st.integers(-2, 9), st.integers(-(1 << 65), 1 << 65))
VALUE = st.recursive(
    st.one_of(NUMBER, st.none(), st.booleans(), st.text(max_size=3), st.floats(), st.just(())),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)


@st.composite
def record(draw: st.DrawFn) -> Any:
    kind = draw(TYPES)
    return kind(*[draw(st.one_of(NUMBER, VALUE)) for _ in kind._fields])


@given(st.lists(record(), max_size=20))
@examples(300)
def test_no_record_brings_it_down(made: list[Any]) -> None:
    """What is no trace may be refused by an exception of Python's, and by nothing else: no crash, no endless loop."""
    detector = RaceDetector(engine="native")
    try:
        detector.feed(0, [begin(0, 1), *made])
        detector.finish()
        detector.findings()
    except (TraceError, TypeError, ValueError, AttributeError, LookupError):
        pass
    after = RaceDetector(engine="native")
    after.feed(0, [Launch(op, op, "k", (), (Access(1, 0, 8),), -1, 0, 0, 1) for op in range(2)])
    assert after.count == 1
