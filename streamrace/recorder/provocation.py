"""Holds a stream before one place of a program, so that a race comes the other way round on a real GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamrace.trace.records import Frame

_CYCLES = 1_000_000  # of the trial by which the length of a cycle is found


@dataclass
class Provocation:
    """The stream that is current at line ``line`` of ``file`` is held for ``ms`` milliseconds before the work there.

    ``file``: as the frames of a trace have it. ``times``: how often it was held so far.
    """

    file: str
    line: int
    ms: float
    times: int = 0
    _cycles_per_ms: float = 0.0

    def is_at(self, stack: Sequence[Frame]) -> bool:
        """Check whether a stack is of this place."""
        return bool(stack) and (stack[0].file, stack[0].line) == (self.file, self.line)

    def prepare(self) -> None:
        """Find how many cycles a millisecond has, before the program begins: this waits for the GPU."""
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_CYCLES)  # the first launch takes longer
        begin.record()
        torch.cuda._sleep(_CYCLES)
        end.record()
        torch.cuda.synchronize()
        self._cycles_per_ms = _CYCLES / max(begin.elapsed_time(end), 1e-3)

    def hold(self) -> None:
        """Give the current stream a kernel that only takes time."""
        import torch

        torch.cuda._sleep(round(self.ms * self._cycles_per_ms))
        self.times += 1
