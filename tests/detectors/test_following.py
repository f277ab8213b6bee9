"""Judged while it is written, whole or in parts that go as they are read, a run has the findings of its end."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.detectors import Race, RaceDetector, find_races
from streamrace.detectors.confidence.incidental import WithoutIncidentalWaits
from streamrace.detectors.confidence.waits import Waits
from streamrace.detectors.files import Following, read, rests_on
from streamrace.repro.sessions.verdict import Judging, judge
from streamrace.trace.files import TraceReader, file_of
from streamrace.trace.parts import PartReader, PartWriter, part_of
from streamrace.trace.records import End, Launch, Onward, TraceError, TraceRecord
from tests.detectors.story import Story
from tests.detectors.test_find_races import story_of, write
from tests.examples import examples

SMALL = 600  # bytes: some ten records


def writers(story: Story, folder: Path, keep: int = 1 << 30) -> list[PartWriter]:
    folder.mkdir(exist_ok=True)
    world = len(story.hosts)
    return [PartWriter(file_of(folder, rank), rank=rank, world=world, info={}, keep=keep) for rank in range(world)]


def batches(records: list[TraceRecord], sizes: list[int]) -> Iterator[list[TraceRecord]]:
    """So many at a time, over and over."""
    at = turn = 0
    while at < len(records):
        yield records[at : at + sizes[turn % len(sizes)]]
        at, turn = at + sizes[turn % len(sizes)], turn + 1


@examples(60)
@given(
    sizes=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=2, max_size=2),
    looks=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    keep=st.sampled_from([SMALL, 3 * SMALL, 1 << 30]),
)
def test_while_it_is_written(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[list[int]], looks: list[int], keep: int
) -> None:
    """The ranks write when they like, and it is looked at when there is time."""
    folder = tmp_path_factory.mktemp("run")
    story = story_of(2, steps=12)
    made = writers(story, folder, keep)
    detector = RaceDetector()
    following = Following(folder, [detector], thin=True)
    left = {host.rank: batches(host.trace[1:], sizes[host.rank]) for host in story.hosts}
    turn = 0
    while left:
        for rank in list(left):
            batch = next(left[rank], None)
            if batch is None:
                left.pop(rank)
                made[rank].close()
                continue
            made[rank].write(batch)
            for _ in range(looks[turn % len(looks)]):
                following.poll()
            turn += 1
    following.finish()
    assert detector.findings() == story.races() != []
    assert [path.name for path in sorted(folder.iterdir())] == ["rank0.trace", "rank1.trace"]
    if keep > SMALL * 10:
        assert following.thinned == {} and find_races(folder) == story.races()


def raced_late(steps: int = 60) -> Story:
    """In each step memory is used in order; in the last one it is not."""
    story = Story()
    compute, side = story.streams("compute", "side")
    block = story.block()
    for _ in range(steps):
        compute.writes(block, at=1)
        side.waits_for(compute)
        side.reads(block, at=2)
        compute.waits_for(side)
    compute.writes(block, at=3)
    side.reads(block, at=4)
    story.adds(End(0))
    return story


def thinned(story: Story, folder: Path, *, keep: int = SMALL) -> list[Race]:
    """Written in parts, of which all but the first are gone when they are judged."""
    detector = RaceDetector()
    following = Following(folder, [detector], thin=True)
    (writer,) = writers(story, folder, keep)
    for batch in batches(story.hosts[0].trace[1:], [7]):
        writer.write(batch)
        while following.poll():
            pass
        assert len(list(folder.iterdir())) <= 3  # the first part, what is read and what is written
    writer.close()
    following.finish()
    assert [path.name for path in folder.iterdir()] == ["rank0.trace"]
    assert file_of(folder, 0).stat().st_size < keep + 2000
    return detector.findings()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrace.trace.parts._PART", SMALL)


def test_what_is_thinned_out_was_judged(tmp_path: Path, parts: None) -> None:
    assert thinned(raced_late(), tmp_path) == raced_late().races() != []


def test_what_was_thinned_is_never_judged_again_as_if_it_were_whole(tmp_path: Path, parts: None) -> None:
    """The worst of all: its race lies in what is gone, so what is kept would be called clean."""
    thinned(raced_late(), tmp_path)
    file = file_of(tmp_path, 0)
    for reading in (lambda: find_races(tmp_path), lambda: list(TraceReader(file).read())):
        with pytest.raises(
            TraceError, match=r"rank0\.trace was thinned: it holds the first \d+ operations .*keep-trace 0"
        ):
            reading()
    kept = RaceDetector()
    read(tmp_path, [kept], kept=True)  # ... but by who says that a part will do
    assert kept.findings() == []


def test_a_verdict_on_thinned_traces_is_unknown(tmp_path: Path, parts: None) -> None:
    thinned(raced_late(), trace := tmp_path / "trace")
    found = judge(tmp_path, {}, failure=None, beside=tmp_path)
    assert found.verdict == "unknown" and "was thinned" in str(found.failure)
    assert trace.is_dir()


def test_what_is_kept_says_how_much_it_is(tmp_path: Path, parts: None) -> None:
    thinned(raced_late(), tmp_path)
    reader = PartReader(file_of(tmp_path, 0), kept=True)
    kept = [one for one in reader.read() if isinstance(one, Launch)]
    assert reader.first == Onward(1, len(kept), kept[-1].op) and reader.thinned
    assert 0 < len(kept) < 122


def test_parts_that_nobody_has_read_are_read_at_the_end(tmp_path: Path, parts: None) -> None:
    (writer,) = writers(story := raced_late(), tmp_path, SMALL)
    for batch in batches(story.hosts[0].trace[1:], [7]):
        writer.write(batch)
    writer.close()
    assert len(list(tmp_path.iterdir())) > 3
    assert find_races(tmp_path) == story.races()  # who does not say so removes nothing
    assert find_races(tmp_path) == story.races()


@pytest.mark.parametrize("part", [0, 2, -1, "../0", None])
def test_a_trace_that_goes_on_where_none_does(tmp_path: Path, part: object) -> None:
    """Made by anybody: itself again, or a file elsewhere."""
    write(story_of(1), tmp_path)
    file = file_of(tmp_path, 0)
    first = next(TraceReader(file).read())
    file.write_bytes(msgpack.packb((0, *first)) + msgpack.packb((26, part, 0, 0)))
    with pytest.raises(TraceError, match="is damaged"):
        find_races(tmp_path)


def test_a_rank_that_is_killed_while_it_writes(tmp_path: Path) -> None:
    """What was written until then is judged, though it breaks off in the midst of a record."""
    whole = story_of(steps=20)
    write(whole, tmp_path)
    path = file_of(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:1000])
    at_the_end = find_races(tmp_path)
    detector = RaceDetector()
    following = Following(tmp_path, [detector])
    while following.poll():
        pass
    following.finish()
    assert detector.findings() == at_the_end != whole.races()


def test_damage_is_told_at_the_end_and_nothing_is_read_behind_it(tmp_path: Path) -> None:
    write(story_of(), tmp_path)
    file_of(tmp_path, 1).write_bytes(b"\xc1 is no msgpack")
    following = Following(tmp_path, [RaceDetector()])
    assert not following.poll() and not following.poll()
    with pytest.raises(TraceError, match="damaged"):
        following.finish()


def test_the_first_race_is_told_when_it_is_there(tmp_path: Path) -> None:
    story = story_of(2, steps=3)
    told: list[Race] = []
    (tmp_path / "trace").mkdir()
    made = writers(story, tmp_path / "trace")
    judging = Judging(tmp_path, {"program": "it"}, dry=False, on_race=told.append)
    for _ in range(3):
        judging.poll()
    assert told == []
    for host in story.hosts:
        made[host.rank].write(host.trace[1:-4])
    judging.poll()
    judging.poll()
    first = told[0]
    for host in story.hosts:
        made[host.rank].write([*host.trace[-4:], End(0)])
    found = judging.conclude(failure=None, beside=tmp_path)
    assert len(told) == 1 and [race.first for race in found.races] == [first.first]
    assert found == judge(tmp_path, {"program": "it"}, failure=None, beside=tmp_path)


def test_what_a_run_rests_on_is_the_same_by_what_was_judged_meanwhile(tmp_path: Path) -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights, loss = story.block(), story.block()
    for _ in range(20):
        compute.writes(weights, at=10)
        story.looks_at(loss, compute, at=20)
        side.reads(weights, at=30)
        compute.waits_for(side)
    write(story, tmp_path)
    waits = Waits()
    bare = WithoutIncidentalWaits(waits)
    read(tmp_path, [waits, bare])
    held = rests_on(tmp_path, waits, bare)
    assert held == rests_on(tmp_path, waits) and [race.occurrences for race in held.held[0].races] == [20]


def steps(count: int) -> Iterator[list[TraceRecord]]:
    """A training of so many steps, a step at a time: a copy beside it, memory that comes and goes, a loss that is read,
    ``record_stream``, and now and then a synchronisation. Nothing of it is kept here.
    """
    story = Story()
    compute, side = story.streams("compute", "side")
    weights = story.block(on=compute)
    host = story.hosts[0]
    yield host.trace[1:]
    for step in range(count):
        del host.trace[:]
        batch, loss = story.block(on=side), story.block(on=compute)
        side.writes(batch, at=1)
        compute.waits_for(side, at=2)
        story.record_stream(batch, compute)
        for line in range(3, 9):
            compute.reads(batch, at=line)
            compute.writes(weights, at=line)
        story.looks_at(loss, compute, at=20)
        side.waits_for(compute, at=21)
        story.frees(batch)
        story.frees(loss)
        if step % 10 == 0:
            for stream in (compute, side):
                story.synchronizes(stream, at=22)
        yield list(host.trace)


def memory(folder: Path, count: int) -> tuple[int, int]:
    """Bytes of Python's objects while so many steps are judged as they come: at most, and behind the last step."""
    (folder / "trace").mkdir(parents=True)
    (writer,) = writers(Story(), folder / "trace", 1 << 16)
    judging = Judging(folder, {"program": "it"}, dry=False)
    tracemalloc.start()
    try:
        for batch in steps(count):
            writer.write(batch)
            while judging.poll():
                pass
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
        writer.write([End(0)])
        writer.close()
        assert judging.conclude(failure=None, beside=folder).verdict == "clean"
        return tracemalloc.get_traced_memory()[1], kept
    finally:
        tracemalloc.stop()


def test_memory_is_bounded_by_what_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as long a run needs no more, but for eight bytes of each wait."""
    monkeypatch.setattr("streamrace.trace.parts._PART", 1 << 16)
    (few, kept), (many, kept_of_many) = memory(tmp_path / "few", 130), memory(tmp_path / "many", 1300)
    assert many < 1.1 * few
    assert kept_of_many - kept < 1170 * 64  # 16 of the waits; a number by block would be 200
    left = sum(path.stat().st_size for path in (tmp_path / "many" / "trace").iterdir())
    assert left < (1 << 16) + 4000


def test_a_part_has_its_name_beside_the_first() -> None:
    path = file_of(Path("trace"), 3)
    assert [part_of(path, part).name for part in (0, 1)] == ["rank3.trace", "rank3.trace.1"]
