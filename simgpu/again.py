"""Runs a program again and again, each time in a fork of a process that has the device, and torch, already.

``python -m simgpu.again``: each line of standard input is a run, as JSON: ``arguments`` as they stand behind
``python -m simgpu``, ``at_once`` where each launch is to be waited for (CUDA_LAUNCH_BLOCKING=1), ``patience_s``. Each
is answered by a line with its exit status, or ``null`` where it was ended because it took longer. What the program
prints goes nowhere, and it reads nothing.
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
from typing import Any, NoReturn

from simgpu import launch

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.01


def main() -> None:
    """Serve until standard input ends."""
    launch.start()
    for line in sys.stdin:
        answer = _run(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _run(job: dict[str, Any]) -> int | None:
    child = os.fork()
    if child == 0:
        _program(job)
    until = time.monotonic() + job["patience_s"]
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        time.sleep(_LOOK_S)
    os.kill(child, signal.SIGKILL)  # its ranks end with it
    os.waitpid(child, 0)
    return None


def _program(job: dict[str, Any]) -> NoReturn:
    from simgpu.library import functions

    status = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        if job["at_once"]:
            os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
            functions().deferred(0)
        status = launch.main(job["arguments"])
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        os._exit(status & 0xFF)


if __name__ == "__main__":
    main()
