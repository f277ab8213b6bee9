"""Collects gradients from autograd, and reduces them for the optimizer of this rank.

Each micro-batch's gradients land in a flat buffer, and are reduced on a lane of their own as soon as a piece is
complete; at the accumulation boundary the sum goes on to the level of the optimizer state (PaRO, arXiv 2310.06003,
section 3.2). Gradients are kept in the dtype of the computation, as the paper counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from streamrace.scenarios.sharding.buffers import Buffers
from streamrace.scenarios.sharding.lanes import LaneOrder
from streamrace.scenarios.sharding.levels import Levels
from streamrace.scenarios.sharding.strategy import Level, Strategy
from streamrace.scenarios.sharding.synchronisations import Sync
from streamrace.scenarios.sharding.units import Part, Piece


class Gradients:
    """Collects and reduces gradients. ``accumulation``: micro-batches in a step."""

    def __init__(
        self,
        pieces: Sequence[Piece],
        strategy: Strategy,
        levels: Levels,
        order: LaneOrder,
        dtype: torch.dtype,
        accumulation: int,
    ) -> None:
        self._pieces = [piece for piece in pieces if piece.trained]
        self._kept, self._wanted = strategy.gradients, strategy.state
        self._levels, self._order, self._accumulation = levels, order, accumulation
        self._part = 1 / levels.layout.ranks  # of each rank in the mean, as in torch's DDP
        self.lane = order.streams.new("reduce")
        self._buffers = Buffers(order.streams, order.streams.current(), dtype, "gradients")
        self._micro_batch = 0
        streams = order.streams
        for piece in self._pieces:
            start, end = levels.layout.interval(self._kept, piece.length)
            piece.gradient = torch.zeros(end - start, dtype=dtype, device=streams.device)
            streams.label(piece.gradient, "gradient", piece.name)
            for part in piece.parts:
                part.parameter.register_post_accumulate_grad_hook(self._taker(piece, part))

    @property
    def first(self) -> bool:
        """Check whether this is the first micro-batch of a step."""
        return self._micro_batch == 0

    def begin(self) -> None:
        """Begin a backward pass."""
        for piece in self._pieces:
            piece.waiting = {part.name for part in piece.parts}

    def end(self) -> None:
        """End a backward pass: parameters without a gradient get zeros."""
        for piece in reversed(self._pieces):
            if piece.waiting:
                for part in piece.parts:
                    if part.name in piece.waiting:
                        self._take(piece, part, None)
        self._micro_batch = (self._micro_batch + 1) % self._accumulation

    def _taker(self, piece: Piece, part: Part) -> Callable[[Tensor], None]:
        def take(parameter: Tensor) -> None:
            self._take(piece, part, parameter.grad)
            parameter.grad = None

        return take

    def _take(self, piece: Piece, part: Part, gradient: Tensor | None) -> None:
        """Take one parameter's gradient, on the lane that computed it."""
        to = self._landing(piece)[part.start : part.start + part.numel]
        adds = self._kept is Level.N and not self.first
        if gradient is None:
            if not adds:
                to.zero_()
        elif self._kept is not Level.N:
            torch.mul(gradient.reshape(-1), self._part, out=to)
        elif adds:
            to.add_(gradient.reshape(-1))
        else:
            to.copy_(gradient.reshape(-1))
        piece.waiting.discard(part.name)
        if not piece.waiting:
            self._reduce(piece)

    def _landing(self, piece: Piece) -> Tensor:
        if self._kept is Level.N:
            assert piece.gradient is not None
            return piece.gradient
        if piece.landing is None:
            piece.landing, used = self._buffers.take(piece.length)
            if used is not None:
                self._order.wait(Sync.REDUCE_BEFORE_GRADIENT, used)
            piece.landing[piece.numel :].zero_()
        return piece.landing

    def _reduce(self, piece: Piece) -> None:
        order, last = self._order, self._micro_batch == self._accumulation - 1
        if self._kept is Level.N and not last:
            return
        if self._kept is Level.N and piece.gradient is not None:
            piece.gradient.mul_(self._part)
        produced = order.mark()
        with order.streams.on(self.lane):
            order.wait(Sync.GRADIENT_BEFORE_REDUCE, produced)
            if self._kept is not Level.N:
                self._keep(piece)
            if last:
                piece.ready = self._deliver(piece)
                piece.reduced = order.mark()

    def _keep(self, piece: Piece) -> None:
        """Reduce this micro-batch's gradients to the part that this rank keeps."""
        assert piece.landing is not None
        assert piece.gradient is not None
        if self.first:
            self._levels.scatter(piece.gradient, piece.landing, Level.N, self._kept)
        else:
            more = torch.empty_like(piece.gradient)
            self._levels.scatter(more, piece.landing, Level.N, self._kept)
            piece.gradient.add_(more)
        self._buffers.give(piece.landing, self._order.mark())
        piece.landing = None

    def _deliver(self, piece: Piece) -> Tensor:
        """Return the gradients of all ranks and micro-batches, as far as this rank's optimizer needs them."""
        kept, wanted, levels = self._kept, self._wanted, self._levels
        assert piece.gradient is not None
        if kept is wanted:
            levels.sum(piece.gradient, wanted)
            return piece.gradient
        start, end = levels.layout.interval(wanted, piece.length)
        ready = torch.empty(end - start, dtype=piece.gradient.dtype, device=piece.gradient.device)
        self._order.streams.label(ready, "buffer", f"reduced {piece.name}")
        levels.scatter(ready, piece.gradient, kept, wanted)
        levels.sum(ready, wanted)
        return ready
