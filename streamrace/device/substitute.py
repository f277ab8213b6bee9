"""Where the environment has a CUDA build of torch: the CPU build of the same version, beside it, and all else as it is.

A CUDA build has its own hooks, which nothing can replace. So the CPU build is installed once into a folder of the
user's cache, and the command runs again with that folder in front of the environment's own packages. The environment
is not changed.

``STREAMRACE_CPU_TORCH`` says what pip is to install (default: ``torch==VERSION+cpu``): a wheel's path, or options and a
requirement, where the CPU build comes from an index of its own. ``STREAMRACE_CACHE``: where it is kept.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from streamrace.device.build import has_cuda, torch_folder
from streamrace.device.compiling import BuildError, cache
from streamrace.device.ranks import bound

_THERE = "STREAMRACE_SUBSTITUTED"
_WANTED = "STREAMRACE_CPU_TORCH"


def needed() -> bool:
    """Has this environment a CUDA build of torch? False where it has none at all."""
    try:
        return has_cuda(torch_folder())
    except BuildError:
        return False


def go_there(module: str, arguments: Sequence[str]) -> None:
    """Run ``python -m module arguments`` with the CPU build instead of this process, where that is needed.

    The first time pip installs it (a minute or two); a sentence on standard error says so. Raises :class:`BuildError`
    where there is no CPU build to be had.
    """
    if needed():
        _run_again(place(), module, arguments)


def place() -> Path:
    """The folder that has the CPU build; installs it when it is not there. Raises :class:`BuildError`."""
    version = importlib.metadata.version("torch").partition("+")[0]
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache() / f"torch-{version}-cpu-{python}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "torch.lock").open("w") as lock:  # the ranks of a launcher come at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(version, folder)
    return folder


def _install(version: str, folder: Path) -> None:
    """Into a folder of another name first: what was cut off is not taken for whole."""
    wanted = shlex.split(os.environ.get(_WANTED) or f"torch=={version}+cpu")
    _tell(f"this environment has a CUDA build of torch: its CPU build {version} goes into {folder}, once")
    made = folder.with_name(f"{folder.name}.{os.getpid()}")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-input", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        bound.command([*pip, "--target", str(made), *wanted]), capture_output=True, text=True, check=False
    )
    try:
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["it says nothing"]
            raise BuildError(f"pip cannot install {shlex.join(wanted)} ({last[0]}): {_what_to_do(version)}")
        if not (made / "torch").is_dir() or has_cuda(made / "torch"):
            raise BuildError(f"{shlex.join(wanted)} is not a CPU build of torch: {_what_to_do(version)}")
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _what_to_do(version: str) -> str:
    return (
        f"set {_WANTED} to the path of torch's wheel for the CPU, or to pip's options for the index that has it "
        f"(--index-url ADDRESS torch=={version}); or use an environment with torch's CPU build"
    )


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
        bound.module(module, *arguments),
        {**os.environ, "PYTHONPATH": path, _THERE: "1"},
    )


def _tell(sentence: str) -> None:
    print(f"streamrace: {sentence}", file=sys.stderr, flush=True)
