"""Races from the files of a run, and what is said of files that are none."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from streamrace.detectors import find_races
from streamrace.trace.files import TraceWriter, file_of
from streamrace.trace.records import Launch, TraceError
from tests.detectors.story import Story


def story_of(ranks: int = 2, *, steps: int = 1) -> Story:
    story = Story(ranks=ranks)
    group = story.group(0, *range(ranks))
    for host in story.hosts:
        compute, nccl = host.streams("compute", "nccl")
        for _ in range(steps):
            a = host.block(on=compute)
            compute.writes(a, at=1)
            nccl.collective(group, reads=a, at=2)
            compute.waits_for(nccl)
            host.frees(a)
    return story


def write(story: Story, folder: Path) -> Path:
    for host in story.hosts:
        writer = TraceWriter(file_of(folder, host.rank), rank=host.rank, world=len(story.hosts), info={})
        writer.write(host.trace[1:])
        writer.close()
    return folder


@pytest.mark.parametrize("steps", [1, 1500])
def test_the_races_of_a_run(tmp_path: Path, steps: int) -> None:
    story = story_of(3, steps=steps)
    races = find_races(write(story, tmp_path))
    assert races == story.races()
    assert [(race.kind, race.ranks, race.occurrences) for race in races] == [("write-read", (0, 1, 2), 3 * steps)]


def test_a_rank_that_was_killed(tmp_path: Path) -> None:
    write(story_of(steps=20), tmp_path)
    path = file_of(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:1000])  # ends within a record
    (race,) = find_races(tmp_path)
    assert race.ranks == (0, 1)
    assert 20 < race.occurrences < 40


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace folder .*absent"):
        find_races(tmp_path / "absent")


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "rank_notes.trace").write_text("not one of ours")
    with pytest.raises(TraceError, match=r"no rank\*\.trace in"):
        find_races(tmp_path)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_missing_rank(tmp_path: Path, rank: int) -> None:
    write(story_of(3), tmp_path)
    file_of(tmp_path, rank).unlink()
    with pytest.raises(TraceError, match=f"has no trace of rank {rank}"):
        find_races(tmp_path)


def test_a_rank_too_many(tmp_path: Path) -> None:
    write(story_of(2), tmp_path)
    file_of(tmp_path, 2).write_bytes(file_of(tmp_path, 1).read_bytes())
    with pytest.raises(TraceError, match="2 ranks, but there are 3"):
        find_races(tmp_path)


def test_a_file_of_another_rank(tmp_path: Path) -> None:
    write(story_of(2), tmp_path)
    file_of(tmp_path, 0).write_bytes(file_of(tmp_path, 1).read_bytes())
    with pytest.raises(TraceError, match="rank 0 is that of rank 1"):
        find_races(tmp_path)


def test_an_empty_file(tmp_path: Path) -> None:
    write(story_of(2), tmp_path)
    file_of(tmp_path, 1).write_bytes(b"")
    with pytest.raises(TraceError, match=r"rank1\.trace is empty"):
        find_races(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"#!/bin/sh\necho hello\n", msgpack.packb({"a": 1}), msgpack.packb([0, "other-format", 1, 0, 1, {}])],
)
def test_a_foreign_file(tmp_path: Path, content: bytes) -> None:
    file_of(tmp_path, 0).write_bytes(content)
    with pytest.raises(TraceError, match="not a trace of this project"):
        find_races(tmp_path)


def test_a_trace_of_the_version_before_is_read(tmp_path: Path) -> None:
    story = Story()
    write(story, tmp_path)
    content = [[*record] for record in ([0, "stream-race-trace", 2, 0, 1, {}], [5, 1, 64, 0, 0], [6, 1, 0, False])]
    file_of(tmp_path, 0).write_bytes(b"".join(msgpack.packb(record) for record in content))
    assert find_races(tmp_path) == []


def test_another_version(tmp_path: Path) -> None:
    file_of(tmp_path, 0).write_bytes(msgpack.packb([0, "stream-race-trace", 99, 0, 1, {}]))
    with pytest.raises(TraceError, match="format version 99"):
        find_races(tmp_path)


@pytest.mark.parametrize("damage", [b"\xc1", msgpack.packb([9, 1, 2]), msgpack.packb([99]), b"zzz"])
def test_a_damaged_file(tmp_path: Path, damage: bytes) -> None:
    write(story_of(2), tmp_path)
    with file_of(tmp_path, 1).open("ab") as file:
        file.write(damage)
    with pytest.raises(TraceError, match=r"rank1\.trace"):
        find_races(tmp_path)


def test_a_record_with_fields_of_the_wrong_type(tmp_path: Path) -> None:
    write(story_of(2), tmp_path)
    launch = Launch(9, 0, "k", (), "not accesses", 0, 0, 0, 0)  # type: ignore[arg-type]
    with file_of(tmp_path, 1).open("ab") as file:
        file.write(msgpack.packb([9, *launch]))
    with pytest.raises(TraceError, match=r"rank1\.trace is damaged"):
        find_races(tmp_path)
