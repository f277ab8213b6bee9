"""Which of the files that a program executed are its own, and what they are called in its checkout.

A trace names a file below the folder that it is imported from, the same on every machine. What shows findings beside
the code (GitHub, an editor) wants it from the top of the checkout. That is found out where the program ran, and kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from streamrace.reports.data.sources import file_of

_INSTALLED = {"site-packages", "dist-packages", ".cache", ".releases"}  # folders of what is no part of a checkout


def top(start: Path) -> Path:
    """The top of the checkout around ``start``; ``start`` itself where there is none."""
    start = start.resolve()
    return next((one for one in (start, *start.parents) if (one / ".git").exists()), start)


def own(names: Iterable[str], folders: Sequence[Path], start: Path) -> dict[str, str]:
    """The names of files as in a trace, each with its path from the top of the checkout, where it lies in there.

    ``folders``: where files are looked for first, before the places that modules are imported from. ``start``: a folder
    of the checkout.
    """
    above = top(start)
    found = {}
    for name in dict.fromkeys(names):
        file = file_of(name, folders)
        try:
            below = file.resolve().relative_to(above) if file else None
        except (OSError, ValueError, RuntimeError):
            continue
        if below is not None and not _INSTALLED.intersection(below.parts):
            found[name] = below.as_posix()
    return found


def portable(name: str, places: Mapping[str, str]) -> str:
    """A name that says the same of the file on another machine. ``places``: as :func:`own` gives them."""
    if not name.startswith("/"):
        return name
    return places.get(name) or name.rpartition("/")[2]
