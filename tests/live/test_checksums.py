"""What the measurements promise, for every dtype: a wrong bit is never missed, and a probe counts what is there."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor

from streamrace.detectors.live import ops
from tests.examples import examples

ROOT = Path(__file__).resolve().parents[2]
ROW = 2**15  # words
FARTHEST = 2**32 - 2  # the first word of the last element that the promises are made for
SMALL = [
    *(torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.bool),
]
LARGE = [torch.float64, torch.int64, torch.complex64]  # two words
DTYPES = SMALL + LARGE
QUICK = examples(150)
FEW = examples(30)

dtypes = st.sampled_from(DTYPES)
places = st.integers(0, FARTHEST // 2)  # of an element in its parameter: one may be two words


def checksum(values: Tensor, *, first: int = 0, part: int = 0) -> int | list[int]:
    """As the files show it: one number, or one for each part."""
    sums = torch.full((-(-values.numel() // part) if part else 1,), -1, dtype=torch.int64)
    ops.checksum(values, sums, first=first, part=part)
    shown = [ops.unsigned(one) for one in sums.tolist()]
    return shown if part else shown[0]


def made(dtype: torch.dtype, raw: bytes | bytearray) -> Tensor:
    """A tensor of these bits."""
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype)


def noise(dtype: torch.dtype, count: int, seed: int) -> bytearray:
    raw = np.random.default_rng(seed).integers(0, 2 if dtype is torch.bool else 256, count * dtype.itemsize)
    return bytearray(raw.astype(np.uint8).tobytes())


def bits_of(dtype: torch.dtype) -> st.SearchStrategy[bytes]:
    """One element: any bits that it can have."""
    if dtype is torch.bool:
        return st.sampled_from([b"\0", b"\1"])
    return st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize)


def strided(values: Tensor) -> Tensor:
    """The same elements, with others between them."""
    wide = torch.zeros(values.numel(), 2, dtype=torch.uint8).repeat_interleave(values.dtype.itemsize, 1)
    wide = wide.view(values.dtype)
    wide[:, 0] = values
    return wide[:, 0]


# -- one wrong bit -----------------------------------------------------------------------------------------


def flip(raw: bytearray, dtype: torch.dtype, element: int, bit: int) -> None:
    bit = bit % (1 if dtype is torch.bool else 8 * dtype.itemsize)
    raw[element * dtype.itemsize + bit // 8] ^= 1 << bit % 8


@QUICK
@given(dtypes, st.integers(1, 70), st.integers(0, 2**32), places, st.integers(0, 69), st.integers(0, 63), st.booleans())
def test_one_bit_of_one_element_changes_the_sum(
    dtype: torch.dtype, count: int, seed: int, first: int, element: int, bit: int, apart: bool
) -> None:
    raw = noise(dtype, count, seed)
    before = checksum(made(dtype, raw), first=first)
    flip(raw, dtype, element % count, bit)
    after = made(dtype, raw)
    assert checksum(strided(after) if apart else after, first=first) != before


@FEW
@given(dtypes, st.sampled_from([ROW - 1, ROW, ROW + 1, 3 * ROW + 5]), st.integers(0, 3 * ROW), st.integers(0, 63))
def test_so_it_does_in_a_parameter_of_several_rows(dtype: torch.dtype, count: int, element: int, bit: int) -> None:
    raw = noise(dtype, count, element)
    before = checksum(made(dtype, raw), first=element)
    flip(raw, dtype, element % count, bit)
    assert checksum(made(dtype, raw), first=element) != before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_last_bit_of_the_last_element_counts_at_every_place_of_a_row(dtype: torch.dtype) -> None:
    for first in (0, 1, ROW // 2 - 1, ROW - 2, ROW - 1, ROW, 2**31 - 3):
        assert checksum(made(dtype, noise(dtype, 3, 1)), first=first) != checksum(
            made(dtype, b"\0" * 3 * dtype.itemsize), first=first
        )


@QUICK
@given(dtypes, st.integers(1, 40), st.integers(0, 2**32), places)
def test_how_elements_lie_in_memory_does_not_matter(dtype: torch.dtype, count: int, seed: int, first: int) -> None:
    values = made(dtype, noise(dtype, 2 * count, seed)).view(2, count)
    assert checksum(values.t(), first=first) == checksum(values.t().contiguous(), first=first)
    assert checksum(strided(values[0]), first=first) == checksum(values[0], first=first)


def test_bits_are_compared_and_not_values() -> None:
    zeros = torch.tensor([0.0]), torch.tensor([-0.0])
    assert torch.equal(*zeros)
    assert checksum(zeros[0]) != checksum(zeros[1])
    payloads = [torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001)]
    assert all(one.isnan() for one in payloads)
    assert checksum(payloads[0]) != checksum(payloads[1])


# -- two elements in each other's place --------------------------------------------------------------------


@st.composite
def two_places(draw: st.DrawFn) -> tuple[int, int]:
    """Mostly what a weaker sum would mix up: neighbours, the same column of two rows, a row of a power of two away."""
    one = draw(places)
    far = draw(
        st.one_of(
            st.integers(1, 3),
            st.integers(1, 2**15).map(lambda rows: rows * ROW),
            st.integers(0, 30).map(lambda bits: 1 << bits),
            st.integers(1, 2**31 - 1),
        )
    )
    return one, (one + far) % (FARTHEST // 2)


def exchanged(dtype: torch.dtype, pair: tuple[int, int], x: bytes, y: bytes) -> tuple[int, int]:
    """The sums of a parameter that has x and y at two places, and of one that has y and x there."""
    kept, moved = (
        [checksum(made(dtype, raw), first=place) for raw, place in zip(order, pair, strict=True)]
        for order in ((x, y), (y, x))
    )
    return ops.add(*kept), ops.add(*moved)


@QUICK
@given(st.data(), st.sampled_from(SMALL), two_places())
def test_exchanging_two_different_elements_changes_the_sum(
    data: st.DataObject, dtype: torch.dtype, pair: tuple[int, int]
) -> None:
    x, y = data.draw(bits_of(dtype)), data.draw(bits_of(dtype))
    assume(x != y and pair[0] != pair[1])
    kept, moved = exchanged(dtype, pair, x, y)
    assert kept != moved


@QUICK
@given(st.data(), st.sampled_from([one for one in DTYPES if one is not torch.bool]), two_places())
def test_so_does_exchanging_a_number_and_its_negative(
    data: st.DataObject, dtype: torch.dtype, pair: tuple[int, int]
) -> None:
    """They differ in the highest bit: sums that weigh by position modulo the word's size never see it move."""
    x = data.draw(bits_of(dtype))
    assume(pair[0] != pair[1])
    kept, moved = exchanged(dtype, pair, x, x[:-1] + bytes([x[-1] ^ 0x80]))
    assert kept != moved


