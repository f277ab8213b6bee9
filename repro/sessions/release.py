"""Running under another DeepSpeed release: this process becomes one that imports it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.console import Console

from frameworks.deepspeed.releases import environment, install, installed

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
