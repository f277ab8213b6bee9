"""Defines a rank's call of a collective, as far as all ranks of its group must agree on it.

NCCL compares nothing: ranks whose calls differ wait for ever, or compute nonsense. These must be equal: the collective,
the element type, the reduction, the root, and for any two ranks the sizes that one gives and the other takes. NCCL
knows counts, not shapes, and types as it moves them: complex numbers are two real ones, and a boolean is a byte.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import NamedTuple

IN_BACKWARD = "backward"  # the name of a call without a caller in Python: autograd's thread made it, as for DDP
_OF_SEVERAL = {"barrier", "monitored_barrier"}  # functions of torch.distributed that make another collective
_OTHER_END = {"send": "recv", "recv": "send"}


class PairCall(NamedTuple):
    """A call as it concerns two ranks: elements given to and taken from the other, ``elements`` of the tensor."""

    kind: str
    dtype: str
    op: str
    root: int
    elements: int
    gives: int
    takes: int

    def __str__(self) -> str:
        op = f" ({self.op})" if self.op else ""
        root = f" {'to' if self.kind in ('reduce', 'gather') else 'from'} rank {self.root}"
        rooted = root if self.root >= 0 and self.kind not in _OTHER_END else ""
        return f"{self.kind}{op} of {self.elements} {self.dtype}{rooted}"


class AgreedCall(NamedTuple):
    """A rank's call of a collective. ``gives`` and ``takes``: elements for each member, or one number for all.

    ``name``: the function of torch.distributed that the program called (barrier, all_gather_object, ...), which may
    make several collectives or another one; empty if it called none. ``joined``: issued as one with the rank's
    collective before it, between ncclGroupStart and ncclGroupEnd.
    """

    kind: str
    dtype: str
    op: str
    root: int
    elements: int
    gives: tuple[int, ...]
    takes: tuple[int, ...]
    name: str = ""
    joined: bool = False

    def to(self, member: int) -> PairCall:
        """Return the call as it concerns the group's member at this position."""
        gives, takes = (each[member] if len(each) > 1 else each[0] for each in (self.gives, self.takes))
        return PairCall(self.kind, self.dtype, self.op, self.root, self.elements, gives, takes)

    def text(self) -> str:
        """Return the call as a trace has it."""
        return _text(self)

    def __str__(self) -> str:
        if self.name == IN_BACKWARD:
            return f"{self.to(0)} of a backward pass"
        return f"{self.name}'s {self.to(0)}" if self.name in _OF_SEVERAL or "object" in self.name else str(self.to(0))


@lru_cache(maxsize=4096)
def _text(call: AgreedCall) -> str:
    return json.dumps(call, ensure_ascii=False)


@lru_cache(maxsize=4096)
def parsed(text: str) -> AgreedCall | None:
    """Return the call of a trace's text; None if there is none: another release wrote it, or it is damaged."""
    try:
        kind, dtype, op, root, elements, gives, takes, name, joined = json.loads(text)
        call = AgreedCall(
            str(kind), str(dtype), str(op), int(root), int(elements), tuple(map(int, gives)), tuple(map(int, takes)),
            str(name), bool(joined),
        )  # fmt: skip
    except (ValueError, TypeError):
        return None
    return call if call.gives and call.takes else None


def differences(own: PairCall, other: PairCall) -> list[str]:
    """Return the names of the properties in which two ranks' calls differ."""
    if other.kind != _OTHER_END.get(own.kind, own.kind):
        return ["collective"]
    compared = {"type": "dtype", "reduction": "op", "root": "root"}
    names = [name for name, field in compared.items() if getattr(own, field) != getattr(other, field)]
    return names if (own.gives, own.takes) == (other.takes, other.gives) else [*names, "size"]
