"""Keeps the timings in which races were shown, in a run's folder: ``witnesses.json``.

The runs of witnesses leave no traces; so that a race can be explained from its folder alone, the work of all streams
around its two accesses is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer

from streamrace.detectors.order.races import Occurrence, plain
from streamrace.reports.data.schema import JsonFile, JsonPart
from streamrace.reports.window import Window


class SeenElsewhere(JsonPart):
    """Race number ``race`` (from 1) in another timing than the run's own.

    ``order``: of its two accesses in that timing, ``reversed`` or as the ``program`` issues them (then the run itself
    has them reversed). ``occurrence``: the occurrence that is shown, as the run had it.
    """

    race: Annotated[int, Field(ge=1)]
    order: Literal["reversed", "program"]
    occurrence: Annotated[Occurrence, PlainSerializer(plain)]
    window: Window


class WitnessesFile(JsonFile):
    """``witnesses.json``."""

    NAME = "witnesses.json"
    _indent = None
    format: str = "stream-race-witnesses"
    witnesses: list[SeenElsewhere]


def read(folder: Path) -> dict[int, SeenElsewhere]:
    """Read the file, by the race's number; empty if the run kept none. Raises :class:`ReportError`."""
    if not (folder / WitnessesFile.NAME).is_file():
        return {}
    return {witness.race: witness for witness in WitnessesFile.read(folder).witnesses}
