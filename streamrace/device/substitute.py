"""Substitutes the CPU build of torch in environments that have a CUDA build of the same version.

A CUDA build has its own hooks, which cannot be replaced. So the CPU build is put into the user's cache once
(:mod:`streamrace.device.torches`), and the command runs again with that folder in front of the environment's own
packages. The environment is not changed.

``STREAMRACE_CPU_TORCH`` names what pip must download (default: the release of the same version): a wheel's path, or
options and a requirement, if the wheel comes from an index of its own. ``STREAMRACE_CACHE``: the cache folder.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from streamrace.compiling import BuildError
from streamrace.device import torches
from streamrace.device.build import has_cuda, torch_folder
from streamrace.device.torches.pip import WANTED
from streamrace.process import lifetime

_THERE = "STREAMRACE_SUBSTITUTED"


def needed() -> bool:
    """Check whether this environment has a CUDA build of torch. False if it has no torch at all."""
    try:
        return has_cuda(torch_folder())
    except BuildError:
        return False


def go_there(module: str, arguments: Sequence[str]) -> None:
    """Run ``python -m module arguments`` with the CPU build instead of this process, if necessary.

    The first time the build is created (a minute or two), announced on standard error. Raise :class:`BuildError` if no
    CPU build is available.
    """
    if needed():
        _run_again(place(), module, arguments)


def stand_in_front() -> None:
    """Let this process and those that it starts import the CPU build, if necessary and if torch is not imported yet.

    For processes other than our commands: pytest, a program that installs the GPU itself. Raise :class:`BuildError`.
    """
    if "torch" not in sys.modules and needed():
        folder = str(place())
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))


def place() -> Path:
    """Return the folder with the CPU build, created if necessary. Raise :class:`BuildError`."""
    version = importlib.metadata.version("torch").partition("+")[0]
    if not torches.place(version).exists():
        _tell("this environment has a CUDA build of torch: its CPU build is put into the cache, once")
    return torches.tree(version, _tell, wanted=shlex.split(os.environ.get(WANTED, "")))


def _run_again(folder: Path, module: str, arguments: Sequence[str]) -> NoReturn:
    if os.environ.get(_THERE):
        raise BuildError(
            f"the CPU build of torch in {folder} is not the one that Python finds: take the other one out of PYTHONPATH"
        )
    _tell(f"running with torch's CPU build in {folder}")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    sys.stdout.flush()
    os.execve(
        sys.executable,
        lifetime.module(module, *arguments),
        {**os.environ, "PYTHONPATH": path, _THERE: "1"},
    )


def _tell(sentence: str) -> None:
    print(f"streamrace: {sentence}", file=sys.stderr, flush=True)
