"""Reproduces the order in which gloo reduces, and the content that it leaves at each member.

All reductions that torch passes to gloo are one ring (``gloo/allreduce.cc``: ``ring``; ``gloo/reduce.cc``: ``reduce``).
The elements are cut into as many chunks as members. Chunk c starts with the content of member c-1, goes down to c-2,
c-3, ... and ends at member c; each member adds the received values to its own: ``own + received``. So every chunk has
an order of its own, and every step rounds to the type of the elements.

The length of a chunk depends on the segments that it is sent in: at least two for each chunk, none longer than 1 MiB.
The two files round this length differently. The last chunks may be short or empty.

Added by torch (``ProcessGroupGloo.cpp``, ``ProcessGroupGlooDetail.hpp``): a reduce-scatter is an all-reduce of the
whole input, of which each rank keeps its part; of a list, one all-reduce for each of its tensors. AVG is SUM, divided
afterwards on every member. Booleans are reduced as bytes.

``gloo::reduce`` works in place, so members other than the root end with the values that passed them: the partial sum of
each chunk. If chunks have more than two segments, gloo runs some steps too many (``i < numSegments - 2``): all but the
last two segments of the chunk after its own then hold, at each member, the member's input plus the final sum.

Bits of NaN: if two NaNs meet in a float32 or float64 sum, the left operand's survives in gloo and the right one's in
``torch.add``, hence the order of arguments here. bfloat16 ends as 0x7fc0, float16 as 0x7e00 or 0xfe00
(``c10::BFloat16``, ``c10::Half``). MIN and MAX are ``std::min(own, received)``: the left operand unless the right one
is less, so a NaN on the left stays and a NaN on the right is dropped.

Departure: which of two *different* NaNs survives in a product, and with which sign in a float16 sum, is torch's choice,
not gloo's. Both differ between full vectors and the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

_SEGMENT_BYTES = 1 << 20  # gloo/allreduce.h, gloo/reduce.h: kMaxSegmentSize
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool)
_INF, _NAN = float("inf"), float("nan")

Combine = Callable[[Tensor, Tensor, Tensor], object]  # own, received, output


class SumRing:
    """An all-reduce of ``count`` elements from each member. Can be run any number of times.

    At one step every chunk is at another member, so the operands of the step lie on a diagonal of the members' rows.
    The rows are staged twice, one set below the other: then no diagonal has to be cut in two, and a step is one call
    for all chunks.
    """

    def __init__(self, count: int, dtype: torch.dtype, members: int, reduction: str) -> None:
        average = reduction == "AVG"
        self._combine = _combine("SUM" if average else reduction, dtype)
        if average and dtype not in _FLOATS:
            raise NotImplementedError(f"gloo does not average values of type {dtype}.")
        number = torch.uint8 if dtype is torch.bool else dtype
        self._count, self._members = count, members
        self._segment, self._segments = self._cut(number.itemsize) if count else (0, 2)
        self._chunk = chunk = self._segment * self._segments
        width = members * chunk
        self._staged = torch.zeros(2 * members, width, dtype=number)
        self._given, *self._owns = [
            self._staged.as_strided((members, chunk), (width + chunk, 1), (members - 1 - step) * width)
            for step in range(members)
        ]
        self._sums = self._allocate_sums(number)
        total = self._sums[-1].view(-1) if self._sums else self._staged[0]
        self._whole = total[:count]
        self._settle = _SETTLED.get(dtype, _keep) if reduction in ("SUM", "AVG", "PRODUCT") else _keep
        self._divisor = members if average else 0
        self.result = self._whole.view(dtype)

    def lane(self, member: int, shape: torch.Size) -> Tensor:
        """Return the lane for a tensor of ``member``: a copy to it goes to both sets of rows."""
        rows = self._staged.view(2, self._members, -1)[:, member, : self._count]
        return rows.view(2, *shape)

    def run(self) -> None:
        """Compute ``result`` from the content of the lanes."""
        if self._sums:
            self._step()
            self._settle(self._sums[-1])
        if self._divisor:
            self._whole.div_(self._divisor)

    def _step(self) -> None:
        combine, received = self._combine, self._given
        for own, total in zip(self._owns, self._sums, strict=True):
            combine(own, received, total)
            received = total

    def _cut(self, size: int) -> tuple[int, int]:
        """Return the elements of a segment and the segments of a chunk. ``gloo/allreduce.cc``: ``ring``."""
        total, longest = self._count * size, size * max(1, _SEGMENT_BYTES // size)
        segments = _round_up(max(-(-total // longest), 2 * self._members), self._members)
        return _round_up(-(-total // segments), size) // size, segments // self._members

    def _allocate_sums(self, number: torch.dtype) -> list[Tensor]:
        """Allocate the outputs of the steps: a single buffer, because partial sums are not read later."""
        return [torch.zeros(self._members, self._chunk, dtype=number)] * (self._members - 1)


class SumRingInPlace(SumRing):
    """The sums of ``gloo::reduce``: in other chunks, and with the content left at members other than the root."""

    def __init__(self, count: int, dtype: torch.dtype, members: int, reduction: str) -> None:
        super().__init__(count, dtype, members, reduction)
        chunk, width = self._chunk, members * self._chunk
        buffer = torch.zeros(members, width, dtype=self._staged.dtype)
        self._left = buffer[:, :count]
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._late: list[tuple[Tensor, Tensor, Tensor]] = []
        for member in range(members if count else 0):
            for index in range(members):
                span = slice(index * chunk, (index + 1) * chunk)
                step = (index - 1 - member) % members
                source = self._sums[step - 1][index] if step else self._staged[member, span]
                self._copies.append((buffer[member, span], source))
            first = (member + 1) % members * chunk
            late = slice(first, min(count, first + self._segment * (self._segments - 2)))
            if members > 1 and late.start < late.stop:
                self._late.append((self._staged[member, late], self._whole[late], buffer[member, late]))

    def left(self, member: int) -> Tensor:
        """Return the final content of ``member`` if it is not the root."""
        return self._left[member].view(self.result.dtype)

    def run(self) -> None:
        """Compute ``result``, and the content left at each member, from the lanes."""
        self._step()
        for total in self._sums:
            self._settle(total)
        for place, source in self._copies:
            place.copy_(source)
        for own, received, place in self._late:
            self._combine(own, received, place)
            self._settle(place)
        if self._divisor:
            self._left.div_(self._divisor)
            self._whole.div_(self._divisor)

    def _cut(self, size: int) -> tuple[int, int]:
        """Return the elements of a segment and the segments of a chunk. ``gloo/reduce.cc``: ``reduce``."""
        total, longest = self._count * size, size * (_SEGMENT_BYTES // size)
        segment = _round_up(min(-(-total // (2 * self._members)), longest), size)
        segments = _round_up(max(-(-total // segment), 2 * self._members), self._members)
        return segment // size, segments // self._members

    def _allocate_sums(self, number: torch.dtype) -> list[Tensor]:
        return list(torch.zeros(self._members - 1, self._members, self._chunk, dtype=number))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _combine(reduction: str, dtype: torch.dtype) -> Combine:
    """Return the operation of one step, ``own`` on the left."""
    if dtype not in _FLOATS and dtype not in _INTEGERS:
        raise NotImplementedError(f"gloo does not reduce values of type {dtype}.")
    simple = dict(_ARITHMETIC)
    if dtype in _INTEGERS:
        simple |= _BITWISE
    if reduction in simple:
        operation = simple[reduction]
        return lambda own, received, total: operation(received, own, out=total)
    if reduction == "MIN":
        return lambda own, received, total: torch.where(received < own, received, own, out=total)
    if reduction == "MAX":
        return lambda own, received, total: torch.where(own < received, received, own, out=total)
    raise NotImplementedError(f"a replay does not know how gloo reduces {dtype} by '{reduction}'.")


_ARITHMETIC: dict[str, Callable[..., Tensor]] = {"SUM": torch.add, "PRODUCT": torch.mul}
_BITWISE: dict[str, Callable[..., Tensor]] = {
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def _settle_half(values: Tensor) -> None:
    torch.copysign(torch.nan_to_num(values, nan=_NAN, posinf=_INF, neginf=-_INF), values, out=values)


def _keep(values: Tensor) -> None:
    """Do nothing: there is nothing to settle."""


# Give NaNs the bits that c10 gives them. Later steps do not depend on these bits, so once at the end is enough.
_SETTLED: dict[torch.dtype, Callable[[Tensor], object]] = {
    torch.bfloat16: partial(torch.nan_to_num_, nan=_NAN, posinf=_INF, neginf=-_INF),
    torch.float16: _settle_half,
}
