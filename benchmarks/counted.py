"""How many instructions the engine in C++ takes for an operation, counted by valgrind: no other work disturbs that.

Run: ``python -m benchmarks.counted OPS`` feeds a detector so many operations behind those of the warm-up, and nothing
else; :func:`measure` runs it under callgrind, which counts what is inside of :data:`_COUNTED`, the interpreter's
functions that it calls included. The count of a stretch is the difference of two such processes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.detector import GROWTH, Fed
from benchmarks.figures import Figure

_COUNTED = "order::HappensBefore::feed*"
_FEW, _SOME, _MANY = 1_000, 50_000, 300_000


def measure(say: Callable[[str], None]) -> list[Figure]:
    """No figures where there is no valgrind. Raises RuntimeError where it counts nothing."""
    if shutil.which("valgrind") is None:
        say("instructions: there is no valgrind here, so instructions are not counted")
        return []
    say(f"instructions: {_MANY:,} operations under valgrind (some minutes)")
    ends = (0, _FEW, _MANY - _SOME, _MANY)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        none, few, before, all_ = pool.map(_counted, ends)
    first, last = (few - none) / _FEW, (all_ - before) / _SOME
    return [
        Figure("instructions", f"an operation among the first {_FEW:,}, counted by valgrind", first, "instructions"),
        Figure("instructions", f"... among the last {_SOME:,} of {_MANY:,}", last, "instructions"),
        Figure("instructions", "... there against the first", last / first, "times", GROWTH),
    ]


def _counted(ops: int) -> int:
    with TemporaryDirectory() as folder:
        out = Path(folder, "callgrind")
        tool = ["valgrind", "--tool=callgrind", f"--toggle-collect={_COUNTED}", f"--callgrind-out-file={out}"]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        command = [*tool, sys.executable, "-m", "benchmarks.counted", str(ops)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        found = re.search(r"^totals: (\d+)$", out.read_text(encoding="utf-8") if out.exists() else "", re.MULTILINE)
    if done.returncode or found is None or not int(found[1]):
        raise RuntimeError(f"valgrind counted no instructions of the engine:\n{done.stderr[-2000:]}")
    return int(found[1])


def main(ops: int) -> None:
    fed = Fed(ops)
    if ops:
        fed.on(ops)


if __name__ == "__main__":
    main(int(sys.argv[1]))
