"""Computes a collective's result if all ranks have the same input as this one: replaces gloo in a dry run.

It has the methods of gloo's group that :mod:`streamrace.device.nccl` and ``torch.distributed`` call. A value that
depends on another rank's data (such as a receive) raises :class:`Elsewhere`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from streamrace.device.collectives import Work

_Op: Any = c10d.ReduceOp.RedOpType


class Elsewhere(RuntimeError):
    """Raised when a value is known to another rank only. ``subject``: the operation that yields it in a live run."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"streamrace: {subject} has no value in a dry run, which runs one rank only")


class Mirror:
    """Rank ``rank`` of ``size`` ranks with equal inputs. All tensors are the host's."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        for tensor in tensors:
            tensor.copy_(self._reduced(tensor, opts.reduceOp if opts is not None else _Op.SUM))
        return done(tensors)

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        if opts.rootRank == self._rank:
            self.allreduce(tensors, opts)
        return done(tensors)

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        if opts.rootRank != self._rank:
            raise Elsewhere("a broadcast from another rank")
        return done(tensors)

    def _allgather_base(self, output: Tensor, source: Tensor, opts: Any = None) -> Work:
        output.view(self._size, -1).copy_(source.reshape(1, -1))
        return done([output])

    def allgather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None) -> Work:
        for output in outputs[0]:
            if output.numel() != inputs[0].numel():
                raise Elsewhere("an all-gather of tensors of different sizes")
            output.copy_(inputs[0])
        return done(outputs[0])

    def _reduce_scatter_base(self, output: Tensor, source: Tensor, opts: Any) -> Work:
        part = source.reshape(self._size, -1)[self._rank]
        output.view(-1).copy_(self._reduced(part, opts.reduceOp))
        return done([output])

    def reduce_scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any) -> Work:
        outputs[0].copy_(self._reduced(inputs[0][self._rank], opts.reduceOp))
        return done(outputs)

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any) -> Work:
        return self.allgather(outputs, inputs) if outputs else done([])

    def scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any) -> Work:
        if opts.rootRank != self._rank:
            raise Elsewhere("a scatter from another rank")
        outputs[0].copy_(inputs[0][self._rank])
        return done(outputs)

    def alltoall_base(
        self, output: Tensor, source: Tensor, out: Sequence[int], into: Sequence[int], opts: Any = None
    ) -> Work:
        """Copy this rank's own part to each place of the output, as every rank sends the same."""
        parts = source.split(list(into)) if into else source.chunk(self._size)
        places = output.split(list(out)) if out else output.chunk(self._size)
        if any(len(place) != len(parts[self._rank]) for place in places):
            raise Elsewhere("an all-to-all in which ranks send different sizes")
        for place in places:
            place.copy_(parts[self._rank])
        return done([output])

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Work:
        for output in outputs:
            if output.numel() != inputs[self._rank].numel():
                raise Elsewhere("an all-to-all in which ranks send different sizes")
            output.copy_(inputs[self._rank])
        return done(outputs)

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int) -> Work:
        return done(tensors)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int) -> Work:
        raise Elsewhere("a receive from another rank")

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> Work:
        raise Elsewhere("a receive from another rank")

    def barrier(self, opts: Any = None) -> Work:
        return done([])

    def _reduced(self, tensor: Tensor, op: Any) -> Tensor:
        kind = op.op if hasattr(op, "op") else op
        if kind in (_Op.SUM, _Op.AVG):
            return tensor * self._size if kind == _Op.SUM else tensor
        if kind == _Op.PRODUCT:
            return tensor**self._size
        if kind == _Op.BXOR:
            return tensor if self._size % 2 else torch.zeros_like(tensor)
        return tensor  # minimum, maximum, bitwise and, bitwise or of equal values


def done(result: Sequence[Tensor]) -> Work:
    """Return the work of a collective that is done."""
    return Work(None, result, ())
