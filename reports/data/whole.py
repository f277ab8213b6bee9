"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def whole(target: Path, save: Callable[[Path], object]) -> None:
    """``save`` writes beside, which is then put in place: a reader sees all of a file or none.

    What stands there already may have come with the folder, and lead out of it: nothing is written through a link.
    The ending stays, as it says how to write. Raises OSError.
    """
    if target.is_dir():
        raise IsADirectoryError(21, "a folder stands there")
    beside = target.with_name(f".part.{target.name}")
    beside.unlink(missing_ok=True)
    try:
        save(beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
