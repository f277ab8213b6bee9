"""Buffers that take turns: whole parameters while they are computed with, gradients while they are reduced.

A buffer that is handed back may still be in use on some lane. The next owner gets it with the mark of its last use, and
has to wait for it: that is one of the engine's synchronisations, and not the allocator's affair.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from streamrace.scenarios.sharding.lanes import Lane, Mark, Streams


class Buffers:
    """By length, oldest first. ``lane``: where they are made; ``kind``: what the trace calls them."""

    def __init__(self, streams: Streams, lane: Lane, dtype: torch.dtype, kind: str) -> None:
        self._streams, self._lane, self._dtype, self._kind = streams, lane, dtype, kind
        self._free: dict[int, deque[tuple[Tensor, Mark]]] = {}
        self._count = 0

    def take(self, length: int) -> tuple[Tensor, Mark]:
        """One of ``length`` elements, and the mark of its last use (None: it is new)."""
        waiting = self._free.setdefault(length, deque())
        if waiting:
            return waiting.popleft()
        with self._streams.on(self._lane):
            buffer = torch.zeros(length, dtype=self._dtype, device=self._streams.device)
            self._count += 1
            self._streams.label(buffer, "buffer", f"{self._kind} {self._count}")
            return buffer, None

    def give(self, buffer: Tensor, mark: Mark) -> None:
        """Hand it back; what uses it by now is done at ``mark``."""
        self._free[buffer.numel()].append((buffer, mark))
