"""The packages of the product, from the top floor down."""

from __future__ import annotations

from pathlib import PurePath

PACKAGES = (
    "repro", "reports", "studies", "scenarios", "frameworks", "fuzz", "replay", "metrics", "detectors", "simgpu",
)  # fmt: skip


def is_program(path: PurePath) -> bool:
    """Is it one of the catalogue's programs, which are run and not imported? Relative to the project."""
    return path.parts[:2] == ("scenarios", "catalogue") and len(path.parts) > 3
