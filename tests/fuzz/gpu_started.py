"""A process that has torch and the simulated GPU, and forks for each session of pytest it is asked for.

A session does what it does when it is typed, but for the seconds that torch takes to be imported. Each line of standard
input is one, as JSON: its arguments and its folder; each is answered by a line with exit status and output.
"""

from __future__ import annotations

import gc
import json
import os
import sys

from streamrace.device.launch import start

start()

import pytest  # noqa: E402

import streamrace.fuzz.testing.live_trial  # noqa: E402, F401 - the forks have it


def run(arguments: list[str], folder: str) -> tuple[int, str]:
    """Gives the exit status and all that was printed."""
    printed = os.memfd_create("printed")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.chdir(folder)
            sys.path.insert(0, folder)
            for target in (1, 2):
                os.dup2(printed, target)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            status = int(pytest.main(arguments))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    os.lseek(printed, 0, os.SEEK_SET)
    with os.fdopen(printed, "rb") as whole:
        return os.waitstatus_to_exitcode(status), whole.read().decode(errors="replace")


if __name__ == "__main__":
    gc.freeze()  # or each fork looks for garbage in all that was imported
    for line in sys.stdin:
        print(json.dumps(run(*json.loads(line))), flush=True)
