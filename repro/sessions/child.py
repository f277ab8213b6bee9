"""A program in a process of its own; the process that started it reports how it ended.

A script may end its process as it likes (``os._exit``, a signal, a crash in C); what it did is judged all the same. The
child is forked before anything heavy is imported, stays in the terminal's foreground group and has its input, so that
a debugger works in it.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple, NoReturn

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.1
_GRACE_S = 5.0  # from being asked to end to being killed
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}


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


def attended(work: Callable[[], ProgramEnd], hopeless: Callable[[], bool] = lambda: False) -> ProgramEnd:
    """Run ``work`` in a child, and give how it ended. ``hopeless``: asked now and then; True ends the child.

    Ctrl-C reaches the child as it reaches every process of a terminal's foreground group; what others send to this
    process is passed on. To be called in the main thread.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        child = os.fork()
        if child == 0:
            os.close(reader)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _work(work, writer)
        os.close(writer)
        status, interrupted, asked = _attend(child, hopeless)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with os.fdopen(reader, "rb") as pipe:
        report = pipe.read()
    ended = ProgramEnd(**json.loads(report)) if report else _unreported(status)
    return ended._replace(interrupted=interrupted, asked=asked, time=time.monotonic())


def _attend(child: int, hopeless: Callable[[], bool]) -> tuple[int, bool, bool]:
    """The child's exit status (below 0: the signal that killed it); was it interrupted, was it ended by us?"""
    interrupted, asked, ending = False, 0, 0.0
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), interrupted, ending > 0
        came = signal.sigtimedwait(_SIGNALS, _POLL_S)
        if came is not None and came.si_signo != signal.SIGCHLD:
            interrupted = True
            asked += 1
            if asked > 2:
                os.kill(child, signal.SIGKILL)
            elif came.si_code <= 0:  # SI_USER: to this process alone, and not from the terminal
                os.kill(child, came.si_signo)
        elif came is None:
            if ending:
                ending = max(ending - _POLL_S, _POLL_S)
                if ending == _POLL_S:
                    os.kill(child, signal.SIGKILL)
            elif hopeless():
                os.kill(child, signal.SIGTERM)
                ending = _GRACE_S


def _work(work: Callable[[], ProgramEnd], writer: int) -> NoReturn:
    """The child: never returns into what it was forked from."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    status = 1
    try:
        ended = work()
        status = ended.status
        os.write(writer, json.dumps(ended._asdict()).encode())
        atexit._run_exitfuncs()  # as at the end of an interpreter: those of the program are among them
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 1
    os._exit(status & 0xFF)


def _unreported(status: int) -> ProgramEnd:
    if status < 0:
        return ProgramEnd(128 - status, f"it was killed by {signal.Signals(-status).name}")
    return ProgramEnd(status, f"it ended its process itself, with exit status {status}")
