"""One forked process: its work, what it sends, and how it ends."""

from __future__ import annotations

import atexit
import faulthandler
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn

from streamrace.device.frames import roomy
from streamrace.device.ranks.messages import M, decode, encode
from streamrace.process import sigstop
from streamrace.process.interrupts import ALONE, plainly
from streamrace.process.lifetime import belong

Send = Callable[[tuple[Any, ...]], None]
"""Sends a message (``ranks.messages``) to the parent. Raises OSError when nobody listens any more."""


class Child:
    """A fork of this process that does ``work`` and ends with what that gives as its exit status (None: 0).

    It never returns into what it was forked from, and dies with this process. An exception is printed there and is exit
    status 1. One that is stopped (SIGSTOP) is killed, some seconds later, by whoever waits for it. ``at_exit``: at its
    end it also calls what was registered with :mod:`atexit`. ``pipe`` and ``handle`` can be given to
    :func:`multiprocessing.connection.wait`: the latter is ready when the child has ended.
    """

    def __init__(self, work: Callable[[Send], int | None], *, at_exit: bool = False) -> None:
        self.pipe, theirs = Pipe(duplex=False)
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        # what is sent to it alone is not for the handlers that it inherits
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ALONE)
        self.pid = os.fork()
        if self.pid == 0:
            self.pipe.close()  # or it would not see that nobody listens any more
            _live(work, theirs, parent, before, at_exit=at_exit)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.handle = os.pidfd_open(self.pid)
        self._status: int | None = None
        self._looks, self._stopped = sigstop.Looks(), False

    def wait(self, seconds: float | None = None) -> int | None:
        """Its exit status, below 0 the signal that killed it. None: after so many ``seconds`` it still runs."""
        until = math.inf if seconds is None else time.monotonic() + seconds
        while self._status is None:
            left = until - time.monotonic()
            if wait([self.handle], max(0.0, min(left, sigstop.LOOK_S))):
                status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                self._status = -signal.SIGSTOP if self._stopped else status
                break
            self.look()
            if left <= sigstop.LOOK_S:
                break
        return self._status

    def look(self) -> None:
        """Kill it if it is stopped, and was at the look before. To be called now and then by who waits for more."""
        if self._status is None and self._looks.stopped([self.pid]):
            self._stopped = True
            self.kill()

    def receive(self, kinds: Sequence[type[M]]) -> tuple[list[M], bool]:
        """The messages that are there, which have to be of ``kinds``, and whether more may come.

        Raises :class:`streamrace.device.ranks.messages.UnknownMessage`.
        """
        messages: list[M] = []
        try:
            while self.pipe.poll():
                messages.append(decode(self.pipe.recv_bytes(), kinds))
        except (EOFError, ConnectionResetError):
            return messages, False
        return messages, True

    def kill(self) -> None:
        """Unless it was seen to have ended."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it if it still runs, and leave nothing of it."""
        self.kill()
        self.wait()
        os.close(self.handle)
        self.pipe.close()


def how(status: int) -> str:
    """How a process ended, as the end of a sentence."""
    if status == -signal.SIGSTOP:
        return "was stopped (SIGSTOP), so it was ended"
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


def print_to(path: Path | str) -> None:
    """What this process prints from here on goes there; but who captures it in memory (capsys) goes on to have it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable(2)
    with suppress(OSError):  # io.UnsupportedOperation is one
        sys.stdout.fileno()
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def _live(
    work: Callable[[Send], int | None], pipe: Connection, parent: int, mask: set[int], *, at_exit: bool
) -> NoReturn:
    try:
        status = _worked(work, pipe, parent, mask)
        if at_exit:
            with suppress(BaseException):
                atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                status = status or 1
        os._exit(status & 0xFF)
    finally:
        os._exit(1)  # whatever came: what was forked goes on with nothing


@roomy
def _worked(work: Callable[[Send], int | None], pipe: Connection, parent: int, mask: set[int]) -> int:
    """Its exit status."""
    try:
        belong(parent)
        plainly()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return work(lambda message: pipe.send_bytes(encode(message))) or 0
    except SystemExit as leaving:
        if leaving.code is not None and not isinstance(leaving.code, int):
            with suppress(OSError):
                print(leaving.code, file=sys.stderr)
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # it is printed here, and the parent sees the status
        with suppress(OSError):
            traceback.print_exc()
        return 1
