"""Ctrl-C that is not lost, and SIGTERM and SIGHUP that end a command as Ctrl-C does.

Python raises KeyboardInterrupt wherever it is. Where that is a hook of ``os.fork`` or a finaliser, the exception
is printed as "ignored", and the command goes on as if nobody had asked it to end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

ALONE = (signal.SIGTERM, signal.SIGHUP)
"""What also ends a process alone. Ctrl-C comes to a command and to all that it has forked."""
_ENDING = (signal.SIGINT, *ALONE)

Handler = Callable[[int, FrameType | None], object]


class _Held:
    """Handles a signal by writing down that it came. ``before``: what handles it otherwise."""

    def __init__(self, before: Handler, came: list[tuple[Handler, int, FrameType | None]]) -> None:
        self.before = before
        self._came = came

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._came.append((self.before, number, frame))


@contextmanager
def held() -> Iterator[None]:
    """Within, Ctrl-C waits, and what else Python handles of its kind; it comes at the end of the block.

    For forking, for ending what was forked, and for writing down what was found.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to another thread
        return
    came: list[tuple[Handler, int, FrameType | None]] = []
    handlers = {number: signal.getsignal(number) for number in _ENDING}
    mine = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number, handler in mine.items():
        signal.signal(number, _Held(handler, came))
    try:
        yield
    finally:
        for number, handler in mine.items():
            signal.signal(number, handler)
    if came:
        first, of, frame = came[0]
        first(of, frame)


@contextmanager
def concluding() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP end the command as Ctrl-C does: what it has found by then is written.

    Where they are ignored (nohup), or handled by whoever called, they stay so.
    """
    mine: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        mine = [number for number in ALONE if signal.getsignal(number) is signal.SIG_DFL]
    for number in mine:
        signal.signal(number, _conclude)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def plainly() -> None:
    """In a fork: SIGTERM and SIGHUP end it at once again, as its parent is who concludes."""
    for number in _ENDING:
        handler = signal.getsignal(number)
        while isinstance(handler, _Held):
            handler = handler.before
            signal.signal(number, handler)
        if handler is _conclude:
            signal.signal(number, signal.SIG_DFL)


def _conclude(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
