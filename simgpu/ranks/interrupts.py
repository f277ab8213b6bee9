"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever it is. Where that is a hook of ``os.fork`` or a finaliser, the exception
is printed as "ignored", and the command goes on as if nobody had asked it to end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held() -> Iterator[None]:
    """Within, Ctrl-C waits; it comes at the end of the block. For forking, and for ending what was forked."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # the signal goes to another thread, or is ignored
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        before(signal.SIGINT, came[0])
