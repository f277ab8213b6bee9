"""What is measured in C++ is what torch's operators measure, of every dtype, however it lies in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from streamrace.detectors import NanWatch
from streamrace.detectors.live import native, ops
from tests.examples import examples

ROW = 2**15  # words
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES = [*FLOATS, torch.float8_e5m2, torch.int8, torch.uint8, torch.bool, torch.int16, torch.int64, torch.complex64]
LAID: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda values: values,
    "a part of it": lambda values: values[1:],
    "turned": lambda values: values.t(),
    "every other": lambda values: values[:, ::2],
    "repeated": lambda values: values[:1].expand(5, -1),
}
BAD = {"NaN": math.nan, "-NaN": -math.nan, "Inf": math.inf, "-Inf": -math.inf}


@pytest.fixture(autouse=True)
def _built() -> None:
    assert native.native() is not None, "it is built, and nothing below compares torch with itself"


def made(dtype: torch.dtype, count: int, seed: int, *, good: bool) -> Tensor:
    """(2, count): any bits. ``good``: no NaN and no infinity among them."""
    raw = np.random.default_rng(seed).integers(0, 2 if dtype is torch.bool else 256, 2 * count * dtype.itemsize)
    values = torch.from_numpy(raw.astype(np.uint8)).view(dtype).view(2, count)
    return torch.where(values.isfinite(), values, torch.zeros((), dtype=dtype)) if good else values


def probed(values: Tensor, *, extremes: bool = True) -> list[float]:
    held = np.full(ops.PROBE_COLUMNS, -1.0)
    ops.probe_now(values, held, extremes=extremes)
    found: list[float] = held.tolist()
    return found


def by_torch(patch: pytest.MonkeyPatch, measure: Callable[[], list[float]]) -> list[float]:
    with patch.context() as inner:
        inner.setattr(ops, "native", lambda: None)
        return measure()


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as made:
        yield made


@examples(60)
@given(
    st.sampled_from(DTYPES),
    st.sampled_from(sorted(LAID)),
    st.sampled_from([1, 2, 3, 31, 64, 2 * ROW + 1]),
    st.integers(0, 2**32),
    st.booleans(),
)
@example(torch.float16, "as it is", 64, 1, True)
def test_the_same_values_are_bad_and_the_extremes_are_the_same(
    patch: pytest.MonkeyPatch, dtype: torch.dtype, laid: str, count: int, seed: int, good: bool
) -> None:
    values = LAID[laid](made(dtype, count, seed, good=good and dtype in FLOATS))
    assert np.array_equal(probed(values), by_torch(patch, lambda: probed(values)), equal_nan=True)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_bad_value_anywhere_is_seen(dtype: torch.dtype, bad: str) -> None:
    for count in (1, 17, 4 * ROW + 3):
        for place in {0, count // 2, count - 1}:
            values = torch.full((count,), 2.0, dtype=dtype)
            values[place] = BAD[bad]
            wanted = [float("NaN" in bad), float(bad == "Inf"), float(bad == "-Inf")]
            assert probed(values, extremes=False)[:3] == wanted


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_largest_values_that_are_finite_are_good(dtype: torch.dtype) -> None:
    """Their squares are not finite."""
    limits = torch.finfo(dtype)
    values = torch.tensor([limits.min, limits.max, limits.tiny, -0.0], dtype=dtype)
    assert probed(values, extremes=False) == [0, 0, 0, limits.min, limits.max]
    assert probed(values * 2)[1:3] == [1, 1]


def sums(values: Tensor, first: int, part: int) -> list[float]:
    held = np.full(-(-values.numel() // part) if part else 1, -1, dtype=np.int64)
    ops.checksum_now(values, held, first=first, part=part)
    found: list[float] = held.tolist()
    return found


@examples(60)
@given(
    st.sampled_from(DTYPES),
    st.sampled_from(sorted(LAID)),
    st.sampled_from([1, 3, 64, ROW, 5 * ROW + 1]),
    st.integers(0, 2**32),
    st.sampled_from([0, 1, ROW - 1, 3 * ROW, 2**31 - 3]),
    st.sampled_from([0, 1, 7, ROW, 2 * ROW + 5]),
)
def test_checksums_are_the_same_of_the_whole_and_of_parts(
    patch: pytest.MonkeyPatch, dtype: torch.dtype, laid: str, count: int, seed: int, first: int, part: int
) -> None:
    values = LAID[laid](made(dtype, count, seed, good=False))
    part = max(part, values.numel() // 50) if part else 0
    assert sums(values, first, part) == by_torch(patch, lambda: sums(values, first, part))


def test_how_many_threads_there_are_does_not_matter(patch: pytest.MonkeyPatch) -> None:
    values = made(torch.float32, 20 * ROW + 9, 5, good=True)
    threads = torch.get_num_threads()
    found = []
    for count in (1, 2, 3, 7):
        torch.set_num_threads(count)
        found.append((probed(values), sums(values, 3, 0)))
    torch.set_num_threads(threads)
    assert all(one == found[0] for one in found)


def test_a_tensor_without_memory_of_its_own_is_read_by_torch(patch: pytest.MonkeyPatch) -> None:
    negated = made(torch.complex64, 50, 7, good=True).conj().imag
    assert negated.is_neg()
    assert np.array_equal(probed(negated), by_torch(patch, lambda: probed(negated)), equal_nan=True)
    seen = []

    def inside(values: Tensor) -> Tensor:
        seen.append(probed(values))
        return values.sum()

    torch.func.grad(inside)(torch.tensor([3.0, -1.0]))
    assert seen == [[0, 0, 0, -1, 3]]


# -- no compiler -------------------------------------------------------------------------------------------


def test_where_it_cannot_be_built_the_watch_finds_the_same(patch: pytest.MonkeyPatch) -> None:
    def found() -> str:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.ReLU(), torch.nn.Linear(300, 1))
        optimizer = torch.optim.Adam(model.parameters())
        watch = NanWatch(model, checksums=True, tells=False, on_finding=lambda _: None)
        for step in range(3):
            if step == 2:
                optimizer.state[model[0].weight]["exp_avg_sq"][7, 7] = math.nan
            model(torch.randn(40, 200)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        finding = watch.close()
        assert finding is not None
        return str(finding.as_dict())

    wanted = found()
    with patch.context() as inner:
        inner.setattr("streamrace.compiling.find_compiler", lambda: None)
        native.native.cache_clear()
        assert native.native() is None
        assert found() == wanted
    native.native.cache_clear()
