"""Prints the verdict on a program of the user's own in the terminal."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from streamrace.detectors import Race
from streamrace.detectors.order.races import describe
from streamrace.reports.data.checked import Checked
from streamrace.reports.data.schema import KeptSuppression
from streamrace.reports.screen.races import MOST, held_text, listed, race_text, unexercised_text
from streamrace.reports.table import STYLES
from streamrace.reports.text import reports_on, typed
from streamrace.trace.untrusted import visible

_WHERE = {"baseline": "in the baseline", "comment": "by a comment"}


def verdict(console: Console, checked: Checked, folder: Path, page: Path | None = None) -> None:
    """Print the verdict, both lines of each race, and where the files are. ``page``: its file, if already written."""
    colour = STYLES[checked.verdict.tone]
    body: list[RenderableType] = [Text(checked.sentence(), f"bold {colour}")]
    if with_ := checked.ran_with():
        body.append(Text(f"{with_}."))
    own = shlex.split(str(checked.asked["program"]))[0]
    for number, race in enumerate(checked.races[:MOST], 1):
        body += [Text(""), race_text(f"Race {number}: {race.kind}", race, own=own)]
        body += _why(checked.suppressed[number - 1])
    if len(checked.races) > MOST:
        body.append(Text(f"\nAnd {len(checked.races) - MOST} more: see findings.json."))
    for held in checked.holding.held:
        body += [Text(""), held_text(held, own)]
    if checked.holding.unexamined:
        body.append(Text(f"\n{checked.holding.unexamined} more lines that wait were not left out by themselves."))
    if not checked.failure:
        body += unexercised_text(checked.unexercised)
    body += listed("Not seen:", checked.unseen)
    body += listed(
        "Wrong values:", [f"{one.name} on rank {one.rank} ({one.kind}): {one.says}" for one in checked.wrong]
    )
    body += listed("Uninitialised:", [visible(one.sentence(), lines=False) for one in checked.uninitialised])
    if aside := [one for one in checked.suppressed if one]:
        told = Counter(one.kind for one in aside)
        words = [f"{count} {_WHERE[kind]}" for kind, count in told.items()]
        left = len(checked.found) - len(aside)
        body.append(Text(f"\nKnown before, and not counted: {', '.join(words)}. {left} left.", "bold"))
    body += listed("In the baseline, and not in this run:", [one.removesuffix(".") for one in checked.known.gone or ()])
    if checked.dry:
        body += [Text(""), *(Text(f"{one}.") for one in checked.dry.sentences())]
    if checked.seen.launches:
        body += [Text(""), Text(f"Examined: {checked.seen.sentence()}.")]
    if checked.seeded:
        body.append(Text(f"{checked.seeded}."))
    if checked.thinned:
        body += [Text(f"{one}.") for one in checked.thinned.sentences(checked.races)]
    console.print(Panel(Group(*body), title=f"verdict: {checked.verdict}", border_style=colour))
    for number, witness in enumerate(checked.witnesses, 1):
        again = " Again:" if witness.command else ""
        # Outside the frame no name may begin a line: a workflow's log interprets lines that begin with :: as commands.
        line = visible(f"Race {number} is {witness.verdict}: {witness.says}.{again}", lines=False)
        console.print(line, highlight=False, markup=False)
        if witness.command:  # a line to copy
            command = visible(typed(witness.command), lines=False)
            console.print(f"  {command}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"Files: {folder}/findings.json, trace/", highlight=False, soft_wrap=True, markup=False)
    console.print(f"Page:  {page or typed(reports_on(folder))}", highlight=False, soft_wrap=True, markup=False)


def first(console: Console, race: Race) -> None:
    """Print a race that was found while the program is running."""
    line = visible(f"A race: {pair(race)}. The program runs on; the verdict comes at its end.", lines=False)
    console.print(line, highlight=False, markup=False)


def pair(race: Race) -> str:
    """Return the race's two accesses, in short."""
    return " and ".join(f"{side.access} by {describe(side.kernel, side.stack)}" for side in (race.first, race.second))


def _why(one: KeptSuppression | None) -> list[RenderableType]:
    """Return the reason why a race does not count; empty if it counts."""
    if one is None:
        return []
    where = f" ({one.file}:{one.line})" if one.file else ""
    return [Text(f"  Known before: {one.reason}{where}.")]
