"""Defines the measurements as operators of torch: a tensor's values, its bits, and their way to the host.

They are operators so that every device treats them as its own work: on CUDA they are kernels on the
current stream, on the simulated GPU one launch each. They write into a row of memory that
exists before, return nothing to the host, and wait for nothing.

``detectors::probe``: one pass (``aminmax``) while everything is good. Counting bad values takes more
passes; if a kernel may branch on what it reads (the CPU), they are only run for a bad tensor.

``detectors::checksum``: exact, in integers modulo 2**64. An element's bits are a word x (signed, up to
32 bits; a 64-bit element is two words), and the sum is of x * w(i), i the word's position in the *whole*
parameter. For words r * 2**15 + k the weight is w = a(k) * b(r) with

* a(k) odd, and all different modulo 2**16,
* b(r) = 1 modulo 2**16, and (b(r) - 1) / 2**16 all different modulo 2**17.

So (1) all weights are odd, and the change of one element always changes the sum: dx * w = 0 modulo 2**64
would need dx = 0, as \\|dx\\| < 2**32. (2) So does the exchange of any two different elements of up to 32
bits: it changes the sum by dx * dw, dx has at most 31 factors of two and dw at most 32 (below 2**16 within a
row, at most 16 + 16 between rows of the same column), which is less than 64. (3) Sums add up: that of a
secondary partition is the sum of those of the primary partitions in it. Both hold for up to 2**32 words.
Other changes are missed with a probability near 2**-64.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from streamrace.detectors.live.native import native

PROBES = "detectors::"  # prefix of the operators' names in a trace
OPERATORS = tuple(PROBES + name for name in ("probe", "checksum", "send", "stamp"))
PROBE_COLUMNS = 5  # NaN, +Inf, -Inf, lowest and highest good value
_ROWS = 8  # at once, if enough threads exist
_ROW = 1 << 15  # words; a row and its 64-bit copy stay in the cache
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
_SPLIT = torch.complex64, torch.complex128
_WIDE = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.float64}
_MASK = (1 << 64) - 1

_library = torch.library.Library("detectors", "DEF")
_library.define("probe(Tensor values, Tensor(a!) row) -> ()")
_library.define("checksum(Tensor values, Tensor(a!) sums, int first, int part) -> ()")
_library.define("send(Tensor values, Tensor(a!) pinned) -> ()")
_library.define("stamp(Tensor(a!) scratch, Tensor(b!) pinned, int number) -> ()")


def probe(values: Tensor, row: Tensor) -> None:
    """Measure ``values`` into ``row``: float64, (PROBE_COLUMNS,). No gradient, no host wait."""
    torch.ops.detectors.probe.default(values, row)


def checksum(values: Tensor, sums: Tensor, *, first: int = 0, part: int = 0) -> None:
    """Write checksums of ``values``' bits into ``sums``: int64, one for each ``part`` elements (0: one in all).

    ``values``: contiguous, any dtype, elements ``first`` and following of the parameter, in row order.
    """
    torch.ops.detectors.checksum.default(values, sums, first, part)


def checksum_now(values: Tensor, array: Any, *, first: int = 0, part: int = 0) -> None:
    """Take checksums like :func:`checksum`, of values that are ready at the call, into an array of int64."""
    library = native()
    if library is not None:
        words, per_element = _words(values)
        size = part * per_element or words.numel()
        if library.checksums(words, first * per_element, size, _weights(words.device), array):
            return
    checksum(values, torch.from_numpy(array), first=first, part=part)


def send(values: Tensor, pinned: Tensor) -> None:
    """Copy ``values`` to memory of the host, as work of the current stream."""
    torch.ops.detectors.send.default(values, pinned)


def stamp(scratch: Tensor, pinned: Tensor, number: int) -> None:
    """Write ``number`` to memory of the host, after the current stream's earlier work. Both int64, (1,)."""
    torch.ops.detectors.stamp.default(scratch, pinned, number)


def unsigned(value: int) -> int:
    """Return a checksum as the number shown to users and in files: 0 to 2**64 - 1."""
    return value & _MASK


def add(*sums: int) -> int:
    """Return the checksum of several parts together."""
    return sum(sums) & _MASK


# -- probe ------------------------------------------------------------------------------------------------


def _probe_on_cpu(values: Tensor, row: Tensor) -> None:
    probe_now(values, row.numpy())


def probe_now(values: Tensor, array: Any, *, extremes: bool = True) -> None:
    """Measure like :func:`probe`, of values that are ready at the call: into an array, not through the operator.

    One pass at the speed of memory, if the native library can read the values. Otherwise a single pass needs
    ``extremes`` False, which leaves the extremes of a good tensor unknown (NaN): the sum of the squares is finite
    only without NaN and infinity.
    """
    array[:3] = 0
    library = native()
    if library is not None:
        ends = library.extremes(values)
        if ends is not None:
            array[3:] = ends
            return
    if not extremes and values.dtype is torch.float32 and values.is_contiguous():
        flat = values.view(-1)
        if math.isfinite(torch.dot(flat, flat)):
            array[3:] = math.nan
            return
    real = _real(values)
    if real.numel() == 0:
        array[3:] = math.nan
        return
    low, high = torch.aminmax(real)
    array[3], array[4] = float(low), float(high)
    if math.isfinite(array[3]) and math.isfinite(array[4]):
        return
    array[0] = int(real.isnan().sum())
    array[1] = int((real == math.inf).sum())
    array[2] = int((real == -math.inf).sum())
    good = real[real.isfinite()]
    array[3], array[4] = (float(extreme) for extreme in torch.aminmax(good)) if good.numel() else (math.nan, math.nan)


