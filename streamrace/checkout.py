"""Locates the project's own files, in a checkout or in an installed wheel.

In a checkout four folders of the package are links to folders at its top (``streamrace/detectors`` is ``detectors``),
so a resolved path has other parents than in a wheel. No other module counts the parents of ``__file__``.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).absolute().parent
"""The package's folder, ``streamrace``, as imported."""

IMPORTED_FROM = PACKAGE.parent
"""The folder that must be on the import path of a process that imports the package."""

INSTALLED = frozenset({"site-packages", "dist-packages", ".cache", ".releases"})
"""Names of folders whose files belong to no user's checkout."""


def root() -> Path | None:
    """Return the top of the checkout that the package is imported from; None for an installed wheel."""
    return IMPORTED_FROM if (IMPORTED_FROM / "pyproject.toml").is_file() else None
