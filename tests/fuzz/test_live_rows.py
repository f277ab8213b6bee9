"""What is kept of a long live run is little, and says the same as all of it would."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path
from random import Random

import pytest

from streamrace.detectors import find_races
from streamrace.detectors.identity import identity
from streamrace.device.timing import Place
from streamrace.fuzz.live.rows import Rows, Spill
from streamrace.fuzz.live.run_record import HostWaited, Recorded, Works, begins
from streamrace.fuzz.occurrences import spread, spread_of
from streamrace.repro.sessions.sentences import no_place
from streamrace.trace.records import Launch
from tests.detectors.test_find_races import story_of, write


@pytest.fixture(autouse=True, params=[2, 1024])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    """Of two rows a part, nearly all is in the file; of a thousand, nothing is."""
    monkeypatch.setattr("streamrace.fuzz.live.rows._BLOCK", request.param)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return int(request.param)


def launch(op: int, stream: int, kernel: str) -> Launch:
    return Launch(op, stream, kernel, (), (), 7, op, 10 * op, 10 * op + 5)


def test_rows_are_the_list_that_they_stand_for() -> None:
    those = [HostWaited("read", 3, 10, 20), HostWaited("synchronize", -1, 30, 1 << 40), HostWaited("read", 3, 50, 60)]
    rows = Rows(HostWaited)
    for one in those:
        rows.add(*one)
    assert [*rows] == those and rows[1] == those[1] and rows[-1:] == those[-1:] and len(rows) == 3
    other = Rows(HostWaited)
    other.add(*those[1])  # whose words have other numbers
    for one in those[:1] + those[2:]:
        other.add(*one)
    assert rows != other and rows == rows
    with pytest.raises(TypeError):
        hash(rows)


@pytest.mark.parametrize("numbers", [range(1, 200), Random(0).sample(range(1, 200), 120)], ids=["rising", "mixed"])
def test_work_is_found_by_its_number_and_by_what_it_is(numbers: list[int]) -> None:
    works = Works(3)
    counts: dict[tuple[int, str], int] = {}
    places = {}
    for op in numbers:
        key = op % 2, f"aten::{'add' if op % 3 else 'mm'}"
        counts[key] = counts.get(key, 0) + 1
        places[op] = Place(3, *key, counts[key])
        works.add(launch(op, *key))
    assert [*works] == [*numbers]
    assert all(works.number(place) == op and works[op].place == place for op, place in places.items())
    assert all((works[op].start, works[op].end, works[op].stack) == (10 * op, 10 * op + 5, 7) for op in numbers)
    assert 1000 not in works and works.get(0) is None
    for absent in (Place(2, 0, "aten::add", 1), Place(3, 0, "aten::add", 0), Place(3, 0, "aten::add", 1000)):
        assert works.number(absent) is None
    assert {op for op, _ in works.during(100, 300)} == {op for op in numbers if 10 * op + 5 >= 100 and 10 * op <= 300}


def test_of_a_work_that_is_told_twice_the_later_counts() -> None:
    works = Works(0)
    for op, kernel in ((5, "aten::mm"), (4, "aten::mm"), (5, "aten::add")):
        works.add(launch(op, 0, kernel))
    assert works[5].place.kernel == "aten::add"


def test_a_word_and_a_place_are_found_wherever_they_are() -> None:
    rows = Rows(HostWaited)
    for at in range(9):
        rows.add("read" if at % 3 else "copy", at // 2, at, -at)
        assert len(rows) == at + 1 and rows[at] == rows[-1] == (("copy", "read", "read")[at % 3], at // 2, at, -at)
    assert rows.first(stack=3, how="copy") == 6 and rows.first(stack=3, how="read") == 7
    assert rows.first(stack=2, how="copy") is None and rows.first(how="synchronize") is None
    assert rows.number(7, "stack") == 3 and [one for _, (some,) in rows.columns("end") for one in some] == [
        -at for at in range(9)
    ]
    with pytest.raises(IndexError):
        rows[9]


def test_what_a_run_leaves_in_a_file_is_gone_with_it(tmp_path: Path, block: int) -> None:
    def opened() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    before = opened()
    run = Recorded.of(0, [launch(op, 0, "aten::mm") for op in range(100)])
    other = Recorded.of(0, [launch(op, 0, "aten::mm") for op in range(100)])
    assert begins({0: run}, {0: other}) and not [*tmp_path.iterdir()]
    assert opened() - before == (2 if block < 100 else 0)
    del run, other
    assert opened() == before


@pytest.mark.parametrize("why", ["full", "gone"])
def test_where_the_file_can_not_be_written_one_sentence_names_the_place(
    why: str, tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    place = tmp_path if why == "full" else tmp_path / "gone"
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    if why == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large" if why == "full" else "No such file") as raised:
            Recorded.of(0, [launch(op, 0, "aten::mm") for op in range(1024)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    sentence = no_place(raised.value)
    assert sentence is not None and str(place) in sentence
    assert not [*tmp_path.iterdir()]


def test_a_file_that_lost_its_end_gives_no_value() -> None:
    spill = Spill()
    at = spill.add(bytes(range(100)))
    assert (at, spill.add(b"more")) == (0, 100) and spill.read(98, 6) == b"\x62\x63more"
    with pytest.raises(OSError, match="Input/output error"):
        spill.read(98, 7)


def test_an_empty_run() -> None:
    run = Recorded(0)
    assert not run.works and not run.reads and run.final == Recorded(0).final
    assert run.time(Place(0, 0, "aten::mm", 1), "end") is None


def test_the_occurrences_that_are_tried_are_those_of_all(tmp_path: Path) -> None:
    """... though only those are kept, of traces that are read twice."""
    write(story_of(3, steps=41), tmp_path)
    races = find_races(tmp_path, examples=None)
    assert [race.occurrences for race in races] == [3 * 41]
    keys = [identity(race) for race in races]
    assert spread_of(tmp_path, keys) == {key: spread(race.examples) for key, race in zip(keys, races, strict=True)}
    assert len({one.rank for one in spread_of(tmp_path, keys)[keys[0]]}) == 2
    assert spread_of(tmp_path, []) == {}


def test_a_thinned_run_is_how_another_began_or_it_is_not() -> None:
    """Only such a run may stand for it where it is asked what its program came to see later."""
    works = [launch(op, op % 2, "aten::mm") for op in range(1, 9)]
    whole, kept = Recorded.of(0, works), Recorded.of(0, works[:5])
    assert begins({0: kept}, {0: whole}) and begins({0: whole}, {0: whole})
    assert not begins({0: whole}, {0: kept})
    numbered = Recorded.of(0, [work._replace(stack=work.stack + 1) for work in works])
    assert begins({0: kept}, {0: numbered})  # stacks have other numbers in each run
    other = Recorded.of(0, [*works[:3], works[3]._replace(end=1), *works[4:]])
    assert not begins({0: kept}, {0: other})
    assert not begins({0: kept}, {0: whole, 1: whole})
