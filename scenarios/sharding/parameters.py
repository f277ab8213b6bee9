"""Gathers parameters where they are computed with, and keeps them in shards otherwise.

A unit's values are gathered on a lane of their own, one unit ahead of the computation, into buffers that take turns.
Views that autograd saves for the backward pass are not kept: only their places are, and they are found again in the
values gathered for the backward pass (``torch.autograd.graph.saved_tensors_hooks``; FSDP resizes storages for the same
end, which no trace would see).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from streamrace.scenarios.sharding.buffers import Buffers
from streamrace.scenarios.sharding.lanes import LaneOrder
from streamrace.scenarios.sharding.levels import Levels
from streamrace.scenarios.sharding.strategy import Level
from streamrace.scenarios.sharding.synchronisations import Sync
from streamrace.scenarios.sharding.units import Piece, Unit


class _Place(NamedTuple):
    """The place of a saved view of a piece's values."""

    piece: Piece
    offset: int
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class Parameters:
    """Gathers units and releases them. ``level``: how far the parameters are sharded."""

    def __init__(
        self, units: Sequence[Unit], level: Level, levels: Levels, order: LaneOrder, dtype: torch.dtype
    ) -> None:
        self._level, self._levels, self._order = level, levels, order
        self.lane = order.streams.new("gather")
        self._buffers = Buffers(order.streams, self.lane, dtype, "parameters")
        self._next = dict(pairwise(units))
        self._previous = {follower: unit for unit, follower in self._next.items()}
        self._fetched: dict[Unit, bool] = {}  # gathered, or about to be: True once the compute lane has waited for it
        self._pieces: dict[int, Piece] = {}  # by the storage of their whole values
        self.listener: Callable[[Piece], None] | None = None  # called with pieces that are about to be used
        self._nothing = torch.empty(0, dtype=dtype, device=order.streams.device)
        for unit in units:
            for piece in unit.pieces:
                if level is Level.N:
                    piece.whole = piece.shard
                self._bind(piece)

    def use(self, unit: Unit, *, backward: bool) -> None:
        """Make the unit's values available to the current lane, and start to gather those of the next unit."""
        if self._level is Level.N:
            for piece in unit.pieces:
                if piece.arrived is not None:  # by the last step's all-gather
                    self._order.wait(Sync.GATHER_BEFORE_USE, piece.arrived)
                    piece.arrived = None
        else:
            self._fetch(unit)
            self._await(unit)
            ahead = (self._previous if backward else self._next).get(unit)
            if ahead is not None:
                self._fetch(ahead)
        if self.listener is not None:
            for piece in unit.pieces:
                self.listener(piece)

    def release(self, unit: Unit) -> None:
        """Release the unit's values: the current lane has been given all the work that needs them."""
        if unit not in self._fetched:
            return
        self._await(unit)  # a unit may be fetched in vain: its buffer is not free before the values have arrived
        del self._fetched[unit]
        mark = self._order.mark()
        for piece in unit.pieces:
            assert piece.whole is not None
            del self._pieces[_storage(piece.whole)]
            self._buffers.give(piece.whole, mark)
            piece.whole = None
            self._bind(piece)

    def release_all(self) -> None:
        for unit in list(self._fetched):
            self.release(unit)

    def saving(self) -> AbstractContextManager[None]:
        """Make autograd keep places instead of gathered values, inside this context."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def take_over(self, piece: Piece, values: Tensor, level: Level) -> None:
        """Take over the optimizer's new values, which this rank has at ``level``, from the current lane."""
        streams = self._order.streams
        if level is self._level:
            piece.shard.copy_(values)
            piece.updated = self._order.mark()
            return
        updated = self._order.mark()
        with streams.on(self.lane):
            self._order.wait(Sync.UPDATE_BEFORE_GATHER, updated)
            self._levels.gather(piece.shard, values, level, self._level)
            streams.keep(values, self.lane)
            if self._level is Level.N:
                piece.arrived = self._order.mark()

    def _fetch(self, unit: Unit) -> None:
        if unit in self._fetched:
            return
        self._fetched[unit] = False
        with self._order.streams.on(self.lane):
            for piece in unit.pieces:
                whole, used = self._buffers.take(piece.length)
                if used is not None:
                    self._order.wait(Sync.USE_BEFORE_GATHER, used)
                if piece.updated is not None:
                    self._order.wait(Sync.UPDATE_BEFORE_GATHER, piece.updated)
                    piece.updated = None
                self._levels.gather(whole, piece.shard, self._level, Level.N)
                piece.whole, piece.arrived = whole, self._order.mark()
                self._pieces[_storage(whole)] = piece
                self._bind(piece)

    def _await(self, unit: Unit) -> None:
        if not self._fetched[unit]:
            self._fetched[unit] = True
            for piece in unit.pieces:
                self._order.wait(Sync.GATHER_BEFORE_USE, piece.arrived)

    def _bind(self, piece: Piece) -> None:
        """Point the module's parameters to the current values."""
        for part in piece.parts:
            if piece.whole is None:
                part.parameter.data = self._nothing
            else:
                part.parameter.data = piece.whole[part.start : part.start + part.numel].view(part.shape)

    def _pack(self, tensor: Tensor) -> Tensor | _Place:
        piece = self._pieces.get(_storage(tensor))
        if piece is None:
            return tensor
        return _Place(piece, int(tensor.storage_offset()), tensor.shape, tensor.stride(), tensor.dtype)

    def _unpack(self, saved: Tensor | _Place) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        assert saved.piece.whole is not None
        return saved.piece.whole.as_strided(saved.size, saved.stride, saved.offset)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
