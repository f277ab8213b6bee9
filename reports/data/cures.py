"""Keeps the cures that ``streamrace check`` proposes: ``cures.json``, and a diff for each in ``cure-N.diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from streamrace.reports.data.schema import JsonFile, JsonPart
from streamrace.reports.data.whole import put


class Cure(JsonPart):
    """The first cure that orders race ``race``, and all that lack the same wait, in the run's trace; not tried live.

    ``words``: what it does, without a full stop; ``cost``: in virtual time, for a person. ``apply``: the command that
    applies the diff; empty where it changes a file that is not the program's own.
    """

    race: Annotated[int, Field(ge=1)]
    words: str
    cost: str
    diff: str
    apply: str = ""


class CuresFile(JsonFile):
    """``cures.json``."""

    NAME = "cures.json"
    format: str = "stream-race-cures"
    cures: list[Cure]

    def write(self, folder: Path) -> Path:
        """Write the file, and each diff. Raises OSError."""
        for cure in self.cures:
            put(folder / diff_of(cure.race), cure.diff)
        return super().write(folder)


def diff_of(race: int) -> str:
    """Return the name of the file that has the diff for a race."""
    return f"cure-{race}.diff"


def read(folder: Path) -> dict[int, Cure]:
    """Read the cures, by the number of the race; empty if the run has none. Raises :class:`ReportError`."""
    if not (folder / CuresFile.NAME).is_file():
        return {}
    return {cure.race: cure for cure in CuresFile.read(folder).cures}
