"""Compares the calls of a collective's ranks. NCCL compares nothing: it hangs or computes nonsense if they differ.

Each rank announces its call and the calling place to every other rank with its arrival, so that a rank with a different
call can report both lines. These must be equal: the collective, the element type, the reduction, the root, and for any
two ranks the sizes that one gives and the other takes. NCCL knows counts, not shapes, and types as it moves them:
complex numbers are two real ones, and a boolean is a byte.

The messages begin like those of torch's ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` (ProcessGroupWrapper.cpp), which users know.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_OTHER_END = {"send": "recv", "recv": "send"}
_LONGEST = 600  # characters of a place: a message must be written in one piece (PIPE_BUF)


class AnnouncedCall(NamedTuple):
    """A call as announced to another rank: elements given to and taken from that rank, ``elements`` of the tensor."""

    kind: str
    dtype: str
    op: str
    root: int
    elements: int
    gives: int
    takes: int
    place: str

    def __str__(self) -> str:
        op = f" ({self.op})" if self.op else ""
        root = f" {'to' if self.kind in ('reduce', 'gather') else 'from'} rank {self.root}"
        rooted = root if self.root >= 0 and self.kind not in _OTHER_END else ""
        return f"{self.kind}{op} of {self.elements} {self.dtype}{rooted} at {self.place}"


class AgreedCall(NamedTuple):
    """A rank's call of a collective. ``gives`` and ``takes``: for each member, or one number for all."""

    kind: str
    dtype: str
    op: str
    root: int
    elements: int
    gives: tuple[int, ...]
    takes: tuple[int, ...]
    place: str

    def to(self, member: int) -> AnnouncedCall:
        """Return the announcement for the group's member at this position."""
        gives, takes = (each[member] if len(each) > 1 else each[0] for each in (self.gives, self.takes))
        return AnnouncedCall(self.kind, self.dtype, self.op, self.root, self.elements, gives, takes, self.place)


def call(
    kind: str, reads: Sequence[Tensor], writes: Sequence[Tensor], *, size: int, op: str, root: int, place: str,
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
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
    name = "uint8" if real == torch.bool else str(real).removeprefix("torch.")
    return AgreedCall(kind, name, op, root, count, gives, takes, place)


def packed(announced: AnnouncedCall) -> bytes:
    return json.dumps(announced._replace(place=announced.place[-_LONGEST:]), ensure_ascii=False).encode()


def unpacked(data: bytes) -> AnnouncedCall:
    return AnnouncedCall(*json.loads(data))


def differences(own: AnnouncedCall, other: AnnouncedCall) -> list[str]:
    """Return the names of the properties in which two ranks' calls differ."""
    if other.kind != _OTHER_END.get(own.kind, own.kind):
        return ["collective"]
    compared = {"type": "dtype", "reduction": "op", "root": "root"}
    names = [name for name, field in compared.items() if getattr(own, field) != getattr(other, field)]
    return names if (own.gives, own.takes) == (other.takes, other.gives) else [*names, "size"]


def mismatch(left: tuple[int, AnnouncedCall], right: tuple[int, AnnouncedCall], collective: str) -> str:
    """Return the sentence for two ranks whose calls differ. ``collective``: its name."""
    (low, first), (high, second) = sorted([left, right])
    differing = differences(first, second)
    uneven = ""
    if "size" in differing and first.kind == "all_to_all":
        uneven = (
            f", and of these rank {low} gives {first.gives} and takes {first.takes}, "
            f"rank {high} gives {second.gives} and takes {second.takes}"
        )
    return (
        f"Detected mismatch between collectives on ranks {low} and {high} (not the same {', '.join(differing)}): "
        f"rank {low} calls {first}, rank {high} calls {second}{uneven}; {collective}"
    )
