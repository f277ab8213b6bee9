"""A program in a process of its own, whose end the process that is left reports, however it comes.

A script may end its process as it likes (``os._exit``, a signal, a crash in C); what it did is judged all the same. The
child is forked before anything heavy is imported, stays in the terminal's foreground group and has its input, so that
a debugger works in it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from streamrace.device.ranks.child import Child, Send, how

_POLL_S = 0.1
_GRACE_S = 5.0  # from being asked to end to being killed
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}


class ProgramEnd(NamedTuple):
    """How a program ended. ``status``: its exit status; ``why``: it did not end well, as a sentence's end.

    ``wrong``: it never began, and ``why`` says what to mend. ``asked``: it was ended, as another rank had failed.
    """

    status: int
    why: str = ""
    wrong: bool = False
    interrupted: bool = False
    asked: bool = False
    time: float = 0.0  # time.monotonic()


def called() -> bool:
    """Whether a signal has come for who attends to a child, or the child has ended: see :func:`attended`."""
    return not _SIGNALS.isdisjoint(signal.sigpending())


def attended(
    work: Callable[[], ProgramEnd],
    hopeless: Callable[[], bool] = lambda: False,
    meanwhile: Callable[[], bool] = lambda: False,
) -> ProgramEnd:
    """Run ``work`` in a child, and give how it ended. ``hopeless``: asked now and then; True ends the child.

    ``meanwhile``: what this process does beside it, a little each time it is called; True: there is more to do at once.

    Ctrl-C reaches the child as it reaches every process of a terminal's foreground group; what others send to this
    process is passed on. Of SIGTERM and SIGHUP the child has some seconds to end. To be called in the main thread.
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
                pass  # it was said again: what the child did is judged all the same
            reports, _ = child.receive((ProgramEnd,))
        finally:
            child.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    ended = reports[0] if reports else _unreported(status)
    return ended._replace(interrupted=interrupted, asked=asked, time=time.monotonic())


def _attend(child: Child, hopeless: Callable[[], bool], meanwhile: Callable[[], bool]) -> tuple[int, bool, bool]:
    """The child's exit status (below 0: the signal that killed it); was it interrupted, was it ended by us?"""
    interrupted, asked, lost, ending = False, 0, False, 0.0
    while True:
        status = child.wait(0)
        if status is not None:
            return status, interrupted, lost
        busy = not (interrupted or ending) and meanwhile()  # it is to end soon: what is left is done then
        came = signal.sigtimedwait(_SIGNALS, 0 if busy else _POLL_S)
        if came is not None and came.si_signo != signal.SIGCHLD:
            interrupted = True
            asked += 1
            if asked > 2:
                child.kill()
            elif came.si_code <= 0:  # SI_USER: to this process alone, and not from the terminal
                os.kill(child.pid, came.si_signo)
            if came.si_signo != signal.SIGINT:  # nobody is there to ask again
                ending = ending or _GRACE_S
        elif came is None:
            if ending:
                ending = max(ending - _POLL_S, _POLL_S)
                if ending == _POLL_S:
                    child.kill()
            elif hopeless():
                os.kill(child.pid, signal.SIGTERM)
                lost, ending = True, _GRACE_S


def _unreported(status: int) -> ProgramEnd:
    if status < 0:
        return ProgramEnd(128 - status, f"it {how(status)}")
    return ProgramEnd(status, f"it ended its process itself, with exit status {status}")
