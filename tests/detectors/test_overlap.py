"""Do strided sets of bytes meet? Against sets that are written out."""

from __future__ import annotations

import tracemalloc
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from detectors.order.overlap import MAX_RUNS, Layout, overlap
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
