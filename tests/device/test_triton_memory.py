"""The bytes that a kernel accesses become runs: exactly, of any strides, and of several tensors of one storage."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamrace.device.triton import memory, numbers
from streamrace.device.triton.memory import MOST_RUNS, LaunchMemory, StorageSpan, few, runs_of, storages_of
from tests.examples import examples

pytestmark = pytest.mark.host


def elements(*places: int) -> np.ndarray:
    return np.array(places, np.uint64)


def test_consecutive_elements_are_one_run_and_gaps_divide_runs() -> None:
    assert runs_of(elements(0, 4, 8), 4).tolist() == [[0, 12]]
    assert runs_of(elements(0, 4, 16, 20), 4).tolist() == [[0, 8], [16, 24]]
    assert runs_of(elements(8, 4, 0, 4), 4).tolist() == [[0, 12]]  # in any order, and repeatedly
    assert runs_of(elements(7), 2).tolist() == [[7, 9]]


def test_a_launch_reports_what_it_has_read_and_written_by_block() -> None:
    of = LaunchMemory(
        storages_of(
            [StorageSpan(1100, 1200, 8, 64), StorageSpan(1000, 1100, 7, 0, 8), StorageSpan(1000, 1100, 7, 0, 4)]
        )
    )
    assert of.access(elements(1000, 1004), 4, reads=True, writes=False) is None
    assert of.access(elements(1008), 4, reads=True, writes=False) is None
    assert of.access(elements(1096, 1100), 4, reads=False, writes=True) is None  # adjacent memory of two blocks
    assert of.reads().tolist() == [[7, 0, 12]]
    assert of.writes().tolist() == [[7, 96, 100], [8, 64, 68]]


def test_what_a_program_has_written_itself_it_does_not_read_from_others() -> None:
    of = LaunchMemory([StorageSpan(1000, 1100, 7, 0)])
    of.begin()
    of.access(elements(1000, 1004, 1020), 4, reads=False, writes=True)
    of.access(elements(1000, 1004, 1008, 1016, 1020, 1024), 4, reads=True, writes=False)
    assert of.reads().tolist() == [[7, 8, 12], [7, 16, 20], [7, 24, 28]]
    of.begin()  # another program
    of.access(elements(1000), 4, reads=True, writes=False)
    assert of.reads().tolist() == [[7, 0, 4], [7, 8, 12], [7, 16, 20], [7, 24, 28]]


def test_elements_outside_are_named_and_not_reported() -> None:
    of = LaunchMemory([StorageSpan(1000, 1010, 7, 0)])
    inside = of.access(elements(996, 1000, 1004, 1008), 4, reads=True, writes=False)
    assert inside is not None and inside.tolist() == [False, True, True, False]
    assert of.reads().tolist() == [[7, 0, 8]]
    nothing = LaunchMemory([]).access(elements(8), 4, reads=False, writes=True)
    assert nothing is not None and not nothing.any()


def test_too_many_runs_are_joined_over_the_smallest_gaps() -> None:
    starts = np.arange(MOST_RUNS + 2) * 10
    starts[MOST_RUNS // 2 :] += 1000  # one wide gap, which stays
    runs = few(np.stack([starts, starts + 2], axis=1))
    assert len(runs) == MOST_RUNS and runs[0, 0] == 0 and runs[-1, 1] == starts[-1] + 2
    assert (runs[1:, 0] - runs[:-1, 1]).max() == 1008


@examples(50)
@given(accesses=st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.lists(st.integers(0, 500), min_size=1))))
def test_runs_cover_exactly_the_bytes_of_the_elements(accesses: list[tuple[int, list[int]]]) -> None:
    of, touched = LaunchMemory([StorageSpan(0, 4096, 1, 0)]), np.zeros(4096, bool)
    for size, numbers_ in accesses:
        of.access(elements(*(size * number for number in numbers_)), size, reads=False, writes=True)
        for number in numbers_:
            touched[size * number : size * number + size] = True
    told = np.zeros(4096, bool)
    for block, lo, hi in of.writes().tolist():
        assert block == 1 and not told[lo:hi].any()
        told[lo:hi] = True
    assert np.array_equal(told, touched)


def test_a_long_launch_keeps_few_runs_in_memory() -> None:
    kept = memory._Runs()
    for start in range(0, 200_000, 1000):
        places = np.arange(start, start + 1000) * 8
        kept.add(np.stack([places, places + 4], axis=1))
    assert kept.rows <= memory._COMPACT + 1000


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp8e4nv", torch.float8_e4m3fn),
                                             ("fp8e5", torch.float8_e5m2), ("fp8e4b8", torch.float8_e4m3fnuz),
                                             ("fp8e5b16", torch.float8_e5m2fnuz)])  # fmt: skip
def test_numbers_round_as_torchs_do(name: str, dtype: torch.dtype) -> None:
    """Ties to even, subnormal numbers, infinities and NaN."""
    width = torch.int16 if dtype == torch.bfloat16 else torch.uint8
    largest = torch.finfo(dtype).max
    steps = torch.linspace(-3, 3, 4001)
    given = torch.cat([steps, steps * 1e-3, steps * 1e-6, torch.tensor([0.0, -0.0, torch.nan, largest, -largest])])
    made = numbers.from_numbers(given.numpy(), name)
    expected = given.to(dtype)
    bits = expected.view(width).numpy().view(made.dtype)
    nan = torch.isnan(given).numpy()
    assert np.array_equal(made[~nan], bits[~nan])
    wide = numbers.to_float32(made, name)
    assert np.array_equal(wide, expected.float().numpy(), equal_nan=True)


def test_bfloat16_keeps_infinity_and_eight_bits_have_a_largest_number() -> None:
    infinite = np.array([np.inf, -np.inf], np.float32)
    assert numbers.to_float32(numbers.from_numbers(infinite, "bf16"), "bf16").tolist() == [np.inf, -np.inf]
    assert numbers.to_float32(numbers.from_numbers(infinite, "fp8e4nv"), "fp8e4nv").tolist() == [448, -448]
