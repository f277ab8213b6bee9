"""Releases of packages beside the environment's own: each in a folder of its own, in front of the import path.

``environment_of(["deepspeed==0.13.4"], Path(".releases"))`` are the variables of a process that imports that release,
unmodified, and everything else as the environment has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

FOLDER = Path(".releases")
VARIABLE = "STREAMRACE_PACKAGES"
"""Of a process that runs with other releases: their folders, as in PYTHONPATH."""


def environment_of(
    packages: Sequence[str], folder: Path = FOLDER, *, tell: Callable[[str], None] = lambda _: None
) -> dict[str, str]:
    """The environment variables of a process that imports ``packages`` (``NAME==VERSION``), in front of all else.

    What is not there is installed below ``folder`` first; ``tell`` gets a sentence for what takes time, and for what
    was installed beside. May be called by several processes at once. Raises
    :class:`streamrace.device.packages.names.PackageError`.
    """
    from streamrace.device.packages import beside, names

    places = [str(place) for place in beside.places(names.several(packages), folder, tell)]
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
