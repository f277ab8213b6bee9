"""Other DeepSpeed releases: each in an environment of its own under the project, built once.

A release is installed by name, alone (``pip install --no-deps --target``); everything else, torch above all,
is the environment we run in. It is put in front of the import path, so that the release that runs is
that release, unmodified.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from simgpu.ranks import bound

PINNED = "0.19.8"
KNOWN = ("0.12.6", "0.13.1", "0.13.2", "0.13.4", "0.13.5", "0.14.5", "0.16.9", "0.18.2", "0.18.3", "0.19.4", PINNED)
SYNCHRONISED = "0.13.5"
"""The first release that orders the secondary copy before its all-gather (pull request 5216)."""
_BUILD_S = 600


class ReleaseError(Exception):
    """A release that cannot be installed. One sentence."""


def installed() -> str | None:
    """The release that ``import deepspeed`` gives in this process."""
    try:
        return version("deepspeed")
    except PackageNotFoundError:
        return None


def install(release: str, folder: Path) -> Path:
    """Where ``release`` lies below ``folder``; it is installed there unless it is already.

    Raises :class:`ReleaseError`: an unknown release, one that the registry does not have or that does not
    build, or a registry that cannot be reached.
    """
    if release not in KNOWN:
        raise ReleaseError(f"DeepSpeed {release} is not known to work here: choose one of {', '.join(KNOWN)}")
    place = folder.absolute() / release
    if (place / f"deepspeed-{release}.dist-info").is_dir():
        return place
    partial = place.with_name(f"{release}.partial-{os.getpid()}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(partial), f"deepspeed=={release}"]
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(bound.command(command), capture_output=True, text=True, timeout=_BUILD_S, env=_clean())
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "ERROR" in line or "error" in line]
            reason = errors[-1].strip() if errors else f"pip ended with {done.returncode}"
            raise ReleaseError(f"DeepSpeed {release} cannot be installed: {reason}")
        with suppress(OSError):  # somebody else may have been faster
            partial.rename(place)
        if not place.is_dir():
            raise ReleaseError(f"DeepSpeed {release} cannot be installed in {folder}: the folder cannot be written")
    except subprocess.TimeoutExpired:
        raise ReleaseError(f"DeepSpeed {release} cannot be installed: its build took over {_BUILD_S} s") from None
    except OSError as error:
        raise ReleaseError(f"DeepSpeed {release} cannot be installed in {folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place


def environment(place: Path) -> dict[str, str]:
    """The environment variables of a process that is to import the release at ``place``."""
    behind = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), *behind]), "DS_ACCELERATOR": "cpu"}


def _clean() -> dict[str, str]:
    """Without what leads a build astray: another release, or an accelerator that needs Intel's package."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DS_ACCELERATOR")}
