"""Installs other releases of packages than the environment's, each in its own folder at the front of the import path.

``environment_of(["deepspeed==0.13.4"])`` returns the variables of a process that imports that release, unmodified, and
all other packages from the environment. The releases are kept in the user's cache, for all projects.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from streamrace.checkout import cache

VARIABLE = "STREAMRACE_PACKAGES"
"""Environment variable of a process that runs with other releases: their folders, as in PYTHONPATH."""


def folder_of_releases() -> Path:
    """Return the cache folder of the releases: one for each Python, since compiled parts fit only one version."""
    return cache() / "releases" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def places_of(
    packages: Sequence[str], folder: Path | None = None, *, tell: Callable[[str], None] = lambda _: None
) -> list[Path]:
    """Return the folders of ``packages`` (``NAME==VERSION``), and of what they need, that the environment lacks.

    Missing releases are first installed below ``folder`` (:func:`folder_of_releases`); ``tell`` gets a sentence for
    each slow step, and for packages installed in addition. Several processes may call this at once. Raise
    :class:`streamrace.device.packages.names.PackageError`.
    """
    from streamrace.device.packages import names, requirements

    return requirements.places(names.several(packages), folder or folder_of_releases(), tell)


def environment_of(
    packages: Sequence[str], folder: Path | None = None, *, tell: Callable[[str], None] = lambda _: None
) -> dict[str, str]:
    """Return the environment variables of a process that imports ``packages`` before all others; see :func:`places_of`.

    Raise :class:`streamrace.device.packages.names.PackageError`.
    """
    places = [str(place) for place in places_of(packages, folder, tell=tell)]
    if not places:
        return {**os.environ}
    behind = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part not in places]
    active = [part for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part and part not in places]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*places, *behind]),
        VARIABLE: os.pathsep.join([*places, *active]),
    }


def running() -> dict[str, Path]:
    """Return the folders of releases that this process uses instead of the environment's, by ``NAME==VERSION``."""
    from streamrace.device.packages import installing

    places = [Path(part) for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    return {str(package): place for place in places if (package := installing.package_in(place))}
