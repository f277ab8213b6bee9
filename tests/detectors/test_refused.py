"""Traces that make no sense: each of the two engines refuses them, in the same words."""

from __future__ import annotations

import pytest

from streamrace.detectors import RaceDetector
from streamrace.detectors.engines import Engine
from streamrace.trace.records import Access, Alloc, Collective, Group, Label, Launch, Record, TraceError, Wait, begin

pytestmark = pytest.mark.parametrize("engine", ["python", "native"])


@pytest.mark.parametrize(
    ("rank", "group", "root"),
    [
        (0, (1, 2), -1),  # a collective of others
        (0, (1, 2), 0),
        (0, (0, 1), 2),
        (0, (1, 0), 3),
        (1, (1, 2), 0),
    ],
)
def test_a_collective_that_its_group_does_not_fit(engine: Engine, rank: int, group: tuple[int, ...], root: int) -> None:
    detector = RaceDetector(engine=engine)
    collective = Collective(1, 0, "nccl::broadcast", (Access(1, 0, 8),), (), -1, 1, 1, 2, 5, 0, root)
    said = (
        rf"^rank {rank}, op 1 \(nccl::broadcast\): group 5 has ranks \({group[0]}, {group[1]}\), "
        rf"which do not fit rank {rank} and root {root}$"
    )
    with pytest.raises(TraceError, match=said):
        detector.feed(rank, [Group(5, group), collective])


def test_a_collective_of_a_group_that_nobody_has_told_of(engine: Engine) -> None:
    detector = RaceDetector(engine=engine)
    with pytest.raises(TraceError, match="group 5 has ranks None, which do not fit rank 0 and root -1$"):
        detector.feed(0, [Collective(1, 0, "nccl::all_gather", (), (), -1, 1, 1, 2, 5, 0, -1)])


def test_two_ranks_that_differ_on_a_group(engine: Engine) -> None:
    detector = RaceDetector(engine=engine)
    detector.feed(0, [Group(5, (0, 1))])
    with pytest.raises(TraceError, match=r"^group 5 has ranks \(0, 1\) in one trace and \(0, 2\) in another$"):
        detector.feed(1, [Group(5, (0, 2))])


def test_a_trace_of_another_rank(engine: Engine) -> None:
    with pytest.raises(TraceError, match="^the trace given for rank 0 is that of rank 1$"):
        RaceDetector(engine=engine).feed(0, [begin(1, 2)])


def test_a_marker_that_no_record_has_made(engine: Engine) -> None:
    detector = RaceDetector(engine=engine)
    detector.feed(3, [Record(1, 0)])
    with pytest.raises(TraceError, match="^rank 3 waits for marker 2, which no record has made$"):
        detector.feed(3, [Wait(1, 2, 0)])


def test_a_marker_where_there_is_none_yet(engine: Engine) -> None:
    with pytest.raises(TraceError, match="^rank 0 waits for marker 0, which no record has made$"):
        RaceDetector(engine=engine).feed(0, [Wait(1, 0, 0)])


@pytest.mark.parametrize("layout", [(-4, (2,), (8,)), (4, (-2,), (8,)), (4, (2,), (-8,))])
def test_a_layout_with_a_negative_number(engine: Engine, layout: tuple[int, tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="^a layout has a negative size or stride$"):
        strided(engine, layout)


def test_a_layout_with_a_size_too_many(engine: Engine) -> None:
    with pytest.raises(ValueError, match=r"zip\(\) argument|as many sizes as strides"):
        strided(engine, (4, (2, 2), (8,)))


def strided(engine: Engine, layout: tuple[int, tuple[int, ...], tuple[int, ...]]) -> None:
    """Another stream has touched the same bytes, so that the two are compared."""
    accesses = [Access(1, 0, 64), Access(1, 0, 64, layout)]
    launches = [Launch(op, op, "k", (), (access,), -1, 0, 0, 1) for op, access in enumerate(accesses)]
    RaceDetector(engine=engine).feed(0, launches)


BEYOND = 1 << 63
no_place = pytest.raises((OverflowError, ValueError))  # in Python's words, and in those of the native engine


def test_bytes_that_no_memory_has(engine: Engine) -> None:
    """What lies beyond 64 bits cannot be compared exactly, so it is not compared at all."""
    accesses = [Access(1, 0, 2 * BEYOND, (4, (2,), (1 << 62,))), Access(1, BEYOND, BEYOND + 8)]
    launches = [Launch(op, op, "k", (), (access,), -1, 0, 0, 1) for op, access in enumerate(accesses)]
    with no_place:
        RaceDetector(engine=engine).feed(0, launches)


def test_names_of_bytes_that_no_memory_has(engine: Engine) -> None:
    detector = RaceDetector(engine=engine)
    launches = [Launch(op, op, "k", (), (Access(1, 0, 8),), -1, 0, 0, 1) for op in range(2)]
    with no_place:
        detector.feed(0, [Label(1, BEYOND, BEYOND + 8, "parameter", "weight"), *launches])
        detector.findings()


def test_nothing_is_fed_to_a_detector_that_has_finished(engine: Engine) -> None:
    detector = RaceDetector(engine=engine)
    detector.feed(0, [])
    detector.finish()
    detector.finish()
    with pytest.raises(ValueError, match="^the traces are finished; use a new detector$"):
        detector.feed(0, [Alloc(1, 8, 0, 0)])
