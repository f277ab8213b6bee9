"""Computes the addresses of all blocks, given the holds that were not over in time, without any memory behind them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from streamrace.replay.memory import Arena
from streamrace.replay.placement import Hold, Placement
from streamrace.replay.recording import Recording

_APART = 1 << 40  # bytes between two ranks: more than any recording uses
_KEPT = 256  # cached placements

_Numbers = npt.NDArray[np.int64]


class Layouts:
    """The addresses of a recording's blocks.

    ``numbers``: by rank and block, its number among all blocks; ``recorded`` and ``sizes``: by number.
    """

    def __init__(self, recording: Recording, arena: Arena) -> None:
        self._recording = recording
        blocks = arena.blocks
        self.numbers = {key: number for number, key in enumerate(blocks)}
        self.recorded = np.array([begin for begin, _ in blocks.values()], dtype=np.int64)
        self.sizes = np.array([size for _, size in blocks.values()], dtype=np.int64)
        self._placed: OrderedDict[tuple[int, frozenset[Hold]], tuple[_Numbers, _Numbers]] = OrderedDict()
        self._as_recorded: dict[int, Placement] = {}

    def bases(self, late: Iterable[tuple[int, Hold]]) -> _Numbers:
        """Return each block's address if the holds ``late`` are not over in time; unmoved blocks lie as recorded."""
        by_rank: dict[int, set[Hold]] = {}
        for rank, hold in late:
            by_rank.setdefault(rank, set()).add(hold)
        addresses = self.recorded.copy()
        for rank, holds in by_rank.items():
            numbers, offsets = self._elsewhere(rank, frozenset(holds))
            addresses[numbers] = (rank + 1) * _APART + offsets
        return addresses

    def _elsewhere(self, rank: int, holds: frozenset[Hold]) -> tuple[_Numbers, _Numbers]:
        """Return the blocks of a rank that move, and their offsets."""
        moved = self._placed.get((rank, holds))
        if moved is None:
            if len(self._placed) >= _KEPT:
                self._placed.popitem(last=False)
            if rank not in self._as_recorded:
                self._as_recorded[rank] = Placement(self._recording.records[rank])
            offsets = self._as_recorded[rank].elsewhere(holds).offsets
            numbers = [self.numbers[rank, block] for block in offsets]
            moved = np.array(numbers, dtype=np.int64), np.array(list(offsets.values()), dtype=np.int64)
            self._placed[rank, holds] = moved
        self._placed.move_to_end((rank, holds))
        return moved
