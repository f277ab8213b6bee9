"""Where this project's own files are: in a checkout, or where a wheel was installed.

In a checkout four folders of the package are links to folders at its top (``streamrace/detectors`` is ``detectors``),
so the parents of a resolved path are others than in a wheel. Nothing else counts the parents of ``__file__``.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).absolute().parent
"""The package's folder, ``streamrace``, as it is imported."""

IMPORTED_FROM = PACKAGE.parent
"""The folder that has to be in the import path of a process that imports the package."""


def root() -> Path | None:
    """The top of the checkout that the package is imported from; None for an installed wheel."""
    return IMPORTED_FROM if (IMPORTED_FROM / "pyproject.toml").is_file() else None
