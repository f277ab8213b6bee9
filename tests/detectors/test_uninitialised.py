"""The shadow of memory that nothing has written, against a model with a flag for each byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamrace.detectors.values.uninitialised import MOST, Shadow, UnwrittenReads, runs
from streamrace.trace.records import Access, Alloc, Frame, Free, Launch, Stack, TraceRecord
from tests.examples import examples

SIZE = 64
RANGES = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda ends: (min(ends), max(ends)))


def launch(
    kernel: str = "aten::add", reads: tuple[Access, ...] = (), writes: tuple[Access, ...] = (), op: int = 1
) -> Launch:
    return Launch(op, 0, kernel, reads, writes, 1, 0, 0, 0)


def found(*records: TraceRecord) -> list[tuple[str, tuple[tuple[int, int], ...], int]]:
    """Of each place that allocates: by what it is read first, which bytes, and how many blocks."""
    detector = UnwrittenReads()
    stacks = [Stack(0, (Frame("train.py", 3, "made"),)), Stack(1, (Frame("train.py", 7, "used"),))]
    detector.feed(0, [*stacks, *records])
    return [(one.kernel, one.ranges, one.count) for one in detector.findings()]


def alloc(block: int = 1) -> Alloc:
    return Alloc(block, SIZE, 0, 0, stack=0)


def apart(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, each from where the one before ends."""
    made: list[tuple[int, int]] = []
    for lo, hi in sorted(ranges):
        lo = max(lo, made[-1][1] if made else 0)
        made.append((lo, max(lo, hi)))
    return made


@examples(200)
@given(st.lists(st.lists(RANGES, min_size=1, max_size=4).map(apart), max_size=10), RANGES)
def test_the_shadow_holds_exactly_the_bytes_that_no_write_had(
    writes: list[list[tuple[int, int]]], asked: tuple[int, int]
) -> None:
    shadow, model = Shadow(SIZE), set(range(SIZE))
    for written in writes:
        its = {byte for lo, hi in written for byte in range(lo, hi)}
        assert {byte for lo, hi in shadow.within(written) for byte in range(lo, hi)} == model & its
        shadow.write(written)
        model -= its
        assert all(end < start for end, start in zip(shadow.ends, shadow.starts[1:], strict=False))
    inside = [byte for lo, hi in shadow.within([asked]) for byte in range(lo, hi)]
    assert inside == sorted(model & set(range(*asked)))
    assert bool(shadow) == bool(model)


@examples(200)
@given(st.integers(1, 4), st.lists(st.tuples(st.integers(1, 5), st.integers(1, 40)), max_size=3))
def test_the_runs_of_an_access_are_its_bytes(width: int, dims: list[tuple[int, int]]) -> None:
    offsets = [0]
    for size, stride in dims:
        offsets = [at + stride * step for at in offsets for step in range(size)]
    model = {at + byte for at in offsets for byte in range(width)}
    layout = (width, tuple(size for size, _ in dims), tuple(stride for _, stride in dims))
    made = runs(0, max(model) + 1, layout)
    assert {byte for lo, hi in made for byte in range(lo, hi)} == model
    assert len(made) <= MOST


def test_an_access_of_too_many_runs_counts_as_one() -> None:
    assert runs(0, 8 * MOST + 8, (4, (MOST + 1,), (8,))) == [(0, 8 * MOST + 8)]


def test_what_was_written_in_part_is_read_in_part() -> None:
    halves = (Access(1, 0, SIZE, (4, (8,), (8,))),)
    everything = (Access(1, 0, SIZE),)
    gaps = tuple((at, at + 4) for at in range(4, SIZE, 8))
    assert found(alloc(), launch("aten::fill_", writes=halves), launch(reads=halves)) == []
    assert found(alloc(), launch("aten::fill_", writes=halves), launch(reads=everything)) == [("aten::add", gaps, 1)]


def test_an_operator_in_place_reads_what_it_writes_unless_it_only_fills() -> None:
    everything = (Access(1, 0, SIZE),)
    assert found(alloc(), launch("aten::zero_", writes=everything), launch(reads=everything)) == []
    assert found(alloc(), launch("aten::index_put_", writes=everything)) == [("aten::index_put_", ((0, SIZE),), 1)]


def test_a_block_that_is_handed_out_again_is_unwritten_again_and_one_place_is_one_finding() -> None:
    def use(block: int) -> list[TraceRecord]:
        return [alloc(block), launch(reads=(Access(block, 0, SIZE),)), Free(block, 0, quiet=True)]

    filled = launch("aten::fill_", writes=(Access(1, 0, SIZE),))
    first = [alloc(1), filled, *use(1)[1:]]
    assert found(*first) == []
    assert found(*first, *use(2), *use(3)) == [("aten::add", ((0, SIZE),), 2)]


def test_the_first_read_is_one_that_computes_where_there_is_one() -> None:
    everything = (Access(1, 0, SIZE),)
    copy = launch("aten::clone", reads=everything)
    assert found(alloc(), copy) == [("aten::clone", ((0, SIZE),), 1)]
    assert found(alloc(), copy, launch("aten::mm", reads=everything)) == [("aten::mm", ((0, SIZE),), 1)]
