"""Writes files whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def replace_file(target: Path, save: Callable[[Path], object]) -> None:
    """Replace ``target`` by a file that ``save`` writes next to it: a reader sees all of a file or none.

    An existing target may have come with the folder, and lead out of it: nothing is written through a link. The suffix
    stays, as ``save`` may choose the format by it. Raises OSError.
    """
    if target.is_dir():
        raise IsADirectoryError(21, "it is a folder")
    beside = target.with_name(f".part.{target.name}")
    beside.unlink(missing_ok=True)
    try:
        save(beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def put(target: Path, text: str) -> Path:
    """Replace ``target`` by a file that holds the text, as :func:`replace_file` does, and return it. Raises OSError."""
    replace_file(target, lambda beside: beside.write_text(text, encoding="utf-8"))
    return target
