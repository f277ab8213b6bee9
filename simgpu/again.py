"""Runs a program again and again, each time in a fork of a process that has the device, and torch, already.

``python -m simgpu.again``: each line of standard input is a run, as JSON: ``arguments`` as they stand behind
``python -m simgpu``, ``at_once`` where each launch is to be waited for (CUDA_LAUNCH_BLOCKING=1), ``patience_s``. Each
is answered by a line with its exit status, or ``null`` where it was ended because it took longer. What the program
prints goes nowhere, and it reads nothing.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from simgpu import launch
from simgpu.ranks.child import Child


def main() -> None:
    """Serve until standard input ends."""
    launch.start()
    for line in sys.stdin:
        answer = _run(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _run(job: dict[str, Any]) -> int | None:
    child = Child(lambda _: _program(job), at_exit=True)
    try:
        status = child.wait(job["patience_s"])
    finally:
        child.close()  # its ranks end with it
    return 128 - status if status is not None and status < 0 else status


def _program(job: dict[str, Any]) -> int:
    from simgpu.library import functions

    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    if job["at_once"]:
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
        functions().deferred(0)
    return launch.main(job["arguments"])


if __name__ == "__main__":
    main()
