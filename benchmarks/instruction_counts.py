"""Counts the instructions of the C++ engine for an operation, by valgrind: other load does not disturb the count.

Run: ``python -m benchmarks.instruction_counts OPS`` feeds a detector the warm-up's operations and then OPS more.
:func:`measure` runs that under callgrind, which counts inside of :data:`_COUNTED`, including the interpreter's
functions called from there. The count of a stretch is the difference of two such processes.
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
    """Return no figures without valgrind. Raises RuntimeError where valgrind counts nothing."""
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
        command = [*tool, sys.executable, "-m", "benchmarks.instruction_counts", str(ops)]
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