@QUICK
@given(st.data(), st.sampled_from(LARGE), two_places(), st.booleans())
def test_elements_of_64_bits_that_differ_in_one_half_only_count_as_one_word(
    data: st.DataObject, dtype: torch.dtype, pair: tuple[int, int], high: bool
) -> None:
    x, half = data.draw(bits_of(dtype)), data.draw(st.binary(min_size=4, max_size=4))
    y = x[:4] + half if high else half + x[4:]
    assume(x != y and pair[0] != pair[1])
    kept, moved = exchanged(dtype, pair, x, y)
    assert kept != moved


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_the_same_column_of_two_rows_is_two_places(dtype: torch.dtype) -> None:
    raw = bytearray(2 * ROW * dtype.itemsize + dtype.itemsize)
    raw[dtype.itemsize * 5] = 1
    moved = bytearray(len(raw))
    moved[dtype.itemsize * (5 + ROW)] = 1
    assert checksum(made(dtype, raw)) != checksum(made(dtype, moved))


@FEW
@given(st.sampled_from(LARGE), st.integers(0, 2**32), st.integers(1, 2**20))
def test_other_exchanges_of_64_bits_are_not_met_by_chance(dtype: torch.dtype, seed: int, far: int) -> None:
    raw = bytes(noise(dtype, 2, seed))
    kept, moved = exchanged(dtype, (seed, seed + far), raw[: dtype.itemsize], raw[dtype.itemsize :])
    assert kept != moved


