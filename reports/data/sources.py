"""The lines of source code around the accesses of a race, kept with the run: ``sources.json``.

They are read when the run ends, from the files that it executed: later another release may stand there.
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
    """The file's contents: lines around the innermost frames of both stacks of each race.

    ``folders``: where files are looked for first, before the places that modules are imported from. A file that is not
    found, or that is no text, is left out.
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
    """Write ``sources.json``, also where there is no race: run folders are alike. Raises OSError."""
    (folder / "sources.json").write_text(json.dumps(kept(races, folders), indent=1) + "\n", encoding="utf-8")


def _frames(races: Iterable[Race]) -> Iterable[Frame]:
    """Without their functions: a line is one line, in whichever function it stands."""
    for race in races:
        for side in (race.first, race.second):
            for frame in side.stack[:_DEPTH]:
                yield frame._replace(function="")


def file_of(name: str, more: Sequence[Path]) -> Path | None:
    """The file that a frame names: in the first folder that has it, of those that modules are imported from."""
    folders = [Path(os.path.abspath(folder)) for folder in sys.path]
    for folder in (*more, *folders, checkout.IMPORTED_FROM):
        try:
            file = folder / name  # an absolute name stands for itself
            if file.is_file():
                return file
        except (OSError, ValueError):
            return None
    return None


def lines_of(name: str, more: Sequence[Path]) -> list[str] | None:
    """The lines of the file that a frame names; None where there is none, or it is no text."""
    file = file_of(name, more)
    try:
        # Split at line ends alone, as Python counts lines: splitlines() also splits at a form feed.
        return file.read_text(encoding="utf-8").removesuffix("\n").split("\n") if file else None
    except (OSError, ValueError):
        return None
