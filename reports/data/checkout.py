"""Finds which of the files that a program executed belong to its checkout, and their paths in it.

A trace names a file relative to the folder that it is imported from, the same on every machine. Tools that show code
(GitHub, an editor) need the path from the top of the checkout, so it is determined where the program ran, and kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from streamrace.checkout import cached, installed
from streamrace.reports.data.sources import file_of


def top(start: Path) -> Path:
    """Return the top of the checkout around ``start``; ``start`` itself if there is no checkout."""
    start = start.resolve()
    return next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), start)


def own(names: Iterable[str], folders: Sequence[Path], start: Path) -> dict[str, str]:
    """Map names of files as in a trace to their paths from the top of the checkout, for the files that lie in it.

    ``folders``: searched for files before the places that modules are imported from. ``start``: a folder of the
    checkout.
    """
    above = top(start)
    paths = {}
    for name in dict.fromkeys(names):
        file = file_of(name, folders)
        try:
            whole = file.resolve() if file else None
            below = whole.relative_to(above) if whole else None
        except (OSError, ValueError, RuntimeError):
            continue
        if below is not None and not installed(below.as_posix()) and not cached(str(whole)):
            paths[name] = below.as_posix()
    return paths


def portable(name: str, places: Mapping[str, str]) -> str:
    """Return a name of the file that is the same on another machine. ``places``: as :func:`own` returns them."""
    if not name.startswith("/"):
        return name
    return places.get(name) or name.rpartition("/")[2]
