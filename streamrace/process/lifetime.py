"""Processes that end with the one that started them, also where that is killed and can end nothing any more.

Linux sends a process a signal when the thread that forked it has ended (prctl(2), PR_SET_PDEATHSIG), and goes on to do
so when it has become another program (execve(2)). So whatever is forked here says :func:`belong`, and a program that
is started says :func:`command`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

# The path's first entry is the working folder's, whose files may have any name: a module of the standard library's.
# It becomes ours, until the program that is run puts its own folder there (scripts.py).
_START = (
    "import sys, runpy\n"
    "name, place = sys.argv.pop(1), sys.argv.pop(1)\n"
    "if not sys.flags.safe_path: sys.path[0] = place\n"
    "runpy.run_module(name, run_name='__main__', alter_sys=True)"
)
_PR_SET_PDEATHSIG = 1


def belong(parent: int) -> None:
    """End when ``parent`` ends, which forked this process. Ends at once where it has ended by now."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was quicker
        os._exit(1)


def command(words: Sequence[str]) -> list[str]:
    """``words``, which begin with a program's path, so that what they start ends with this process.

    For :mod:`subprocess`, whose own way (``preexec_fn``) runs Python between fork and exec, where threads are gone.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *words]


def module(name: str, *arguments: str) -> list[str]:
    """The words that run a module of this package as ``python -m`` does, whatever lies in the working folder."""
    from streamrace import checkout  # not at the top: this file is run by itself, where no package can be imported

    return [sys.executable, "-c", _START, name, str(checkout.IMPORTED_FROM), *arguments]


if __name__ == "__main__":
    belong(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
