"""Caches transformers' listing, on each import, of the names in all of its models' files.

transformers lists them for the package and again for its models, 1,650 files each time, and caches the result of each
folder (``functools.lru_cache``), so that the second time should cost nothing. But it caches 128 folders, of some 500:
the second time finds none of them. With all of them cached each import is a fifth of a second shorter.
"""

from __future__ import annotations

import functools
from types import ModuleType


def adapt(module: ModuleType) -> None:
    """Let ``transformers.utils.import_utils``, which has just been imported, cache all folders."""
    listing = getattr(module, "create_import_structure_from_path", None)
    if (plain := getattr(listing, "__wrapped__", None)) is not None:  # else a release with another implementation
        module.create_import_structure_from_path = functools.cache(plain)  # type: ignore[attr-defined]
