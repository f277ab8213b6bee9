"""Do strided sets of bytes meet? Against sets that are written out."""

from __future__ import annotations

import tracemalloc
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.detectors.order.overlap import MAX_RUNS, Layout, overlap
from tests.detectors.story import Story, View
from tests.examples import examples


def touched(lo: int, hi: int, layout: Layout | None) -> set[int]:
    if layout is None:
        return set(range(lo, hi))
    itemsize, sizes, strides = layout
    starts = (
        lo + sum(index * stride for index, stride in zip(indices, strides, strict=True))
        for indices in product(*map(range, sizes))
    )
    return {start + byte for start in starts for byte in range(itemsize)}


@st.composite
def accesses(draw: st.DrawFn) -> tuple[int, int, Layout | None]:
    lo = draw(st.integers(0, 40))
    if draw(st.integers(0, 3)) == 0:
        return lo, lo + draw(st.integers(1, 30)), None
    itemsize = draw(st.integers(1, 4))
    dims = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20)), max_size=3))
    sizes, strides = tuple(size for size, _ in dims), tuple(stride for _, stride in dims)
    span = itemsize + sum((size - 1) * stride for size, stride in dims)
    return lo, lo + span, (itemsize, sizes, strides)


@examples(500)
@given(accesses(), accesses())
def test_as_the_sets_say(one: tuple[int, int, Layout | None], other: tuple[int, int, Layout | None]) -> None:
    expected = bool(touched(*one) & touched(*other))
    assert overlap(*one, *other) == expected
    assert overlap(*other, *one) == expected


def test_an_empty_view_touches_nothing() -> None:
    assert not overlap(0, 8, (4, (0, 2), (8, 4)), 0, 8, None)


def test_columns_of_a_large_matrix() -> None:
    """4096 x 11008 in bf16, split by columns: some thousand runs, not 45 million elements.

    Counted by what it takes to hold them: a run is eight bytes, in a handful of arrays.
    """
    width = 2 * 11008

    def part(first: int, count: int) -> tuple[int, int, Layout]:
        return 2 * first, 2 * first + 4095 * width + 2 * count, (2, (4096, count), (width, 2))

    tracemalloc.start()
    assert not overlap(*part(0, 5504), *part(5504, 5504))
    assert overlap(*part(0, 5505), *part(5504, 5504))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20 * 8 * 4096


def test_above_the_limit_intervals_decide() -> None:
    """Every second number of a large vector against the others: disjoint, but told to overlap."""
    many = 2 * MAX_RUNS
    even, odd = (0, 8 * many - 4, (4, (many,), (8,))), (4, 8 * many, (4, (many,), (8,)))
    assert overlap(*even, *odd)
    few = MAX_RUNS // 2
    assert not overlap(0, 8 * few - 4, (4, (few,), (8,)), 4, 8 * few, (4, (few,), (8,)))


# -- exactly where the limit is, which is the same in both engines -----------------------------------------


def two_bytes(first: int, second: int) -> tuple[int, int, Layout]:
    """Two bytes alone, and so what lies between them is what the intervals share."""
    return first, second + 1, (1, (2,), (second - first,))


def told(layout: Layout, other: tuple[int, int, Layout]) -> bool:
    """Do both engines tell of a race between a write that begins at 0 and a read?"""
    itemsize, sizes, strides = layout
    end = itemsize + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    story = Story()
    compute, gather = story.streams("compute", "gather")
    block = story.block(end).block
    compute.writes(View(block, 0, end, layout))
    gather.reads(View(block, *other))
    return bool(story.races())


@pytest.mark.parametrize("more", [0, 1])
def test_only_the_runs_between_count(more: int) -> None:
    """Pairs of bytes, two apart. The other access begins behind the third pair, and ends behind one near the last."""
    vector = 2, (MAX_RUNS + 8,), (4,)
    assert told(vector, two_bytes(4 * 3 + 2, 4 * (3 + MAX_RUNS + more) + 2)) == bool(more)
    assert told(vector, two_bytes(4 * 3 + 2, 4 * (MAX_RUNS // 2) + 1))


@pytest.mark.parametrize("more", [0, 1])
def test_of_a_matrix_only_the_runs_between_count(more: int) -> None:
    """Every second byte of rows that lie two bytes apart: the end of one, and the beginning of the next."""
    size, row = MAX_RUNS, 2 * MAX_RUNS + 2
    matrix = 1, (4, size), (row, 2)
    half = MAX_RUNS // 2
    assert told(matrix, two_bytes(row + 2 * half + 1, 2 * row + 2 * (half + more) + 1)) == bool(more)
    assert told(matrix, two_bytes(2 * row - 2, 2 * row + 2))


@pytest.mark.parametrize("more", [0, 1])
def test_four_times_as_many_are_looked_at(more: int) -> None:
    size = 2 * MAX_RUNS + more
    row = 2 * size + 2
    assert told((1, (3, size), (row, 2)), two_bytes(row - 5, row + 1)) == bool(more)


def test_rows_that_lie_beside_are_not_looked_at() -> None:
    """The other access begins between two long rows, and ends in the second."""
    size = 2 * MAX_RUNS + 1
    row = 2 * size + 2
    matrix = 1, (3, size), (row, 2)
    assert not told(matrix, two_bytes(row - 1, row + 9))
    assert told(matrix, two_bytes(row - 1, row + 8))


def test_rows_that_follow_each_other_are_one() -> None:
    """Every second number of a matrix, whose rows are so long that a few of them would be too much to look at."""
    size = 2 * MAX_RUNS + 1
    matrix = 4, (4, size), (8 * size, 8)
    assert not told(matrix, two_bytes(16 * size - 12, 16 * size + 4))
    assert told(matrix, two_bytes(16 * size - 12, 16 * size + 3))
    assert told(matrix, two_bytes(16 * size - 5, 16 * size + 4))
