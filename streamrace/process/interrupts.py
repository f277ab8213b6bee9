"""Defers Ctrl-C where it would be lost, and makes SIGTERM and SIGHUP end a command as Ctrl-C does.

Python raises KeyboardInterrupt at an arbitrary point. In a hook of ``os.fork`` or in a finaliser the exception is
printed as "ignored", and the command continues as if it had not been interrupted.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

ALONE = (signal.SIGTERM, signal.SIGHUP)
"""The signals that end a single process. Ctrl-C reaches a command and all its forks."""
_ENDING = (signal.SIGINT, *ALONE)

Handler = Callable[[int, FrameType | None], object]


class _Held:
    """A signal handler that records each signal instead of acting on it. ``before``: the handler that it replaces."""

    def __init__(self, before: Handler, arrived: list[tuple[Handler, int, FrameType | None]]) -> None:
        self.before = before
        self._arrived = arrived

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append((self.before, number, frame))


@contextmanager
def held() -> Iterator[None]:
    """Defer Ctrl-C, and SIGTERM and SIGHUP where Python handles them, to the end of the block.

    For forking, for ending forked processes, and for writing results.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread only
        return
    arrived: list[tuple[Handler, int, FrameType | None]] = []
    handlers = {number: signal.getsignal(number) for number in _ENDING}
    handled = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number, handler in handled.items():
        signal.signal(number, _Held(handler, arrived))
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
    if arrived:
        first, of, frame = arrived[0]
        first(of, frame)


@contextmanager
def concluding() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the command as Ctrl-C does within the block, so that results so far are written.

    Signals that are ignored (nohup), or handled by the caller, stay so.
    """
    defaults: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        defaults = [number for number in ALONE if signal.getsignal(number) is signal.SIG_DFL]
    for number in defaults:
        signal.signal(number, _conclude)
    try:
        yield
    finally:
        for number in defaults:
            signal.signal(number, signal.SIG_DFL)


def plainly() -> None:
    """Restore in a fork that SIGTERM and SIGHUP end the process at once: only the parent concludes."""
    for number in _ENDING:
        handler = signal.getsignal(number)
        while isinstance(handler, _Held):
            handler = handler.before
            signal.signal(number, handler)
        if handler is _conclude:
            signal.signal(number, signal.SIG_DFL)


def _conclude(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
