"""Holds a stream before one place of a program, so that a race comes the other way round on a real GPU.

Its token, ``t1,train.py:5@+20ms``, is that of a timing (:mod:`streamrace.device.timing`), with a line for the work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from streamrace.device import tokens
from streamrace.device.tokens import Wrong, decoded, encoded, number, read_length, shown, within, written_length
from streamrace.trace.records import Frame

_EXAMPLE = "t1,train.py:5@+20ms"
_HOLD = re.compile(rf"(.+):([0-9]+){tokens.LENGTH}", re.DOTALL)
_NS_PER_MS = 1_000_000
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

    @classmethod
    def parse(cls, text: str) -> Provocation:
        """Parse a token. Raise :class:`streamrace.device.tokens.TokenError`."""
        text = text.strip()
        try:
            parts = tokens.parts_of(text)
            held = _HOLD.fullmatch(parts[0]) if len(parts) == 1 else None
            if held is None:
                raise Wrong("names not one line and how long to hold the stream before it")
            file, line, *length = held.groups()
            how, ns = read_length(*length)
            if how != "late":
                raise Wrong("makes work take longer, and a stream is held before work ('@+')")
            within("a time", ns, 1, tokens.MOST_NS, "ns")
            return cls(decoded(file, also="/"), number(line), ns / _NS_PER_MS)
        except Wrong as wrong:
            raise tokens.error(shown(text), wrong, _EXAMPLE) from None

    @property
    def token(self) -> str:
        """Return the token by which the stream is held alike."""
        length = written_length("late", max(round(self.ms * _NS_PER_MS), 1))
        return f"t{tokens.VERSION},{encoded(self.file, also='/')}:{self.line}{length}"

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