def test_the_weights_are_what_the_proof_needs() -> None:
    """a(k): odd, and all different modulo 2**16. b(r): 1 modulo 2**16, and b's next 17 bits all different."""
    columns = ops._weights(torch.device("cpu")).tolist()
    assert len({weight % 2**16 for weight in columns}) == len(columns) == ROW
    assert all(weight % 2 for weight in columns)
    rows = [ops._row_weight.__wrapped__(row) for row in range(2**17)]
    assert all(weight % 2**16 == 1 for weight in rows)
    assert len({(weight >> 16) % 2**17 for weight in rows}) == 2**17


@QUICK
@example(0)
@example(FARTHEST)
@given(st.integers(0, FARTHEST))
def test_the_sum_weighs_each_word_with_them(place: int) -> None:
    row, column = divmod(place, ROW)
    weight = int(ops._weights(torch.device("cpu"))[column]) * ops._row_weight(row)
    assert checksum(torch.tensor([1], dtype=torch.int32), first=place) == ops.unsigned(weight)
    assert checksum(torch.tensor([-3], dtype=torch.int16), first=place) == ops.unsigned(-3 * weight)


# -- parts -------------------------------------------------------------------------------------------------


@QUICK
@given(dtypes, st.integers(1, 60), st.integers(1, 70), st.integers(0, 2**32), places)
def test_the_parts_sums_add_up_to_that_of_the_whole(
    dtype: torch.dtype, count: int, part: int, seed: int, first: int
) -> None:
    values = made(dtype, noise(dtype, count, seed))
    parts = checksum(values, first=first, part=part)
    assert isinstance(parts, list)
    assert ops.add(*parts) == checksum(values, first=first)
    alone = [checksum(values[lo : lo + part], first=first + lo) for lo in range(0, count, part)]
    assert parts == alone


