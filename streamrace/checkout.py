"""Locates the project's own files, in a checkout or in an installed wheel.

In a checkout four folders of the package are links to folders at its top (``streamrace/detectors`` is ``detectors``),
so a resolved path has other parents than in a wheel. No other module counts the parents of ``__file__``.
"""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).absolute().parent
"""The package's folder, ``streamrace``, as imported."""

IMPORTED_FROM = PACKAGE.parent
"""The folder that must be on the import path of a process that imports the package."""

_INSTALLED = frozenset({"site-packages", "dist-packages", ".cache", ".releases"})


def root() -> Path | None:
    """Return the top of the checkout that the package is imported from; None for an installed wheel."""
    return IMPORTED_FROM if (IMPORTED_FROM / "pyproject.toml").is_file() else None


def cache() -> Path:
    """Return the user's cache folder. ``STREAMRACE_CACHE`` overrides the default."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.environ.get("STREAMRACE_CACHE") or os.path.join(home, "streamrace"))


def installed(file: str) -> bool:
    """Check whether a file belongs to no user's checkout: it was installed, or lies in the cache, as releases do."""
    return bool(_INSTALLED.intersection(file.split(os.sep))) or cached(file)


def cached(file: str) -> bool:
    """Check whether a file, named by its whole path, lies in the cache."""
    return file.startswith(f"{cache()}{os.sep}")
