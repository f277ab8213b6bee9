"""Keeps the lines of source code around the accesses of a race with the run: ``sources.json``.

The lines are read when the run ends, from the files that it executed: later, another release may be installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from streamrace import checkout
from streamrace.detectors import Race
from streamrace.reports.data.schema import JsonFile, JsonPart
from streamrace.trace.records import Frame

_DEPTH = 3  # frames of each stack, the innermost
_AROUND = 6  # lines before and after
_LONGEST = 500  # characters of a line


class Source(JsonPart):
    """Lines of source code around ``line`` of ``file``, as they were when the run ran.

    ``text[0]`` is line number ``first``; long lines are cut.
    """

    file: str
    line: Annotated[int, Field(ge=1)]
    first: Annotated[int, Field(ge=1)]
    text: tuple[str, ...]


class SourcesFile(JsonFile):
    """``sources.json``."""

    NAME = "sources.json"
    _indent, _ascii = 1, True
    format: str = "stream-race-sources"
    sources: list[Source]


def collect(races: Sequence[Race], folders: Sequence[Path] = ()) -> SourcesFile:
    """Return the lines around the innermost frames of both stacks of each race.

    ``folders``: searched for files before the places that modules are imported from. A file that is not found, or is
    not text, is omitted.
    """
    sources = []
    texts: dict[str, list[str] | None] = {}
    for frame in dict.fromkeys(_frames(races)):
        if frame.file not in texts:
            texts[frame.file] = lines_of(frame.file, folders)
        lines = texts[frame.file]
        if lines is not None and 1 <= frame.line <= len(lines):
            first = max(1, frame.line - _AROUND)
            text = tuple(line[:_LONGEST] for line in lines[first - 1 : frame.line + _AROUND])
            sources.append(Source(file=frame.file, line=frame.line, first=first, text=text))
    return SourcesFile(sources=sources)


def write(races: Sequence[Race], folder: Path, folders: Sequence[Path] = ()) -> None:
    """Write ``sources.json``, even without a race: run folders are alike. Raises OSError."""
    collect(races, folders).write(folder)


def read(folder: Path) -> dict[str, Source]:
    """Read the lines in a folder, by ``file:line``; empty if it has none. Raises :class:`ReportError`."""
    sources = SourcesFile.read(folder).sources if (folder / SourcesFile.NAME).is_file() else []
    return {f"{source.file}:{source.line}": source for source in sources}


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