def probe_on_device(values: Tensor, row: Tensor) -> None:
    """Measure like :func:`probe` without the host knowing: no branch on values, so each pass is always run."""
    real = _real(values)
    if real.numel() == 0:
        row.copy_(torch.tensor([0.0, 0.0, 0.0, math.nan, math.nan], dtype=row.dtype), non_blocking=True)
        return
    if not real.is_floating_point():
        row[:3].zero_()
        row[3:].copy_(torch.stack(torch.aminmax(real)))
        return
    row[0].copy_(real.isnan().sum())
    row[1].copy_((real == math.inf).sum())
    row[2].copy_((real == -math.inf).sum())
    # All three are given: nan_to_num defaults to the dtype's largest value, which is a good one.
    row[3].copy_(torch.nan_to_num(real, nan=math.inf, posinf=math.inf, neginf=math.inf).amin())
    row[4].copy_(torch.nan_to_num(real, nan=-math.inf, posinf=-math.inf, neginf=-math.inf).amax())
    row[3:].masked_fill_(row[3:].isinf(), math.nan)


def _real(values: Tensor) -> Tensor:
    real = values.detach()
    if real.dtype in _SPLIT:
        real = torch.view_as_real(real)
    if real.dtype is torch.bool:
        real = real.view(torch.uint8)
    if real.dtype in _WIDE:  # torch has no extremes of these
        real = real.to(_WIDE[real.dtype])
    return real.float() if real.dtype.is_floating_point and real.dtype.itemsize == 1 else real


# -- checksum --------------------------------------------------------------------------------------------


def _checksum(values: Tensor, sums: Tensor, first: int, part: int) -> None:
    """Sum up row by row: each is widened and multiplied while it is in the cache."""
    words, per_element = _words(values)
    count = words.numel()
    part = part * per_element or count
    start = first * per_element
    weights = _weights(words.device)
    on_cpu = words.device.type == "cpu"
    rows = _ROWS if on_cpu and torch.get_num_threads() > 1 else 1
    for index in range(sums.numel()):
        lo, hi = index * part, min((index + 1) * part, count)
        total: int | Tensor = 0
        while lo < hi:
            row, column = divmod(start + lo, _ROW)
            row_count = min(rows, (hi - lo) // _ROW) if column == 0 else 1
            if row_count > 1:  # whole rows, enough of them for all threads
                block = words[lo : lo + row_count * _ROW].view(row_count, _ROW).to(torch.int64).mul_(weights).sum(1)
                total += sum(row_sum * _row_weight(row + place) for place, row_sum in enumerate(block.tolist()))
                lo += row_count * _ROW
                continue
            end = min(hi, lo + _ROW - column)
            piece, weight = words[lo:end].to(torch.int64), weights[column : column + end - lo]
            if on_cpu:
                total += int(torch.dot(piece, weight)) * _row_weight(row)
            else:  # CUDA has no dot for integers, and the host must not know the result
                total += (piece * weight).sum() * _row_weight(row)
            lo = end
        sums[index] = _signed(total) if isinstance(total, int) else total


def _words(values: Tensor) -> tuple[Tensor, int]:
    """Return the elements' bits in row order as words, (n,), contiguous; and the number of words per element."""
    words = values.detach().reshape(-1)
    if words.dtype in _SPLIT:
        words = torch.view_as_real(words).reshape(-1)
    if words.numel() and words.stride(0) != 1:  # reshape leaves a vector, or a single element, its stride
        words = words.clone(memory_format=torch.contiguous_format)
    words = words.view(_WORDS[words.dtype.itemsize])
    return words, words.numel() // max(values.numel(), 1)


@cache
def _weights(device: torch.device) -> Tensor:
    """Compute a(k): int64, (2**15,). The low 16 bits run through all odd numbers, the others look random."""
    weights = [_signed(2 * _scatter(k, 15) + 1 + (_mix(k) & ~0xFFFF)) for k in range(_ROW)]
    return torch.tensor(weights, dtype=torch.int64, device=device)


@cache
def _row_weight(row: int) -> int:
    return _signed(1 + ((_scatter(row, 17) + (_mix(row ^ 0x5BD1E995) & ~0x1FFFF)) << 16))


def _scatter(number: int, bits: int) -> int:
    """Map the numbers of ``bits`` bits to a permutation of themselves."""
    return number * 0x9E3779B1 & ((1 << bits) - 1)


def _mix(number: int) -> int:
    """Mix by splitmix64's finaliser (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    value = (number + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _send(values: Tensor, pinned: Tensor) -> None:
    pinned.copy_(values, non_blocking=True)


def _stamp(scratch: Tensor, pinned: Tensor, number: int) -> None:
    scratch.fill_(number)
    pinned.copy_(scratch, non_blocking=True)


_library.impl("send", _send, "CompositeExplicitAutograd")
_library.impl("stamp", _stamp, "CompositeExplicitAutograd")
_library.impl("probe", _probe_on_cpu, "CPU")
_library.impl("probe", probe_on_device, "CompositeExplicitAutograd")
_library.impl("checksum", _checksum, "CompositeExplicitAutograd")
