"""Reuses buffers in turn: for whole parameters during computation, for gradients during reduction.

A returned buffer may still be in use on some lane. The next owner gets it with the mark of its last use, and has to
wait for that: this is one of the engine's synchronisations, and not the allocator's task.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from streamrace.scenarios.sharding.lanes import Lane, Mark, Streams


class Buffers:
    """A pool of buffers by length, oldest first. ``lane``: allocates them; ``kind``: their name in the trace."""

    def __init__(self, streams: Streams, lane: Lane, dtype: torch.dtype, kind: str) -> None:
        self._streams, self._lane, self._dtype, self._kind = streams, lane, dtype, kind
        self._free: dict[int, deque[tuple[Tensor, Mark]]] = {}
        self._count = 0

    def take(self, length: int) -> tuple[Tensor, Mark]:
        """Return a buffer of ``length`` elements, and the mark of its last use (None: a new buffer)."""
        waiting = self._free.setdefault(length, deque())
        if waiting:
            return waiting.popleft()
        with self._streams.on(self._lane):
            buffer = torch.zeros(length, dtype=self._dtype, device=self._streams.device)
            self._count += 1
            self._streams.label(buffer, "buffer", f"{self._kind} {self._count}")
            return buffer, None

    def give(self, buffer: Tensor, mark: Mark) -> None:
        """Hand a buffer back; its uses so far are done at ``mark``."""
        self._free[buffer.numel()].append((buffer, mark))
