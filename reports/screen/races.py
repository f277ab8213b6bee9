"""Formats races for the terminal, and the basis of a clean verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath

from rich.console import RenderableType
from rich.text import Text

from streamrace.detectors import Race
from streamrace.detectors import wording as of_accesses
from streamrace.detectors.order.races import Side
from streamrace.reports.data.findings import FoundRace, Held
from streamrace.reports.text import race as sentences
from streamrace.trace.records import Frame

MOST = 12  # races that are printed
_DEPTH = 2  # innermost frames of a side


def race_text(title: str, race: Race, *, own: str = "", whole: str = "findings.json", missing: str = "") -> Text:
    """Return a race as text for a person.

    ``own``: the user's script, whose line is added if it is not among the innermost. ``whole``: the file that has all
    names.
    """
    lines = Text(title, "bold")
    for word, side in (("first", race.first), ("second", race.second)):
        head, *places = of_accesses.listed(word, side, _frames(side, own), sentences.NOWHERE)
        lines.append(f"\n  {head}", "not bold")
        for place in places:
            lines.append(f"\n  {place}", "not bold cyan")
    for sentence in sentences.of_race(race, whole=whole, missing_wait=missing):
        lines.append(f"\n  {sentence}", "not bold")
    return lines


def finding_text(found: FoundRace, *, own: str = "", whole: str = "findings.json", answer: Sequence[str] = ()) -> Text:
    """Return a finding as text for a person: its ``answer``, if there is one, then the race that it is described by.

    ``own``, ``whole``: see :func:`race_text`.
    """
    lines = Text(f"Race {found.number}: {found.race.kind}", "bold")
    for line in answer:
        lines.append(f"\n  {line}", "not bold")
    missing = sentences.missing_for_all(found.where, found.races)
    lines.append_text(race_text("", found.race, own=own, whole=whole, missing=missing))
    if found.others and not answer:
        lines.append(f"\n  {sentences.folded(list(found.others))}.", "not bold")
    return lines


def _frames(side: Side, own: str) -> list[Frame]:
    """Return the innermost frames, and the one in the file ``own`` if that is not among them."""
    script = [frame for frame in side.stack if PurePath(frame.file).name == Path(own).name][:1]
    return list(dict.fromkeys([*side.stack[:_DEPTH], *script]))


def held_text(held: Held, own: str = "") -> Text:
    """Return which waits alone order which pairs, for a person. ``own``: see :func:`race_text`."""
    if len(held.sites) == 1:
        lines = Text(f"Held only by {held.sites[0]}. Without it:", "bold")
    else:
        lines = Text(f"Held only by {len(held.sites)} waits, each of which is enough for some of it:", "bold")
        for site in held.sites:
            lines.append(f"\n  {site}", "not bold cyan")
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
    return [Text(""), Text(title, "bold"), *(Text(f"  {sentence}.") for sentence in sentences)]
