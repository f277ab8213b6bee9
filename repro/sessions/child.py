"""Runs a program in a child process and reports its end, however it ends.

A script may end its process in any way (``os._exit``, a signal, a crash in C); its trace is judged all the same. The
child is forked before any heavy import, stays in the terminal's foreground group and has its input, so that a debugger
works in it.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from streamrace.process.child import Child, Send, ending

_POLL_S = 0.1
_GRACE_S = 5.0  # between the request to end and SIGKILL
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}


class ProgramEnd(NamedTuple):
    """The end of a program. ``status``: exit status; ``why``: the failure, as a sentence's end.

    ``wrong``: it never began, and ``why`` says what to correct. ``asked``: it was ended after another rank's failure.
    """

    status: int
    why: str = ""
    wrong: bool = False
    interrupted: bool = False
    asked: bool = False
    time: float = 0.0  # time.monotonic()


def called() -> bool:
    """Check whether a signal is pending for :func:`attended`, or the child has ended."""
    return not _SIGNALS.isdisjoint(signal.sigpending())


def attended(
    work: Callable[[], ProgramEnd],
    hopeless: Callable[[], bool] = lambda: False,
    meanwhile: Callable[[], bool] = lambda: False,
) -> ProgramEnd:
    """Run ``work`` in a child, and return how it ended. ``hopeless``: polled; True ends the child.

    ``meanwhile``: callback that does a little of this process's own work; returns True if more is ready.

    Ctrl-C reaches the child like every process of a terminal's foreground group; signals sent to this process alone are
    forwarded. After SIGTERM or SIGHUP the child has some seconds to end. Call in the main thread.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def reporting(send: Send) -> int:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        ended = work()
        send(ended)
        return ended.status

    try:
        child = Child(reporting, at_exit=True)
        try:
            status, interrupted, asked = _attend(child, hopeless, meanwhile)
            while interrupted and signal.sigtimedwait(_SIGNALS - {signal.SIGCHLD}, 0):
                pass  # the signal was repeated: the child is judged all the same
            reports, _ = child.receive((ProgramEnd,))
        finally:
            child.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    ended = reports[0] if reports else _unreported(status)
    return ended._replace(interrupted=interrupted, asked=asked, time=time.monotonic())


def _attend(child: Child, hopeless: Callable[[], bool], meanwhile: Callable[[], bool]) -> tuple[int, bool, bool]:
    """Return the child's exit status (below 0: its signal), whether interrupted, and whether ended by ``hopeless``."""
    interrupted, requests, lost, until = False, 0, False, math.inf
    while (status := child.wait(0)) is None:
        busy = not interrupted and not lost and meanwhile()  # the rest is done after its end
        received = signal.sigtimedwait(_SIGNALS, 0 if busy else _POLL_S)
        if received is None:
            if time.monotonic() > until:
                child.kill()
            elif until == math.inf and hopeless():
                os.kill(child.pid, signal.SIGTERM)
                lost, until = True, time.monotonic() + _GRACE_S
        elif received.si_signo != signal.SIGCHLD:
            interrupted = True
            requests += 1
            if requests > 2:
                child.kill()
            elif received.si_code <= 0:  # SI_USER: sent to this process alone, not by the terminal
                os.kill(child.pid, received.si_signo)
            if received.si_signo != signal.SIGINT:  # nobody remains to repeat the request
                until = min(until, time.monotonic() + _GRACE_S)
    return status, interrupted, lost


def _unreported(status: int) -> ProgramEnd:
    if status < 0:
        return ProgramEnd(128 - status, f"it {ending(status)}")
    return ProgramEnd(status, f"it ended its process itself, with exit status {status}")
