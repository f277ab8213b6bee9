"""What is told of a race's two sides: stream, issuer, place and kernel, also where the trace leaves something out."""

from __future__ import annotations

import pytest

from detectors import RaceDetector
from detectors.order.races import describe
from simgpu.trace import Access, Alloc, Collective, Free, Group, Launch, StreamName, TraceError
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
    assert race.missing_wait == "stream 'stream 7' never waits for stream 'stream 0' after copy_"


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


def test_nothing_is_fed_to_a_detector_that_has_finished() -> None:
    detector = RaceDetector()
    detector.feed(0, [])
    detector.finish()
    detector.finish()
    with pytest.raises(ValueError, match="use a new detector"):
        detector.feed(0, [Alloc(1, 8, 0, 0)])


@pytest.mark.parametrize(
    ("group", "root", "said"),
    [
        ((1, 2), -1, "do not fit rank 0 and root -1"),  # a collective of others
        ((0, 1), 2, "do not fit rank 0 and root 2"),
        ((1, 0), 3, "do not fit rank 0 and root 3"),
        ((1, 2), 0, "do not fit rank 0 and root 0"),
    ],
)
def test_a_collective_that_its_group_does_not_fit_is_refused(group: tuple[int, ...], root: int, said: str) -> None:
    detector = RaceDetector()
    collective = Collective(1, 0, "nccl::broadcast", (Access(1, 0, 8),), (), -1, 1, 1, 2, 5, 0, root)
    with pytest.raises(
        TraceError, match=rf"rank 0, op 1 \(nccl::broadcast\): group 5 has ranks \({group[0]}, .*{said}"
    ):
        detector.feed(0, [Group(5, group), collective])


def test_two_ranks_that_differ_on_a_group_are_refused_with_what_each_says() -> None:
    detector = RaceDetector()
    detector.feed(0, [Group(5, (0, 1))])
    with pytest.raises(TraceError, match=r"group 5 has ranks \(0, 1\) in one trace and \(0, 2\) in another"):
        detector.feed(1, [Group(5, (0, 2))])
