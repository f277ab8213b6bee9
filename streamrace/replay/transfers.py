"""Carries out a collective of the simulated GPU in this process, as :mod:`streamrace.device.nccl` does.

In a live run each rank copies its inputs when the collective starts, gives the copies to gloo, and copies the result to
its outputs at the end. A rank that reads nothing (in a broadcast) or writes nothing (in a reduce) still takes part in
gloo's transfer, with memory of its own: so also here, as :class:`streamrace.replay.exchange.ReplayedExchange` expects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from streamrace.replay.exchange import ReplayedExchange
from streamrace.replay.work import Action
from streamrace.trace.records import Transfer, View


@dataclass
class _Member:
    """A member. ``reads``, ``writes``: as recorded. ``given``, ``taken``: gloo's, of other memory if different."""

    reads: list[Tensor]
    writes: list[Tensor]
    given: list[Tensor]
    taken: list[Tensor]

    @classmethod
    def of(cls, kernel: str, reads: list[Tensor], writes: list[Tensor], *, root: bool, own: bool) -> _Member:
        """Create a member. ``own``: the transfer may not use the recorded memory itself."""
        if kernel == "all_to_all":  # gloo exchanges bytes, and one tensor per member
            reads, writes = [_bytes(tensor) for tensor in reads], [_bytes(tensor) for tensor in writes]
            inputs, outputs = ([torch.empty(sum(map(len, tensors)), dtype=torch.uint8)] for tensors in (reads, writes))
            return cls(reads, writes, inputs, outputs)
        reads, writes = [_numbers(tensor) for tensor in reads], [_numbers(tensor) for tensor in writes]
        inputs = [torch.empty_like(tensor) for tensor in reads] if own else reads
        outputs = [torch.empty_like(tensor) for tensor in writes] if own else writes
        if (kernel == "broadcast" and root) or (kernel == "reduce" and not root):
            outputs = [torch.empty_like(tensor) for tensor in inputs]
        return cls(reads, writes, inputs, outputs)


class DeviceExchange:
    """A recorded collective of all its members; used like :class:`ReplayedExchange`, by member. Raises ValueError."""

    def __init__(
        self,
        kernel: str,
        transfers: Sequence[Transfer],
        tensors: Callable[[int, Sequence[View]], list[Tensor]],
        root: int,
    ) -> None:
        """Bind the collective. ``tensors``: returns a member's tensors for its views. ``root``: a member, or -1."""
        first = transfers[0]
        self._scale = first.scale
        self._divisor = len(transfers) if first.reduction == "AVG" else 0
        own = self._scale is not None or bool(self._divisor)
        self._members = [
            _Member.of(kernel, tensors(at, transfer.inputs), tensors(at, transfer.outputs), root=at == root, own=own)
            for at, transfer in enumerate(transfers)
        ]
        reduction = "SUM" if first.reduction == "AVG" else first.reduction
        splits = None
        if any(transfer.splits is not None for transfer in transfers):
            splits = [transfer.splits or ((), ()) for transfer in transfers]
        inputs, outputs = [member.given for member in self._members], [member.taken for member in self._members]
        self._exchange = ReplayedExchange(kernel, inputs, outputs, reduction=reduction, root=root, splits=splits)

    def read(self, member: int) -> Action:
        """Return the effect at the member's start."""
        buffers, take = self._members[member], self._exchange.read(member)
        pairs, scale = _pairs(buffers.given, buffers.reads), self._scale
        if not pairs:
            return take
        factor = torch.tensor(scale, dtype=buffers.given[0].dtype) if scale is not None else None

        def read() -> None:
            for place, source in pairs:
                place.copy_(source if factor is None else source * factor)
            take()

        return read

    def write(self, member: int) -> Action:
        """Return the effect at the member's end."""
        buffers, give = self._members[member], self._exchange.write(member)
        pairs, divisor = _pairs(buffers.taken, buffers.writes), self._divisor
        if not pairs:
            return give

        def write() -> None:
            give()
            for result, place in pairs:
                place.copy_(torch.div(result, divisor, rounding_mode="trunc") if divisor else result)

        return write


def _pairs(inner: list[Tensor], recorded: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Pair gloo's tensors with the recorded memory that must be copied; empty if they are the same tensors."""
    if inner is recorded or not recorded:
        return []
    if len(inner) == len(recorded):
        return list(zip(inner, recorded, strict=True))
    return list(zip(inner[0].split([len(piece) for piece in recorded]), recorded, strict=True))


def _numbers(tensor: Tensor) -> Tensor:
    """View booleans as bytes: gloo does not support booleans."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
