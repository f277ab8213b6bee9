"""Releases of packages beside the environment's own: each in a folder of its own, in front of the import path.

``environment_of(["deepspeed==0.13.4"])`` are the variables of a process that imports that release, unmodified, and
everything else as the environment has it. The releases are kept in the user's cache, for all projects.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from streamrace.compiling import cache

VARIABLE = "STREAMRACE_PACKAGES"
"""Of a process that runs with other releases: their folders, as in PYTHONPATH."""


def folder_of_releases() -> Path:
    """Where releases are kept, in the user's cache: a folder for each Python, as what they compile is for one alone."""
    return cache() / "releases" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def environment_of(
    packages: Sequence[str], folder: Path | None = None, *, tell: Callable[[str], None] = lambda _: None
) -> dict[str, str]:
    """The environment variables of a process that imports ``packages`` (``NAME==VERSION``), in front of all else.

    What is not there is installed below ``folder`` (:func:`folder_of_releases`) first; ``tell`` gets a sentence for
    what takes time, and for what was installed beside. May be called by several processes at once. Raises
    :class:`streamrace.device.packages.names.PackageError`.
    """
    from streamrace.device.packages import beside, names

    wanted = names.several(packages)
    places = [str(place) for place in beside.places(wanted, folder or folder_of_releases(), tell)]
    if not places:
        return {**os.environ}
    behind = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part not in places]
    now = [part for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part and part not in places]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*places, *behind]),
        VARIABLE: os.pathsep.join([*places, *now]),
    }


def running() -> dict[str, Path]:
    """The releases with which this process runs in place of the environment's: their folders, by ``NAME==VERSION``."""
    from streamrace.device.packages import installing

    places = [Path(part) for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    return {str(one): place for place in places if (one := installing.package_in(place))}