@FEW
@given(dtypes, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3 * ROW // 4))
def test_a_secondary_partition_is_its_primary_partitions(
    dtype: torch.dtype, groups: int, merged: int, size: int
) -> None:
    """``groups`` secondary partitions of ``merged`` primary ones each; the parameter ends within the last."""
    numel = max(1, groups * merged * size - size // 2)
    values = made(dtype, noise(dtype, numel, size))
    for group in range(groups):
        first = group * merged * size
        secondary = values[first : first + merged * size]
        primaries = [
            checksum(values[lo : lo + size], first=lo) for lo in range(first, first + merged * size, size) if lo < numel
        ]
        assert ops.add(*primaries) == checksum(secondary, first=first)


def test_parts_that_hold_nothing_count_nothing() -> None:
    sums = torch.full((4,), -1, dtype=torch.int64)
    ops.checksum(torch.tensor([1.0, 2.0, 3.0]), sums, part=2)
    assert sums.tolist()[2:] == [0, 0]
    ops.checksum(torch.zeros(0), sums[:1], first=7)
    assert int(sums[0]) == 0


# -- the same bits, the same sum ---------------------------------------------------------------------------


def all_sums() -> list[int]:
    return [checksum(made(dtype, noise(dtype, 2 * ROW + 3, 7)), first=11) for dtype in DTYPES]


def test_the_number_of_threads_does_not_matter() -> None:
    threads, seen = torch.get_num_threads(), []
    try:
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            seen.append(all_sums())
    finally:
        torch.set_num_threads(threads)
    assert seen[0] == seen[1] == seen[2]


def test_another_process_makes_the_same_sums() -> None:
    code = "import json, tests.live.test_checksums as here; print(json.dumps(here.all_sums()))"
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout) == all_sums()


# -- probes -------------------------------------------------------------------------------------------------


def as_numpy(values: Tensor) -> npt.NDArray[Any]:
    """The same numbers, by another way than torch's."""
    if values.dtype is torch.bfloat16:  # the upper half of an fp32
        return (values.view(torch.int16).numpy().astype(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if values.dtype is torch.float8_e5m2:  # the upper half of an fp16
        return (values.view(torch.uint8).numpy().astype(np.uint16) << 8).view(np.float16)
    if values.dtype is torch.float8_e4m3fn:
        return np.array([_e4m3fn(int(bits)) for bits in values.view(torch.uint8).flatten()])
    return values.numpy().view(np.float32) if values.dtype is torch.complex64 else values.numpy()


def _e4m3fn(bits: int) -> float:
    """Micikevicius et al., FP8 Formats for Deep Learning, 2022: no infinities, one NaN of either sign."""
    sign, exponent, fraction = -1 if bits >> 7 else 1, bits >> 3 & 15, bits & 7
    if exponent == 15 and fraction == 7:
        return math.nan
    return sign * (fraction / 8 * 2**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7))


def wanted(values: Tensor) -> list[float]:
    """NaN, +Inf, -Inf, lowest and highest finite value."""
    held = as_numpy(values.contiguous()).reshape(-1)
    good = held[np.isfinite(held)]
    extremes = [float(good.min()) + 0.0, float(good.max()) + 0.0] if good.size else [math.nan, math.nan]
    return [float(np.isnan(held).sum()), float((held == np.inf).sum()), float((held == -np.inf).sum()), *extremes]


def seen_by(probe: Any, values: Tensor) -> list[float]:
    row = torch.full((ops.PROBE_COLUMNS,), 99.0, dtype=torch.float64)
    probe(values, row)
    return [float(one) + 0.0 for one in row]  # -0.0 becomes 0.0: both are the extreme


@st.composite
def held(draw: st.DrawFn) -> Tensor:
    """Elements of any bits, NaN and infinities often among them, some laid out in memory with gaps."""
    dtype = draw(dtypes)
    elements = bits_of(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0]).to(dtype)
        elements = st.one_of(elements, st.sampled_from([bytes(one.view(1).view(torch.uint8)) for one in special]))
    raw = b"".join(draw(st.lists(elements, max_size=8)))
    values = made(dtype, raw) if raw else torch.zeros(0, dtype=dtype)
    match draw(st.integers(0, 3)) if values.numel() else 0:
        case 1:
            return strided(values)
        case 2:
            return values.expand(3, values.numel())
        case 3:
            return torch.stack([values.view(torch.uint8), values.view(torch.uint8)]).view(dtype).t()
    return values


@QUICK
@example(torch.zeros(0))
@example(torch.tensor(3.0))
@example(torch.tensor([2**62 + 1, -(2**62)]))
@given(held())
def test_a_look_counts_what_is_bad_and_knows_the_extremes_of_what_is_good(values: Tensor) -> None:
    np.testing.assert_equal(seen_by(ops.probe, values), wanted(values))


@QUICK
@example(torch.zeros(0))
@example(torch.tensor([math.inf]))  # nan_to_num has a value of its own for what it is not told
@example(torch.tensor([math.inf, -math.inf, math.nan]))
@example(torch.tensor([math.inf, torch.finfo(torch.float32).max]))
@given(held())
def test_where_the_host_must_not_know_the_look_is_the_same(values: Tensor) -> None:
    """What CUDA runs; it runs anywhere."""
    np.testing.assert_equal(seen_by(ops.probe_on_device, values), wanted(values))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_wide_unsigned_token_ids_can_be_looked_at(dtype: torch.dtype) -> None:
    """Some programs keep their token ids in uint16; torch has few operators for it."""
    values = torch.tensor([3, 0, 40_000]).to(dtype)
    for probe in (ops.probe, ops.probe_on_device):
        assert seen_by(probe, values) == [0, 0, 0, 0, 40_000]
