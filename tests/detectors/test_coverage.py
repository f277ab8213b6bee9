"""Uncovered: bytes of a secondary partition that are read, and that nothing ever wrote."""

from __future__ import annotations

import pytest

from streamrace.detectors import Coverage
from streamrace.trace.records import Access, Alloc, Frame, Free, Label, Launch, Stack, TraceRecord

SECONDARY = Label(1, 0, 100, "secondary", "w")


def launch(*, reads: tuple[tuple[int, int], ...] = (), writes: tuple[tuple[int, int], ...] = ()) -> Launch:
    """A kernel on block 1, from the one place there is."""
    accesses = [tuple(Access(1, lo, hi) for lo, hi in ranges) for ranges in (reads, writes)]
    return Launch(1, 0, "aten::cat", accesses[0], accesses[1], 0, 0, 0, 0)


def uncovered(*records: TraceRecord) -> list[int]:
    """How many bytes were found, by place."""
    coverage = Coverage()
    start: list[TraceRecord] = [Stack(0, (Frame("partition.py", 7, "gather"),)), Alloc(1, 100, 0, 0)]
    coverage.feed(0, [*start, *records])
    return [found.nbytes for found in coverage.findings()]


def test_padding_that_nothing_wrote() -> None:
    assert uncovered(launch(writes=((0, 90),)), launch(reads=((0, 100),)), SECONDARY) == [10]


def test_zeroed_first_is_covered() -> None:
    assert uncovered(launch(writes=((0, 100),)), launch(writes=((0, 90),)), launch(reads=((0, 100),)), SECONDARY) == []


@pytest.mark.parametrize("order", [((0, 50), (50, 100)), ((50, 100), (0, 50)), ((0, 30), (70, 100), (20, 80))])
def test_several_writes_cover_together(order: tuple[tuple[int, int], ...]) -> None:
    writes = [launch(writes=(one,)) for one in order]
    assert uncovered(*writes, launch(reads=((0, 100),)), SECONDARY) == []


def test_what_is_not_read_does_not_matter() -> None:
    assert uncovered(launch(writes=((0, 90),)), launch(reads=((0, 90),)), SECONDARY) == []


def test_only_secondary_partitions_count() -> None:
    assert uncovered(launch(reads=((0, 100),)), SECONDARY._replace(kind="primary")) == []


def test_a_block_that_was_freed_is_told_all_the_same() -> None:
    assert uncovered(launch(writes=((0, 60),)), launch(reads=((0, 100),)), SECONDARY, Free(1, 0)) == [40]


def test_the_sentence_names_place_and_parameter() -> None:
    coverage = Coverage()
    coverage.feed(0, [Stack(0, (Frame("partition.py", 7, "gather"),)), Alloc(1, 100, 0, 0)])
    coverage.feed(0, [launch(writes=((0, 90),)), launch(reads=((0, 100),)), SECONDARY])
    (found,) = coverage.findings()
    assert found.sentence() == (
        "aten::cat (gather, 1 times) reads up to 10 bytes of the secondary partition of w that nothing wrote"
    )
