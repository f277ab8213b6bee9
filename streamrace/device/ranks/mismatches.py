"""Announces a rank's calls of collectives to the others, with the calling place, and reports two that differ.

The messages begin like those of torch's ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` (ProcessGroupWrapper.cpp), which users know.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from streamrace.trace.calls import AgreedCall, PairCall, differences

_LONGEST = 600  # characters of a place: a message must be written in one piece (PIPE_BUF)


class AnnouncedCall(NamedTuple):
    """A call as announced to another rank, and where it was made."""

    call: PairCall
    place: str

    def __str__(self) -> str:
        return f"{self.call} at {self.place}"


def call(
    kind: str, reads: Sequence[Tensor], writes: Sequence[Tensor], *, size: int, op: str, root: int, name: str,
    joined: bool, splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
) -> AgreedCall:  # fmt: skip
    """Create a rank's call in a group of ``size``. ``splits``: bytes of its output and of its input for each rank.

    Without splits all parts have the same size.
    """
    inputs, outputs = list(reads), list(writes)
    some = (inputs or outputs)[0].dtype
    real = some.to_real() if some.is_complex else some

    def counts(of: list[Tensor]) -> tuple[int, ...]:
        return tuple(tensor.nbytes // real.itemsize for tensor in of)

    def each(of: list[Tensor]) -> tuple[int, ...]:
        return counts(of) if len(of) > 1 else tuple(count // size for count in counts(of))

    count = sum(counts(inputs or outputs))
    gives: tuple[int, ...] = (count,)
    takes = gives
    if kind == "all_gather":
        gives, takes = counts(inputs), each(outputs)
    elif kind == "reduce_scatter":
        gives, takes = each(inputs), counts(outputs)
    elif kind == "scatter":  # only the root has a list
        count = sum(counts(outputs))
        gives = takes = (count,)
    elif splits is not None:
        takes, gives = (
            tuple(nbytes // real.itemsize for nbytes in sizes) or each(tensors)
            for sizes, tensors in zip(splits, (outputs, inputs), strict=True)
        )
    dtype = "uint8" if real == torch.bool else str(real).removeprefix("torch.")
    return AgreedCall(kind, dtype, op, root, count, gives, takes, name, joined)


def packed(announced: AnnouncedCall) -> bytes:
    return json.dumps([*announced.call, announced.place[-_LONGEST:]], ensure_ascii=False).encode()


def unpacked(data: bytes) -> AnnouncedCall:
    *call, place = json.loads(data)
    return AnnouncedCall(PairCall(*call), place)


def mismatch(left: tuple[int, AnnouncedCall], right: tuple[int, AnnouncedCall], collective: str) -> str:
    """Return the sentence for two ranks whose calls differ. ``collective``: its name."""
    (low, first), (high, second) = sorted([left, right])
    differing = differences(first.call, second.call)
    uneven = ""
    if "size" in differing and first.call.kind == "all_to_all":
        uneven = (
            f", and of these rank {low} gives {first.call.gives} and takes {first.call.takes}, "
            f"rank {high} gives {second.call.gives} and takes {second.call.takes}"
        )
    return (
        f"Detected mismatch between collectives on ranks {low} and {high} (not the same {', '.join(differing)}): "
        f"rank {low} calls {first}, rank {high} calls {second}{uneven}; {collective}"
    )
