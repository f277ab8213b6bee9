"""Runs the optimizer: each rank updates the part whose state it has, in fp32.

Any torch optimizer is possible that treats each number separately (SGD, Adam, AdamW): it gets flat parts, not the
model's own parameters. AdamW is torch's fused one by default, as the plain one reads its step counter, which would wait
for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from streamrace.scenarios.sharding.lanes import LaneOrder
from streamrace.scenarios.sharding.levels import Levels
from streamrace.scenarios.sharding.parameters import Parameters
from streamrace.scenarios.sharding.strategy import Level
from streamrace.scenarios.sharding.synchronisations import Sync
from streamrace.scenarios.sharding.units import Piece

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Updates:
    """Updates parameters. ``level``: of the optimizer state. ``clip``: largest norm of all gradients (None: any)."""

    def __init__(
        self,
        pieces: Sequence[Piece],
        level: Level,
        levels: Levels,
        order: LaneOrder,
        parameters: Parameters,
        make: MakeOptimizer,
        clip: float | None,
    ) -> None:
        self._pieces = [piece for piece in pieces if piece.trained]
        self._level, self._levels, self._order = level, levels, order
        self._parameters, self._clip = parameters, clip
        self.optimizer = make([_master(piece) for piece in self._pieces])
        self._labelled = False

    def step(self) -> Tensor | None:
        """Update with the reduced gradients. Returns their norm, on the device, where gradients are clipped."""
        compute = self._order.streams.current()
        for piece in self._pieces:
            self._order.wait(Sync.REDUCE_BEFORE_UPDATE, piece.reduced)
            assert piece.ready is not None
            self._order.streams.keep(piece.ready, compute)
            _master(piece).grad = piece.ready.float()
            piece.ready = None
        norm = None if self._clip is None else self._clipped(self._clip)
        self.optimizer.step()
        for piece in self._pieces:
            master = _master(piece)
            master.grad = None
            self._parameters.take_over(piece, master.detach().to(piece.shard.dtype), self._level)
        if not self._labelled:
            self._label()
        return norm

    def _clipped(self, largest: float) -> Tensor:
        """Clip as ``torch.nn.utils.clip_grad_norm_`` does, over the parts of all ranks."""
        gradients = [_gradient(piece) for piece in self._pieces]
        squares = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        self._levels.total(squares, self._level)
        norm = squares.sqrt()
        factor = (largest / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)
        return norm

    def _label(self) -> None:
        """Label the optimizer's state: Adam's moments are created in the first step."""
        self._labelled = True
        for piece in self._pieces:
            for kind, value in self.optimizer.state.get(_master(piece), {}).items():
                if isinstance(value, Tensor) and value.dim():
                    self._order.streams.label(value, "optimizer", f"{kind} of {piece.name}")


def _master(piece: Piece) -> nn.Parameter:
    assert piece.master is not None
    return piece.master


def _gradient(piece: Piece) -> Tensor:
    gradient = _master(piece).grad
    assert gradient is not None
    return gradient
