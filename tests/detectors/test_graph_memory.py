"""Memory of CUDA graphs that another tensor has, on records alone; against a model with each byte's last writer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamrace.detectors.values.graph_memory import GraphMemoryUse
from streamrace.trace.graph_records import Dangling, GraphPart, KeptOutput, PoolPart, Replay
from streamrace.trace.records import Access, Alloc, Frame, Launch, Stack, TraceRecord
from tests.examples import examples

POOL, SIZE = 1, 48
PARTS = (PoolPart(1, POOL, 0, 32, 11), PoolPart(2, POOL, 16, 48, 12), PoolPart(3, POOL, 0, 16, 13))
"""Allocations of one capture, in their order: each has memory of those before it."""


def stacks() -> list[Stack]:
    own = [Stack(10 + number, (Frame("train.py", number, "allocated"),)) for number in (1, 2, 3)]
    return [*own, Stack(20, (Frame("train.py", 20, "read"),)), Stack(30, (Frame("train.py", 30, "replay"),))]


def told(*records: TraceRecord) -> list[tuple[str, int, int]]:
    """Of each finding: its kind, the line that allocated the tensor that was meant, and the bytes."""
    detector = GraphMemoryUse()
    detector.feed(0, [*stacks(), *records])
    return [
        (found.kind, found.allocated[0].line if found.allocated else 0, found.nbytes) for found in detector.findings()
    ]


def capture(*launches: tuple[int, bool, int, int]) -> tuple[list[GraphPart], list[Launch]]:
    """A graph with these launches: the part, whether it is written, and the bytes."""
    parts = [GraphPart(1, number, part) for number, (part, *_) in enumerate(launches)]
    accesses = [
        ((), (Access(POOL, lo, hi),)) if write else ((Access(POOL, lo, hi),), ()) for _, write, lo, hi in launches
    ]
    return parts, [Launch(0, 0, "aten::mul", reads, writes, 20, 0, 0, 0) for reads, writes in accesses]


def replay(launches: list[Launch], op: int) -> list[TraceRecord]:
    return [Replay(1, op, len(launches), 30), *(one._replace(op=op + at) for at, one in enumerate(launches))]


INSIDE = st.sampled_from(PARTS).flatmap(
    lambda part: st.tuples(
        st.just(part.part), st.booleans(), st.integers(part.lo, part.hi - 1), st.integers(1, part.hi - part.lo)
    ).map(lambda drawn: (drawn[0], drawn[1], drawn[2], min(drawn[2] + drawn[3], part.hi)))
)


@examples(200)
@given(st.lists(INSIDE, min_size=1, max_size=12))
def test_a_read_is_told_if_another_allocation_wrote_bytes_that_its_own_had_written(
    launches: list[tuple[int, bool, int, int]],
) -> None:
    parts, works = capture(*launches)
    lost: dict[int, int] = {}  # by allocation: the bytes of the first read that is told
    last: dict[int, int] = {}
    wrote: set[tuple[int, int]] = set()
    for part, write, lo, hi in launches * 2:  # replayed twice
        for byte in range(lo, hi) if write else ():
            last[byte] = part
            wrote.add((part, byte))
        gone = [byte for byte in range(lo, hi) if not write and last.get(byte, part) != part and (part, byte) in wrote]
        if gone and part not in lost:
            lost[part] = len(gone)
    records = [Alloc(POOL, SIZE, 0, 0, stack=11), *PARTS, *parts, *replay(works, 1), *replay(works, 100)]
    found = {line: nbytes for kind, line, nbytes in told(*records) if kind == "overwritten"}
    assert found == lost


def test_the_eager_reader_has_the_allocation_that_is_there_now() -> None:
    parts, works = capture((1, True, 0, 32))
    eager = Launch(50, 0, "aten::sum", (Access(POOL, 16, 48),), (), 20, 0, 0, 0)
    own = eager._replace(op=40, reads=(), writes=(Access(POOL, 16, 48),))
    memory = [Alloc(POOL, SIZE, 0, 0, stack=11), *PARTS[:2], *parts]
    assert told(*memory, *replay(works, 1), own, eager) == []
    assert told(*memory, own, *replay(works, 41), eager) == [("overwritten", 2, 16)]
    assert told(*memory, *replay(works, 41), eager) == []  # nothing wrote it before: uninitialised, another finding


def test_a_dangling_access_is_told_with_both_owners() -> None:
    owners = [Alloc(5, 64, 0, 0, stack=11), Alloc(6, 64, 0, 0, stack=12)]
    dangling = Dangling(7, "aten::add", 20, 5, 0, 16, 6, writes=False)
    detector = GraphMemoryUse()
    detector.feed(0, [*stacks(), *owners, dangling, dangling._replace(op=9), dangling._replace(writes=True, owner=-1)])
    read, written = detector.findings()
    assert (read.kind, read.access, read.count, read.other_stack[0].line) == ("freed", "read", 2, 2)
    assert read.sentence() == (
        "add (train.py:20 read) reads 16 bytes 2 times of the tensor allocated at train.py:1 allocated, which was "
        "freed after the capture. The memory is now that of the tensor allocated at train.py:2 allocated. Keep the "
        "tensor as long as the graph"
    )
    assert "freed after the capture. Nothing has it now. Keep" in written.sentence()
    later = dangling._replace(op=11, writes=True)
    detector.feed(0, [later])  # somebody else has it by then
    assert "The memory is now that of the tensor allocated at train.py:2" in detector.findings()[1].sentence()


def test_a_kept_result_is_told_where_it_is_read_after_the_replays() -> None:
    parts, works = capture((1, True, 0, 32))
    eager = Launch(50, 0, "aten::sum", (Access(POOL, 0, 32),), (), 20, 0, 0, 0)
    memory = [Alloc(POOL, SIZE, 0, 0, stack=11), PARTS[0], *parts]
    assert told(*memory, *replay(works, 1), eager, *replay(works, 60)) == []
    assert told(*memory, *replay(works, 1), KeptOutput(1), *replay(works, 10), eager) == [("kept", 1, 32)]
    assert told(*memory, *replay(works, 1), KeptOutput(1), *replay(works, 10)) == []  # nobody reads it


def test_ranks_are_apart_and_each_is_named() -> None:
    dangling = [Alloc(5, 64, 0, 0, stack=11), Dangling(7, "aten::add", 20, 5, 0, 16, -1, writes=False)]
    detector = GraphMemoryUse()
    for rank in (1, 0):
        detector.feed(rank, [*stacks(), *dangling])
    (found,) = detector.findings()
    assert (found.ranks, found.count) == ((0, 1), 2)
