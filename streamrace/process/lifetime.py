"""Ends processes together with the process that started them, even where that process is killed.

Linux sends a process a signal when the thread that forked it ends (prctl(2), PR_SET_PDEATHSIG); the setting survives
execve(2). So each process forked here calls :func:`belong`, and each program started here is wrapped by
:func:`command`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

BY_ITSELF = {"STREAMRACE_CONFIG": ""}  # for a command started by another: its options are complete, and no file is read

# The path's first entry is the working folder, whose files may shadow modules of the standard library. It is replaced
# by the package's folder, until the program that is run puts its own folder first (scripts.py).
_START = (
    "import sys, runpy\n"
    "name, place = sys.argv.pop(1), sys.argv.pop(1)\n"
    "if not sys.flags.safe_path: sys.path[0] = place\n"
    "runpy.run_module(name, run_name='__main__', alter_sys=True)"
)
_PR_SET_PDEATHSIG = 1


def belong(parent: int) -> None:
    """End this process (SIGKILL) when ``parent``, which forked it, ends; at once if ``parent`` has ended already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call above
        os._exit(1)


def command(words: Sequence[str]) -> list[str]:
    """Return a command that runs ``words``, which begin with a program's path, and ends with this process.

    For :mod:`subprocess`, whose own hook (``preexec_fn``) runs Python between fork and exec, where threads are gone.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *words]


def module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package like ``python -m``, whatever the working folder holds."""
    from streamrace import checkout  # not at the top: this file also runs as a script, where no package can be imported

    return [sys.executable, "-c", _START, name, str(checkout.IMPORTED_FROM), *arguments]


if __name__ == "__main__":
    belong(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
