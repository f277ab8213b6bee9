"""The folders of the product. Four stand at the top, and are links in the package ``streamrace``."""

from __future__ import annotations

from pathlib import PurePath

PACKAGES = ("repro", "reports", "scenarios", "detectors", "streamrace")


def is_program(path: PurePath) -> bool:
    """Is it one of the catalogue's programs, which are run and not imported? Relative to the project."""
    return path.parts[:2] == ("scenarios", "catalogue") and len(path.parts) > 3
