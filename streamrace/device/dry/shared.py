"""Computes a collective's result from the inputs of the ranks of a dry run that run together.

It takes the place of :mod:`.mirror` in groups of which several ranks run. Inputs go through a store, and a rank that
needs another one's waits for it at the moment of issue. So only tensors of the host, and small ones of integers on the
device are exchanged: sizes and objects, which a program reads at once. A rank of the group that does not run is taken
to have the input of the last one before it that runs, or else of the first that runs.
"""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from streamrace.device import collectives
from streamrace.device.collectives import Work
from streamrace.device.dry.mirror import Elsewhere, Mirror, done

_PATIENCE_S = 600.0
_UNKNOWN, _KNOWN = b"?", b"="
_Op: Any = c10d.ReduceOp.RedOpType
_REDUCED: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    _Op.SUM: torch.add,
    _Op.AVG: torch.add,
    _Op.PRODUCT: torch.mul,
    _Op.MIN: torch.minimum,
    _Op.MAX: torch.maximum,
    _Op.BAND: torch.bitwise_and,
    _Op.BOR: torch.bitwise_or,
    _Op.BXOR: torch.bitwise_xor,
}


class SharedMirror(Mirror):
    """One of the ranks ``ranks`` of a group, of which ``running`` run, all of them connected to ``store``.

    ``rank`` is this one's number in the group. All ranks call the same methods in the same order, but for
    :meth:`send`, :meth:`recv`. A method raises :class:`.mirror.Elsewhere` if one of the ranks does not know its input.
    """

    def __init__(self, rank: int, ranks: Sequence[int], running: Sequence[int], store: dist.Store) -> None:
        super().__init__(rank, len(ranks))
        self._me, self._ranks = ranks[rank], ranks
        self._stands = [running[max(0, bisect.bisect_right(running, one) - 1)] for one in ranks]
        self._running = running
        self._store: Any = store  # torch's hints say that it keeps text alone
        self._numbers: Counter[str] = Counter()

    def unknown(self) -> None:
        """Take part in a collective with an unknown input."""
        self._store.set(f"{self._next('')} {self._me}", _UNKNOWN)

    def unknown_message(self, target: int) -> None:
        """Send an unknown message to a rank of the group that runs."""
        self._store.set(self._next(f"{self.rank()}>{target}"), _UNKNOWN)

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        (tensor,) = tensors
        op = opts.reduceOp if opts is not None else _Op.SUM
        kind = op.op if hasattr(op, "op") else op
        tensor.copy_(reduce(_REDUCED[kind], self._of_all(tensor)))
        if kind == _Op.AVG:
            tensor.div_(self.size(), rounding_mode=None if tensor.is_floating_point() else "trunc")
        return done(tensors)

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        if opts.rootRank == self.rank():
            return self.allreduce(tensors, opts)
        self._of_all(tensors[0])
        return done(tensors)

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        for tensor in tensors:
            tensor.copy_(self._of_all(tensor)[opts.rootRank])
        return done(tensors)

    def _allgather_base(self, output: Tensor, source: Tensor, opts: Any = None) -> Work:
        output.view(self.size(), -1).copy_(torch.stack([one.flatten() for one in self._of_all(source)]))
        return done([output])

    def allgather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None) -> Work:
        for output, given in zip(outputs[0], self._of_all(inputs[0]), strict=True):
            output.copy_(given)
        return done(outputs[0])

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any) -> Work:
        given = self._of_all(inputs[0])
        for output, one in zip(outputs[0] if outputs else (), given, strict=False):
            output.copy_(one)
        return done(outputs[0] if outputs else ())

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int) -> Work:
        if self._ranks[dst] in self._running:
            self._store.set(self._next(f"{self.rank()}>{dst}"), _KNOWN + _bytes(tensors[0]))
        return done(tensors)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int) -> Work:
        if self._ranks[src] not in self._running:
            return super().recv(tensors, src, tag)
        (tensor,) = tensors
        tensor.copy_(_like(tensor, self._taken(self._next(f"{src}>{self.rank()}"), self._ranks[src], "a message")))
        return done(tensors)

    def _reduce_scatter_base(self, output: Tensor, source: Tensor, opts: Any) -> Work:
        self.unknown()
        raise Elsewhere("a reduce-scatter among ranks that run together")

    def reduce_scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any) -> Work:
        return self._reduce_scatter_base(outputs[0], outputs[0], opts)

    def scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any) -> Work:
        self.unknown()
        raise Elsewhere("a scatter among ranks that run together")

    def alltoall_base(self, output: Tensor, source: Tensor, out: Any, into: Any, opts: Any = None) -> Work:
        self.unknown()
        raise Elsewhere("an all-to-all among ranks that run together")

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Work:
        return self.alltoall_base(outputs[0], inputs[0], (), ())

    def barrier(self, opts: Any = None) -> Work:
        self._of_all(torch.zeros(1))
        return done([])

    def _of_all(self, tensor: Tensor) -> list[Tensor]:
        """Return all ranks' inputs, of this one's shape."""
        key = self._next("")
        self._store.set(f"{key} {self._me}", _KNOWN + _bytes(tensor))
        given = {rank: self._taken(f"{key} {rank}", rank, "a collective") for rank in self._running}
        return [_like(tensor, given[stands]) for stands in self._stands]

    def _taken(self, key: str, sender: int, what: str) -> bytes:
        until, ended = time.monotonic() + _PATIENCE_S, False
        while not self._store.check([key]):
            if ended or time.monotonic() > until:
                raise RuntimeError(
                    f"streamrace: rank {self._me} waits for a value of rank {sender} in {what} that rank {sender} does "
                    f"not make{', as it has ended' if ended else ''}"
                )
            ended = collectives.attend(sender)
        data: bytes = self._store.get(key)
        if data[:1] == _UNKNOWN:
            raise Elsewhere(what)
        return data[1:]

    def _next(self, what: str) -> str:
        self._numbers[what] += 1
        return f"{what} {self._numbers[what]}"


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _like(tensor: Tensor, data: bytes) -> Tensor:
    with torch.device("cpu"):
        if not data:
            return torch.empty_like(tensor)
        return torch.frombuffer(bytearray(data), dtype=tensor.dtype).view(tensor.shape)
