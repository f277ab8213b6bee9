"""Collectives of a dry run: every other rank does what this one does, at the same time.

In data-parallel training all ranks run the same program on data of the same shape. So a collective starts when
this rank arrives, and what the others bring is what this one brings, where that is known.

Departure from hardware: ranks that are slower than others do not exist. A live run has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from repro.accelerator.collectives import Call, Carried, SimulatedProcessGroup
from repro.accelerator.dry.kernels import known, small
from repro.accelerator.dry.memory import REAL, DryBlock
from repro.accelerator.memory import Block

_REDUCTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "SUM": lambda value, ranks: value * ranks,
    "AVG": lambda value, ranks: value,
    "MAX": lambda value, ranks: value,
    "MIN": lambda value, ranks: value,
}


class MirroredProcessGroup(SimulatedProcessGroup):
    """One process group, of which one rank is there."""

    def _carrier(self, store: dist.Store, timeout: timedelta) -> Any:
        return None

    def _awaited(self, members: tuple[int, ...]) -> tuple[int, ...]:
        return (self._device.rank,)

    def _carried(
        self, carried: Carried, call: Call, read_from: list[Tensor], write_to: list[Tensor], blocks: list[Block]
    ) -> Carried:
        device = self._device
        memory = device.memory
        written = [memory.block_of(tensor) for tensor in write_to]
        values: Sequence[Tensor] | None = None
        if known(blocks[: len(read_from)]) and small(written) and sum(one.nbytes for one in read_from) <= REAL:
            values = self._values(carried, read_from, write_to)
        if values is not None:
            for tensor, value in zip(write_to, values, strict=True):
                tensor.copy_(value.reshape(tensor.shape))
        for block in written:
            assert isinstance(block, DryBlock)
            block.known = values is not None and block.nbytes <= REAL
        return carried

    def _values(self, carried: Carried, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Sequence[Tensor] | None:
        """What comes out where every member brings the same. None: not known."""
        ranks, kernel = len(carried.members), carried.kernel
        index = carried.members.index(self._device.rank)
        if (
            kernel == "broadcast"
        ):  # what another rank holds there is the program's affair: often a placeholder stands here
            return inputs if carried.root == self._device.rank else None
        if kernel in ("all_reduce", "reduce"):
            reduce = _REDUCTIONS.get(carried.reduction)
            return None if reduce is None else [reduce(value, ranks) for value in inputs]
        if kernel == "all_gather":
            if len(outputs) == 1:
                return [inputs[0].flatten().repeat(ranks)]
            return [inputs[0]] * len(outputs)
        if kernel == "reduce_scatter" and carried.reduction in _REDUCTIONS:
            chunk = inputs[0].flatten().chunk(ranks)[index] if len(inputs) == 1 else inputs[index]
            return [_REDUCTIONS[carried.reduction](chunk, ranks)]
        return None
