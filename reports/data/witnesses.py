"""Keeps the timings in which races were shown, in a run's folder: ``witnesses.json``.

The runs of witnesses leave no traces; so that a race can be explained from its folder alone, the work of all streams
around its two accesses is kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from streamrace.detectors.order.races import Occurrence, plain
from streamrace.reports.data.schema import checked, does_not_hold, read_json
from streamrace.reports.data.whole import whole
from streamrace.reports.window import Window

FILE = "witnesses.json"
FORMAT, VERSION = "stream-race-witnesses", 1
_FARTHEST = 2**53  # nanoseconds


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class SeenElsewhere(_Part):
    """Race number ``race`` (from 1) in another timing than the run's own.

    ``order``: of its two accesses in that timing, ``reversed`` or as the ``program`` issues them (then the run itself
    has them reversed). ``occurrence``: the occurrence that is shown, as the run had it.
    """

    race: Annotated[int, Field(ge=1)]
    order: Literal["reversed", "program"]
    occurrence: Occurrence
    window: Window


class _File(_Part):
    format: str
    version: int
    witnesses: list[SeenElsewhere]


def write(witnesses: Sequence[SeenElsewhere], folder: Path) -> None:
    """Write the file, whole or not at all. Raises OSError."""
    data = {"format": FORMAT, "version": VERSION, "witnesses": [_plain(one) for one in witnesses]}
    text = json.dumps(data, ensure_ascii=False) + "\n"
    whole(folder / FILE, lambda beside: beside.write_text(text.encode("utf-8", "backslashreplace").decode("utf-8")))


def read(folder: Path) -> dict[int, SeenElsewhere]:
    """Read the file, by the race's number; empty if the run kept none. Raises :class:`ReportError`."""
    file = folder / FILE
    if not file.is_file():
        return {}
    found = checked(_File, file, read_json(file), named=FORMAT, version=VERSION)
    for one in found.witnesses:
        window = one.window
        times = [window.start, window.end]
        times += [time for each in (window.first, window.second, *window.slices) for time in (each.start, each.end)]
        if not all(-_FARTHEST <= time <= _FARTHEST for time in times):
            raise does_not_hold(file, "a time is a number that no run writes")
    return {one.race: one for one in found.witnesses}


def _plain(one: SeenElsewhere) -> dict[str, Any]:
    kept: dict[str, Any] = plain(one.window)
    return {"race": one.race, "order": one.order, "occurrence": plain(one.occurrence), "window": kept}
