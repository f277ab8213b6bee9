"""Where all blocks lie, by which holds were not over in time: addresses only, without memory behind them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from replay.memory import Arena
from replay.placement import Hold, Placement
from replay.recording import Recording
from simgpu.trace import Alloc

_APART = 1 << 40  # bytes between two ranks: no recording comes near
_KEPT = 256  # placements of a rank


class Layouts:
    """The addresses of a recording's blocks.

    ``numbers``: by rank and block, its number among all; ``recorded`` and ``sizes``: by number.
    """

    def __init__(self, recording: Recording, arena: Arena) -> None:
        self._recording = recording
        blocks = arena.blocks
        self.numbers = {key: number for number, key in enumerate(blocks)}
        self.recorded = np.array([begin for begin, _ in blocks.values()], dtype=np.int64)
        self.sizes = np.array([size for _, size in blocks.values()], dtype=np.int64)
        self._of_rank: dict[int, tuple[list[int], npt.NDArray[np.int64]]] = {}  # blocks of the device, their numbers
        for rank, records in recording.records.items():
            those = [record.block for record in records if isinstance(record, Alloc)]
            numbers = np.array([self.numbers[rank, block] for block in those], dtype=np.int64)
            self._of_rank[rank] = those, numbers
        self._placed: dict[tuple[int, frozenset[Hold]], npt.NDArray[np.int64]] = {}

    def bases(self, late: Iterable[tuple[int, Hold]]) -> npt.NDArray[np.int64]:
        """Where each block begins when these holds are not over in time. Ranks without any lie as recorded."""
        by_rank: dict[int, set[Hold]] = {}
        for rank, hold in late:
            by_rank.setdefault(rank, set()).add(hold)
        found = self.recorded.copy()
        for rank, holds in by_rank.items():
            _, numbers = self._of_rank[rank]
            found[numbers] = (rank + 1) * _APART + self._offsets(rank, frozenset(holds))
        return found

    def _offsets(self, rank: int, holds: frozenset[Hold]) -> npt.NDArray[np.int64]:
        found = self._placed.pop((rank, holds), None)
        if found is None:
            while len(self._placed) >= _KEPT:
                del self._placed[next(iter(self._placed))]
            offsets = Placement(self._recording.records[rank], holds).offsets
            found = np.array([offsets[block] for block in self._of_rank[rank][0]], dtype=np.int64)
        self._placed[rank, holds] = found
        return found
