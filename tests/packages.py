"""The folders of the product. Four stand at the top, as their users expect, and are links in the package."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("repro", "reports", "scenarios", "detectors")
PACKAGES = (*LINKED, "streamrace")


def is_program(path: PurePath) -> bool:
    """Is it a program of the catalogue or the demo, which is run and not imported? Relative to the project."""
    return path.parts[:2] == ("scenarios", "demo") or (
        path.parts[:2] == ("scenarios", "catalogue") and len(path.parts) > 3
    )


def tracked() -> set[Path]:
    """The product's files, as git has them: what lies beside them (caches, an editor's copies) is nobody's."""
    done = subprocess.run(["git", "ls-files", "-z", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    links = {f"streamrace/{name}" for name in LINKED}
    return {Path(name) for name in done.stdout.split("\0") if name and name not in links}


def as_installed(path: PurePath) -> PurePath:
    """Where a wheel has the file: below ``streamrace``."""
    return path if path.parts[0] == "streamrace" else PurePath("streamrace", path)
