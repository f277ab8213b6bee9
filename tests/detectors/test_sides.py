"""What is told of a race's two sides: stream, issuer, place and kernel, also where the trace leaves something out."""

from __future__ import annotations

import pytest

from streamrace.detectors import RaceDetector
from streamrace.detectors.order.races import describe
from streamrace.trace.records import Access, Alloc, Collective, Free, Group, Launch, StreamName
from tests.detectors.story import Story


def test_a_stream_that_has_no_name_is_told_by_its_number() -> None:
    detector = RaceDetector()
    launches = [
        Launch(op, stream, "aten::copy_", (), (Access(1, 0, 8),), -1, op, op, op) for op, stream in ((1, 0), (2, 7))
    ]
    detector.feed(0, [Alloc(1, 8, 0, 0), *launches])
    detector.finish()
    (race,) = detector.races
    assert (race.first.stream, race.second.stream) == ("stream 0", "stream 7")
    assert (race.first.stack, race.second.stack) == ((), ())
    assert race.missing_wait == "stream 7 never waits for stream 0 after copy_"


@pytest.mark.parametrize("issuer", [0, 1])
def test_a_collective_is_told_with_the_stream_that_issued_it(issuer: int) -> None:
    detector = RaceDetector()
    names = [StreamName(number, name) for number, name in enumerate(("compute", "side", "nccl"))]
    write = Launch(1, issuer, "aten::copy_", (), (Access(1, 0, 8),), -1, 1, 1, 2)
    gather = Collective(2, 2, "nccl::all_gather", (Access(1, 0, 8),), (), -1, 3, 3, 4, 5, 0, -1, issuer)
    detector.feed(0, [*names, Group(5, (0,)), Alloc(1, 8, issuer, 0), write, gather])
    detector.finish()
    (race,) = detector.races
    assert (race.first.issuer, race.second.issuer) == ("", ("compute", "side")[issuer])
    assert race.missing_wait.endswith("stream 'nccl' takes its order from it")


def test_the_kind_and_the_sides_come_first_in_a_file() -> None:
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    gather.reads(a)
    (race,) = story.races()
    assert list(race.as_dict())[:4] == ["kind", "first", "second", "missing_wait"]


def test_a_kernel_is_told_without_the_names_it_lies_in() -> None:
    assert describe("at::native::copy_kernel", ()) == "copy_kernel"


def test_a_block_that_was_never_seen_is_freed_without_a_word() -> None:
    story = Story()
    story.adds(Free(99, 0))
    story.adds(Free(98, 0, quiet=True))
    story.assert_clean()
