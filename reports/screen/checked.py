"""The verdict on a program of the user's own, in the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from detectors import Race
from detectors.confidence.holding import Held
from detectors.order.races import Side
from reports.data.checked import Checked
from reports.data.findings import Verdict, place
from reports.text import closeness

_COLOURS = {Verdict.RACE: "red", Verdict.FRAGILE: "yellow", Verdict.UNKNOWN: "yellow", Verdict.CLEAN: "green"}
_MOST = 12  # races told in the terminal
_DEPTH = 2  # innermost frames told of a side


def verdict(console: Console, checked: Checked, folder: Path, page: Path | None = None) -> None:
    """The verdict, both lines of each race, and where the rest lies. ``page``: it is there already."""
    colour = _COLOURS[checked.verdict]
    body: list[RenderableType] = [Text(checked.sentence(), f"bold {colour}")]
    own = shlex.split(str(checked.asked["program"]))[0]
    for number, race in enumerate(checked.races[:_MOST], 1):
        body += [Text(""), race_text(f"Race {number}: {race.kind}", race, own)]
    if len(checked.races) > _MOST:
        body.append(Text(f"\nAnd {len(checked.races) - _MOST} more: see findings.json."))
    for held in checked.holding.held:
        body += [Text(""), held_text(held, own)]
    if checked.holding.unexamined:
        body.append(Text(f"\n{checked.holding.unexamined} more lines that wait were not left out by themselves."))
    if not checked.failure:
        body += unexercised_text(checked.unexercised)
    body += _told("Not seen:", checked.unseen)
    if checked.dry:
        body += [Text(""), *(Text(f"{one}.") for one in checked.dry.sentences())]
    if checked.seen.launches:
        body += [Text(""), Text(f"Looked at: {checked.seen.sentence()}.")]
    console.print(Panel(Group(*body), title=f"verdict: {checked.verdict}", border_style=colour))
    for number, witness in enumerate(checked.witnesses, 1):
        again = " Again:" if witness.command else ""
        console.print(f"Race {number} is {witness.verdict}: {witness.says}.{again}", highlight=False, markup=False)
        if witness.command:  # outside the frame: a line to copy
            console.print(f"  {witness.command}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"Files: {folder}/findings.json, trace/", highlight=False, soft_wrap=True, markup=False)
    console.print(f"Page:  {page or f'python -m repro report {folder}'}", highlight=False, soft_wrap=True, markup=False)


def race_text(title: str, race: Race, own: str) -> Text:
    """A race, for a person. ``own``: the script, whose line is told where it is not among the innermost."""
    lines = Text(title, "bold")
    for word, side in (("first", race.first), ("second", race.second)):
        lines.append(f"\n  {word:<7}{side.access} by {side.kernel} on stream '{side.stream}'", "not bold")
        for where in _places(side, own):
            lines.append(f"\n    {where}", "not bold cyan")
    ranks = ", ".join(map(str, race.ranks))
    often = "once" if race.occurrences == 1 else f"{race.occurrences} times"
    for line in (
        f"Missing: {race.missing_wait}.",
        f"{often} on rank {ranks}; this timing shows {race.shown} of them, {closeness(race.margin_ns)}.",
    ):
        lines.append(f"\n  {line}", "not bold")
    return lines


def _places(side: Side, own: str) -> list[str]:
    told = place(side.stack, _DEPTH)
    script = Path(own).name
    if not any(Path(frame.file).name == script for frame in side.stack[:_DEPTH]):
        told += [one for frame in side.stack[_DEPTH:] if Path(frame.file).name == script for one in place([frame])][:1]
    return told or ["no place is known: it is not a call of the program's"]


def held_text(held: Held, own: str = "") -> Text:
    """What holds which pairs, for a person. ``own``: see :func:`race_text`."""
    if len(held.sites) == 1:
        lines = Text(f"Held only by {held.sites[0]}. Without it:", "bold")
    else:
        lines = Text(f"Held only by {len(held.sites)} waits, each of which is enough for some of it:", "bold")
        for one in held.sites:
            lines.append(f"\n  {one}", "not bold cyan")
        lines.append("\nWithout all of them:")
    for race in held.races[:_MOST]:
        lines.append("\n")
        lines.append_text(race_text(f"  {race.kind}", race, own))
    if len(held.races) > _MOST:
        lines.append(f"\n  and {len(held.races) - _MOST} more: see findings.json")
    return lines


def unexercised_text(sentences: Sequence[str]) -> list[RenderableType]:
    """What was on and never happened."""
    return _told("Not exercised, so nothing is known of it:", sentences)


def _told(title: str, sentences: Sequence[str]) -> list[RenderableType]:
    if not sentences:
        return []
    return [Text(""), Text(title, "bold"), *(Text(f"  {one}.") for one in sentences)]
