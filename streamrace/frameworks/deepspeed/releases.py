"""Installs other DeepSpeed releases: each once, in its own folder in the user's cache (``device.packages``).

Everything else, torch above all, is that of the environment. The release is put in front of the import path, and runs
unmodified.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.version import InvalidVersion, Version

from streamrace.device.packages import environment_of

PINNED = "0.19.8"
KNOWN = ("0.12.6", "0.13.1", "0.13.2", "0.13.4", "0.13.5", "0.14.5", "0.16.9", "0.18.2", "0.18.3", "0.19.4", PINNED)
"""The releases that were tried with the scenarios; any other may be requested."""
SYNCHRONISED = "0.13.5"
"""The first release that orders the secondary copy before its all-gather (pull request 5216)."""


class ReleaseError(Exception):
    """A release with which a command cannot go on. One sentence."""


def installed() -> str | None:
    """Return the release that ``import deepspeed`` loads in this process."""
    try:
        return version("deepspeed")
    except PackageNotFoundError:
        return None


def is_release(text: str) -> bool:
    """Check whether the text is a release's version; only the package index knows whether it exists."""
    try:
        return str(Version(text)) == text
    except InvalidVersion:
        return False


def environment(release: str, folder: Path | None = None) -> dict[str, str]:
    """Return the environment variables of a process whose scenarios run under ``release``; install it if need be.

    Raises :class:`streamrace.device.packages.names.PackageError`.
    """
    return {**environment_of([f"deepspeed=={release}"], folder), "DS_ACCELERATOR": "cpu"}
