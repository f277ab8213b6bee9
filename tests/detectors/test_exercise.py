"""What was there and never happened."""

from __future__ import annotations

from streamrace.detectors.confidence.exercise import IdleStreams, LoneGroups
from streamrace.trace.records import HOST_STREAM, StreamName
from tests.detectors.story import Story


def unexercised(story: Story) -> list[str]:
    found: list[str] = []
    for detector in (IdleStreams(), LoneGroups()):
        for host in story.hosts:
            detector.feed(host.rank, host.trace)
        found += detector.findings()
    return found


def test_where_all_that_is_there_works_nothing_is_told() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    compute.writes(story.block())
    side.writes(story.block())
    assert unexercised(story) == []


def test_one_stream_alone_cannot_race() -> None:
    story = Story()
    compute, host = story.streams("compute", HOST_STREAM)
    compute.writes(story.block())
    assert unexercised(story) == ["all work ran on one stream, whose order nothing can break"]
    host.reads(story.block())  # pinned memory
    assert unexercised(story) == []


def test_a_stream_without_work_is_named() -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    story.adds(StreamName(2, "stream 2, made at train.py:3 <module>,"))
    for stream in (compute, side):
        stream.writes(story.block())
    assert unexercised(story) == ["stream 2, made at train.py:3 <module>, was given no work"]


def test_it_is_said_on_which_ranks() -> None:
    story = Story(ranks=2)
    for host in story.hosts:
        compute, side, idle = host.streams("compute", "side", "idle")
        compute.writes(host.block())
        (side if host.rank else idle).writes(host.block())
    assert unexercised(story) == ["idle was given no work on rank 1", "side was given no work on rank 0"]


def test_a_collective_of_one_rank_meets_nobody() -> None:
    story = Story()
    compute, nccl = story.streams("compute", "nccl")
    group = story.group(0, 0)
    compute.writes(story.block())
    nccl.collective(group)
    assert unexercised(story) == ["1 collective ran in process groups of one rank, where no other rank is waited for"]
