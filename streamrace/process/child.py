"""Forks a process: runs its work, receives its messages, and waits for its end."""

from __future__ import annotations

import atexit
import faulthandler
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NoReturn

from streamrace.process import sigstop
from streamrace.process.frames import roomy
from streamrace.process.interrupts import ALONE, plainly
from streamrace.process.lifetime import belong
from streamrace.process.messages import M, decode, encode

Send = Callable[[tuple[Any, ...]], None]
"""Sends a message (:mod:`.messages`) to the parent. Raises OSError if the parent no longer listens."""


class Child:
    """A fork of this process that runs ``work`` and ends with the returned exit status (None: 0).

    The fork never returns into the code it was forked from, and dies with this process. An exception is printed in the
    fork and becomes exit status 1. A stopped fork (SIGSTOP) is killed, some seconds later, by the process that waits
    for it. ``at_exit``: the fork also calls the functions registered with :mod:`atexit`. ``pipe`` and ``handle`` can be
    passed to :func:`multiprocessing.connection.wait`: the latter is ready when the child has ended.
    """

    def __init__(self, work: Callable[[Send], int | None], *, at_exit: bool = False) -> None:
        self.pipe, child_end = Pipe(duplex=False)
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        # signals sent to the child alone must not reach the handlers that it inherits
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ALONE)
        self.pid = os.fork()
        if self.pid == 0:
            self.pipe.close()  # otherwise the child would not notice that the parent no longer listens
            _live(work, child_end, parent, before, at_exit=at_exit)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child_end.close()
        self.handle = os.pidfd_open(self.pid)
        self._status: int | None = None
        self._looks, self.stopped = sigstop.Looks(), False

    def wait(self, seconds: float | None = None) -> int | None:
        """Return the exit status, negative for a signal that killed it; None if the child runs after ``seconds``."""
        if self._status is None and heard([self.handle], [self], seconds):
            status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self._status = -signal.SIGSTOP if self.stopped else status
        return self._status

    def look(self) -> None:
        """Kill the child if it is stopped now and was at the last poll. To be called regularly by waiting processes."""
        if self._status is None and self._looks.stopped([self.pid]):
            self.stopped = True
            self.kill()

    def receive(self, kinds: Sequence[type[M]]) -> tuple[list[M], bool]:
        """Return the messages received so far, which must be of ``kinds``, and whether more may come.

        Raise :class:`streamrace.process.messages.UnknownMessage`.
        """
        messages: list[M] = []
        try:
            while self.pipe.poll():
                messages.append(decode(self.pipe.recv_bytes(), kinds))
        except (EOFError, ConnectionResetError):
            return messages, False
        return messages, True

    def kill(self) -> None:
        """Kill the child, unless it is known to have ended."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the child if it still runs, and release its resources."""
        self.kill()
        self.wait()
        os.close(self.handle)
        self.pipe.close()


def heard(objects: Sequence[Any], running: Iterable[Child], seconds: float | None) -> list[Any]:
    """Wait for ``objects``, at most ``seconds``; return those that are ready. Meanwhile kill stopped children."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    while True:
        remaining = until - time.monotonic()
        ready = wait(objects, max(0.0, min(remaining, sigstop.LOOK_S)))
        for child in running:  # also if objects are ready: workers send often, and then nothing else polls
            child.look()
        if ready or remaining <= sigstop.LOOK_S:
            return ready


def ending(status: int) -> str:
    """Return how a process ended, as the end of a sentence."""
    if status == -signal.SIGSTOP:
        return "was stopped (SIGSTOP), so it was ended"
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"


def print_to(path: Path | str) -> None:
    """Redirect this process's output to ``path``; Python's streams stay where they are captured in memory (capsys)."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable(2)
    with suppress(OSError):  # io.UnsupportedOperation is a subclass
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
        os._exit(1)  # in any case: the fork must not continue its parent's code


@roomy
def _worked(work: Callable[[Send], int | None], pipe: Connection, parent: int, mask: set[int]) -> int:
    """Do the work and return the exit status."""
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
    except BaseException:  # printed here; the parent sees the exit status
        with suppress(OSError):
            traceback.print_exc()
        return 1
