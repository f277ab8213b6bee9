"""The packages of the product, from the top floor down."""

from __future__ import annotations

from pathlib import PurePath

PACKAGES = (
    "repro", "reports", "studies", "scenarios", "frameworks", "fuzz", "replay", "metrics", "detectors", "simgpu",
)  # fmt: skip


def is_program(path: PurePath) -> bool:
    """Is it a program of the catalogue or the demo, which is run and not imported? Relative to the project."""
    return path.parts[:2] == ("scenarios", "demo") or (
        path.parts[:2] == ("scenarios", "catalogue") and len(path.parts) > 3
    )
