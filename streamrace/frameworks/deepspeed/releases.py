"""Other DeepSpeed releases: each in a folder of its own in the user's cache, made once (``device.packages``).

Everything else, torch above all, is the environment we run in. The release is put in front of the import path, so that
what runs is that release, unmodified.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.version import InvalidVersion, Version

from streamrace.device.packages import environment_of

PINNED = "0.19.8"
KNOWN = ("0.12.6", "0.13.1", "0.13.2", "0.13.4", "0.13.5", "0.14.5", "0.16.9", "0.18.2", "0.18.3", "0.19.4", PINNED)
"""Those that were tried with the scenarios; any other may be asked for."""
SYNCHRONISED = "0.13.5"
"""The first release that orders the secondary copy before its all-gather (pull request 5216)."""


class ReleaseError(Exception):
    """A release with which a command cannot go on. One sentence."""


def installed() -> str | None:
    """The release that ``import deepspeed`` gives in this process."""
    try:
        return version("deepspeed")
    except PackageNotFoundError:
        return None


def is_release(text: str) -> bool:
    """Does it say one release? Whether there is such a one, the package index says."""
    try:
        return str(Version(text)) == text
    except InvalidVersion:
        return False


def environment(release: str, folder: Path | None = None) -> dict[str, str]:
    """The environment variables of a process in which scenarios run under ``release``, which is installed if need be.

    Raises :class:`streamrace.device.packages.names.PackageError`.
    """
    return {**environment_of([f"deepspeed=={release}"], folder), "DS_ACCELERATOR": "cpu"}
