"""What the ranks of a collective have to agree on: NCCL compares nothing, and hangs or gives nonsense else.

Each rank says with its arrival what it calls, and from where, to every other one, so who meets another call can tell
both lines. What has to be the same: the collective, the element type, the reduction, the root, and of each two ranks
what one gives and the other takes. NCCL knows counts, not shapes, and types as it moves them: complex numbers are two
real ones, and a boolean is a byte.

The words begin as those of torch's ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` (ProcessGroupWrapper.cpp), as users know them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_OTHER_END = {"send": "recv", "recv": "send"}
_LONGEST = 600  # characters of a place: a message is written in one piece (PIPE_BUF)


class Said(NamedTuple):
    """What one rank says to another: to give it so many elements and take so many. ``elements``: of its tensor."""

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
    """A rank's call of a collective. ``gives`` and ``takes``: for each member; one number: the same for all."""

    kind: str
    dtype: str
    op: str
    root: int
    elements: int
    gives: tuple[int, ...]
    takes: tuple[int, ...]
    place: str

    def to(self, member: int) -> Said:
        """What is said to the group's member at this position."""
        gives, takes = (each[member] if len(each) > 1 else each[0] for each in (self.gives, self.takes))
        return Said(self.kind, self.dtype, self.op, self.root, self.elements, gives, takes, self.place)


def call(
    kind: str, reads: Sequence[Tensor], writes: Sequence[Tensor], *, size: int, op: str, root: int, place: str,
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
) -> AgreedCall:  # fmt: skip
    """What a rank calls in a group of ``size``. ``splits``: bytes of its output and of its input for each rank.

    Without splits all parts are of one size.
    """
    given, taken = list(reads), list(writes)
    some = (given or taken)[0].dtype
    real = some.to_real() if some.is_complex else some

    def counts(of: list[Tensor]) -> tuple[int, ...]:
        return tuple(one.nbytes // real.itemsize for one in of)

    def each(of: list[Tensor]) -> tuple[int, ...]:
        return counts(of) if len(of) > 1 else tuple(one // size for one in counts(of))

    count = sum(counts(given or taken))
    gives: tuple[int, ...] = (count,)
    takes = gives
    if kind == "all_gather":
        gives, takes = counts(given), each(taken)
    elif kind == "reduce_scatter":
        gives, takes = each(given), counts(taken)
    elif kind == "scatter":  # the root alone has a list
        count = sum(counts(taken))
        gives = takes = (count,)
    elif splits is not None:
        takes, gives = (
            tuple(one // real.itemsize for one in of) or each(whole)
            for of, whole in zip(splits, (taken, given), strict=True)
        )
    name = "uint8" if real == torch.bool else str(real).removeprefix("torch.")
    return AgreedCall(kind, name, op, root, count, gives, takes, place)


def packed(said: Said) -> bytes:
    return json.dumps(said._replace(place=said.place[-_LONGEST:]), ensure_ascii=False).encode()


def unpacked(data: bytes) -> Said:
    return Said(*json.loads(data))


def differences(mine: Said, theirs: Said) -> list[str]:
    """What two ranks do not have in common."""
    if theirs.kind != _OTHER_END.get(mine.kind, mine.kind):
        return ["collective"]
    compared = {"type": "dtype", "reduction": "op", "root": "root"}
    found = [name for name, field in compared.items() if getattr(mine, field) != getattr(theirs, field)]
    return found if (mine.gives, mine.takes) == (theirs.takes, theirs.gives) else [*found, "size"]


def mismatch(one: tuple[int, Said], other: tuple[int, Said], which: str) -> str:
    """The sentence for two ranks whose calls differ. ``which`` collective it is."""
    (low, first), (high, second) = sorted([one, other])
    differing = differences(first, second)
    uneven = ""
    if "size" in differing and first.kind == "all_to_all":
        uneven = (
            f", and of these rank {low} gives {first.gives} and takes {first.takes}, "
            f"rank {high} gives {second.gives} and takes {second.takes}"
        )
    return (
        f"Detected mismatch between collectives on ranks {low} and {high} (not the same {', '.join(differing)}): "
        f"rank {low} calls {first}, rank {high} calls {second}{uneven}; {which}"
    )
