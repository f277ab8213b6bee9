"""Measures rows in a process with a simulated GPU: ``streamrace device -m benchmarks.device_rows ROW``.

The process prints a line of JSON for each progress message (a string) and for each figure (its fields).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module

from benchmarks.figures import Figure

Say = Callable[[str], None]


def shell() -> dict[str, str]:
    """Return a user's environment: DeepSpeed sets DS_ACCELERATOR, to a value that the simulated GPU refuses."""
    return {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}


def apart(row: str, say: Say) -> list[Figure]:
    """Run ``measured`` of the row's module in that process; return its figures. Raises RuntimeError where it fails."""
    found = []
    with subprocess.Popen(
        [sys.executable, "-m", "streamrace.device", "-m", "benchmarks.device_rows", row],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            if isinstance(told, str):
                say(told)
            else:
                found.append(Figure(**told))
    if process.returncode:
        raise RuntimeError(f"row {row} could not be measured")
    return found


def main(row: str) -> None:
    """Print the messages and figures of ``row``, in the process with the GPU."""

    def tell(what: object) -> None:
        print(json.dumps(what), flush=True)

    for figure in import_module(f"benchmarks.{row}").measured(tell):
        tell(asdict(figure))


if __name__ == "__main__":
    main(sys.argv[1])
