"""Running under another DeepSpeed release: this process becomes one that imports it, or starts one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from frameworks.deepspeed.releases import ReleaseError, environment, install, installed
from simgpu.ranks.bound import command

FOLDER = Path(".releases")


def become(release: str, console: Console) -> None:
    """Start again under ``release``, with the same arguments. Returns when this is that release already.

    Raises :class:`frameworks.deepspeed.releases.ReleaseError`.
    """
    if release == installed():
        return
    console.print(f"DeepSpeed {release}: looking in {FOLDER}/ (built once, half a minute)", highlight=False)
    place = install(release, FOLDER)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "repro", *sys.argv[1:]], environment(place))


def aside(release: str, arguments: Sequence[str], console: Console) -> None:
    """Run ``repro`` with ``arguments`` under ``release``, in a process of its own, and wait for its end.

    Raises :class:`frameworks.deepspeed.releases.ReleaseError` where it cannot be installed, or the command fails.
    """
    console.print(f"DeepSpeed {release}: looking in {FOLDER}/ (built once, half a minute)", highlight=False)
    place = install(release, FOLDER)
    done = subprocess.run(command([sys.executable, "-m", "repro", *arguments]), env=environment(place))
    if done.returncode:
        raise ReleaseError(f"DeepSpeed {release}: the command ended with {done.returncode}; see what it said above")
