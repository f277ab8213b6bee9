"""Keeps the lines of source code around the accesses of a race with the run: ``sources.json``.

The lines are read when the run ends, from the files that it executed: later, another release may be installed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from streamrace import checkout
from streamrace.detectors import Race
from streamrace.trace.records import Frame

FORMAT = "stream-race-sources"
VERSION = 1
_DEPTH = 3  # frames of each stack, the innermost
_AROUND = 6  # lines before and after
_LONGEST = 500  # characters of a line


def kept(races: Sequence[Race], folders: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the file's contents: lines around the innermost frames of both stacks of each race.

    ``folders``: searched for files before the places that modules are imported from. A file that is not found, or is
    not text, is omitted.
    """
    found = []
    texts: dict[str, list[str] | None] = {}
    for frame in dict.fromkeys(_frames(races)):
        if frame.file not in texts:
            texts[frame.file] = lines_of(frame.file, folders)
        lines = texts[frame.file]
        if lines is not None and 1 <= frame.line <= len(lines):
            first = max(1, frame.line - _AROUND)
            text = [line[:_LONGEST] for line in lines[first - 1 : frame.line + _AROUND]]
            found.append({"file": frame.file, "line": frame.line, "first": first, "text": text})
    return {"format": FORMAT, "version": VERSION, "sources": found}


def write(races: Sequence[Race], folder: Path, folders: Sequence[Path] = ()) -> None:
    """Write ``sources.json``, even without a race: run folders are alike. Raises OSError."""
    (folder / "sources.json").write_text(json.dumps(kept(races, folders), indent=1) + "\n", encoding="utf-8")


def _frames(races: Iterable[Race]) -> Iterable[Frame]:
    """Yield the frames without their functions: a line counts once, in whichever function."""
    for race in races:
        for side in (race.first, race.second):
            for frame in side.stack[:_DEPTH]:
                yield frame._replace(function="")


def file_of(name: str, more: Sequence[Path]) -> Path | None:
    """Return the file that a frame names, from ``more`` or the first folder on the import path that has it."""
    folders = [Path(os.path.abspath(folder)) for folder in sys.path]
    for folder in (*more, *folders, checkout.IMPORTED_FROM):
        try:
            file = folder / name  # an absolute name stays as it is
            if file.is_file():
                return file
        except (OSError, ValueError):
            return None
    return None


def lines_of(name: str, more: Sequence[Path]) -> list[str] | None:
    """Return the lines of the file that a frame names; None if it is missing or no text."""
    file = file_of(name, more)
    try:
        # Split at line ends alone, as Python counts lines: splitlines() also splits at a form feed.
        return file.read_text(encoding="utf-8").removesuffix("\n").split("\n") if file else None
    except (OSError, ValueError):
        return None
