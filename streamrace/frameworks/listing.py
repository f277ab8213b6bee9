"""What transformers looks up each time it is imported: the names in all of its models' files.

It lists them for the package and again for its models, 1,650 files each time, and remembers what it found in each
folder (``functools.lru_cache``), so that the second time should cost nothing. But it remembers 128 folders, of which
there are some 500: the second time finds none of them. Here it remembers all: a fifth of a second less, each time.
"""

from __future__ import annotations

import functools
from types import ModuleType


def adapt(module: ModuleType) -> None:
    """Let ``transformers.utils.import_utils`` remember all folders. It has just been imported."""
    listing = getattr(module, "create_import_structure_from_path", None)
    if (plain := getattr(listing, "__wrapped__", None)) is not None:  # else a release that does it in another way
        module.create_import_structure_from_path = functools.cache(plain)  # type: ignore[attr-defined]
