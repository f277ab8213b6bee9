"""Formats races for the terminal, and the basis of a clean verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

from rich.console import RenderableType
from rich.text import Text

from streamrace.detectors import Race
from streamrace.detectors.order.races import Side
from streamrace.detectors.streams import stream_named
from streamrace.reports.data.findings import Held
from streamrace.reports.text import closeness
from streamrace.trace.records import Frame

MOST = 12  # races that are printed
_DEPTH = 2  # innermost frames of a side
_NAMES = 4  # of memory


def race_text(title: str, race: Race, *, own: str = "", whole: str = "findings.json") -> Text:
    """Return a race as text for a person.

    ``own``: the user's script, whose line is added if it is not among the innermost. ``whole``: the file that has all
    names.
    """
    lines = Text(title, "bold")
    for word, side in (("first", race.first), ("second", race.second)):
        lines.append(f"\n  {word:<7}{side.access} by {side.kernel} on {stream_named(side.stream)}", "not bold")
        for where in _places(side, own):
            lines.append(f"\n    {where}", "not bold cyan")
    ranks = ", ".join(map(str, race.ranks))
    often = "once" if race.occurrences == 1 else f"{race.occurrences} times"
    told = [
        f"Missing: {race.missing_wait}.",
        f"{often} on rank {ranks}; this timing shows {race.manifested} of them, {closeness(race.slack_ns)}.",
    ]
    if race.memory:
        left = len(race.memory) - _NAMES
        told.append(f"Memory: {', '.join(race.memory[:_NAMES])}{f' and {left} more (see {whole})' * (left > 0)}")
    for line in told:
        lines.append(f"\n  {line}", "not bold")
    return lines


def _places(side: Side, own: str) -> list[str]:
    script = Path(own).name
    told = [_place(frame) for frame in side.stack[:_DEPTH]]
    if not any(PurePath(frame.file).name == script for frame in side.stack[:_DEPTH]):
        told += [_place(frame) for frame in side.stack[_DEPTH:] if PurePath(frame.file).name == script][:1]
    return told or ["no place is known: it is not a call of the program's"]


def _place(frame: Frame) -> str:
    return f"{frame.file}:{frame.line} {frame.function.rpartition('.')[2]}"


def held_text(held: Held, own: str = "") -> Text:
    """Return which waits alone order which pairs, for a person. ``own``: see :func:`race_text`."""
    if len(held.sites) == 1:
        lines = Text(f"Held only by {held.sites[0]}. Without it:", "bold")
    else:
        lines = Text(f"Held only by {len(held.sites)} waits, each of which is enough for some of it:", "bold")
        for one in held.sites:
            lines.append(f"\n  {one}", "not bold cyan")
        lines.append("\nWithout all of them:")
    for race in held.races[:MOST]:
        lines.append("\n")
        lines.append_text(race_text(f"  {race.kind}", race, own=own))
    if len(held.races) > MOST:
        lines.append(f"\n  and {len(held.races) - MOST} more: see findings.json")
    return lines


def unexercised_text(sentences: Sequence[str]) -> list[RenderableType]:
    """Return a list of the features that were on and never used."""
    return listed("Not exercised, so nothing is known of it:", sentences)


def listed(title: str, sentences: Sequence[str]) -> list[RenderableType]:
    if not sentences:
        return []
    return [Text(""), Text(title, "bold"), *(Text(f"  {one}.") for one in sentences)]
