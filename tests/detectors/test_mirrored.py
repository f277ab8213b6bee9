"""A trace of one rank that stands for all: its races are those that the traces of all ranks show on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.detectors import Race, RaceDetector, find_races
from streamrace.trace.files import TraceWriter, file_of
from streamrace.trace.records import Begin, TraceError, TraceRecord
from tests.detectors.story import Story, StoryHost, StoryStream
from tests.detectors.test_oracle import OPERATION, QUICK, SIZE, Graph, Oracle, parts, tell, view_of

Program = Callable[[StoryHost, dict[str, int]], None]
RANKS = 4


def symmetric(program: Program) -> Story:
    """Four ranks on two nodes do the same; what each calls its node is another group on the other node."""
    story = Story(ranks=RANKS)
    ids = {ranks: story.group(at, *ranks) for at, ranks in enumerate([(0, 1, 2, 3), (0, 1), (2, 3), (0, 2), (1, 3)])}
    for host in story.hosts:
        node, local = divmod(host.rank, 2)
        program(
            host,
            {"all": ids[0, 1, 2, 3], "node": ids[2 * node, 2 * node + 1], "across": ids[local, local + 2]},
        )
    return story


def mirrored(story: Story, rank: int = 0) -> list[TraceRecord]:
    """The rank's trace, as if no other had been run."""
    trace = list(story.hosts[rank].trace)
    assert isinstance(trace[0], Begin)
    trace[0] = trace[0]._replace(info={"mirrored": True})
    return trace


def races_alone(story: Story, rank: int = 0) -> list[Race]:
    detector = RaceDetector()
    detector.feed(rank, mirrored(story, rank))
    assert not detector.waits(rank)
    detector.finish()
    return detector.races


def of_rank_0(story: Story) -> list[Race]:
    """The races in the traces of all ranks, without what other ranks add."""
    found = []
    for race in story.races():
        assert race.ranks == tuple(range(RANKS))  # they did the same
        examples = tuple(example for example in race.examples if example.rank == 0)
        counts = {"occurrences": race.occurrences // RANKS, "manifested": race.manifested // RANKS}
        found.append(replace(race, ranks=(0,), examples=examples, **counts))
    return found


def gathers_too_early(host: StoryHost, groups: dict[str, int]) -> None:
    compute, gather, nccl = host.streams("compute", "gather", "nccl")
    a, whole = host.block(), host.block()
    compute.writes(a)
    nccl.waits_for(gather)
    nccl.collective(groups["node"], reads=a, writes=whole)
    compute.waits_for(nccl)
    compute.reads(whole)


def gathers_in_order(host: StoryHost, groups: dict[str, int]) -> None:
    """What orders the second stream here comes back from the others only behind what this rank knows."""
    compute, one, two = host.streams("compute", "nccl node", "nccl across")
    a, b = host.block(), host.block()
    compute.writes(a)
    one.waits_for(compute)
    one.collective(groups["node"], reads=a)
    two.waits_for(one)
    two.collective(groups["across"], reads=a, writes=b)
    compute.waits_for(two)
    compute.writes(a)


def test_a_symmetric_race_is_found_without_the_peers() -> None:
    story = symmetric(gathers_too_early)
    assert [race.kind for race in races_alone(story)] == ["write-read"]
    assert races_alone(story) == of_rank_0(story)


def test_what_is_ordered_stays_ordered_without_the_peers() -> None:
    story = symmetric(gathers_in_order)
    assert races_alone(story) == of_rank_0(story) == []


def test_any_rank_may_stand_for_all() -> None:
    story = symmetric(gathers_too_early)
    (race,) = races_alone(story, 3)
    assert race.ranks == (3,)


def test_a_trace_that_is_not_mirrored_waits_for_its_peers() -> None:
    detector = RaceDetector()
    detector.feed(0, symmetric(gathers_too_early).hosts[0].trace)
    assert detector.waits(0)


def test_a_send_waits_for_no_peer_either() -> None:
    def sends(host: StoryHost, groups: dict[str, int]) -> None:
        compute, nccl = host.streams("compute", "nccl")
        a = host.block()
        compute.writes(a)
        nccl.collective(groups["all"], reads=a, kernel="nccl::send", root=0)

    assert [race.kind for race in races_alone(symmetric(sends))] == ["write-read"]


def test_a_mirrored_rank_is_still_one_of_its_groups() -> None:
    story = Story(ranks=2)
    (stream,) = story.streams("nccl")
    stream.collective(7)
    with pytest.raises(TraceError, match="group 7 has ranks None"):
        RaceDetector().feed(0, mirrored(story))


# -- files ----------------------------------------------------------------------------------------


def write(story: Story, folder: Path, *ranks: int) -> Path:
    for rank in ranks:
        writer = TraceWriter(file_of(folder, rank), rank=rank, world=RANKS, info={"mirrored": True})
        writer.write(story.hosts[rank].trace[1:])
        writer.close()
    return folder


@pytest.mark.parametrize("rank", [0, 2])
def test_one_file_stands_for_the_run(tmp_path: Path, rank: int) -> None:
    story = symmetric(gathers_too_early)
    assert find_races(write(story, tmp_path, rank)) == races_alone(story, rank)


def test_a_file_beside_one_that_stands_for_all(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is of a dry run, whose other ranks have no traces, but there are others"):
        find_races(write(symmetric(gathers_too_early), tmp_path, 0, 1))


# -- any program ----------------------------------------------------------------------------------

COLLECTIVE = st.tuples(
    st.just("collective"),
    st.sampled_from(["all", "node", "across"]),
    st.sampled_from([("nccl::all_gather", False), ("nccl::broadcast", True), ("nccl::reduce", True)]),
    st.integers(0, 2),
    st.lists(parts(), max_size=1),
    st.lists(parts(), max_size=1),
)


@QUICK
@given(program=st.lists(st.one_of(COLLECTIVE, OPERATION), min_size=4, max_size=10))
def test_any_symmetric_program(program: list[Any]) -> None:
    def run(host: StoryHost, groups: dict[str, int]) -> None:
        streams: list[StoryStream] = host.streams("a", "b", "c")
        blocks = [host.block(SIZE), host.block(SIZE)]
        oracle = Oracle(Graph())  # keeps the markers
        for operation in program:
            if operation[0] != "collective":
                tell(host, streams, blocks, oracle, operation)
                continue
            _, group, (kernel, rooted), number, reads, writes = operation
            root = {"all": 0, "node": host.rank // 2 * 2, "across": host.rank % 2}[group] if rooted else -1
            seen, written = ([view_of(blocks, part) for part in each] for each in (reads, writes))
            streams[number].collective(groups[group], reads=seen, writes=written, kernel=kernel, root=root)

    story = symmetric(run)
    assert races_alone(story) == of_rank_0(story)
