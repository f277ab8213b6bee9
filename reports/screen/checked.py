"""The verdict on a program of the user's own, in the terminal."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from reports.data.checked import Checked
from reports.screen.races import MOST, held_text, listed, race_text, unexercised_text
from reports.table import STYLES
from reports.text import reports_on, typed


def verdict(console: Console, checked: Checked, folder: Path, page: Path | None = None) -> None:
    """The verdict, both lines of each race, and where the rest lies. ``page``: it is there already."""
    colour = STYLES[checked.verdict.tone]
    body: list[RenderableType] = [Text(checked.sentence(), f"bold {colour}")]
    if with_ := checked.ran_with():
        body.append(Text(f"{with_}."))
    own = shlex.split(str(checked.asked["program"]))[0]
    for number, race in enumerate(checked.races[:MOST], 1):
        body += [Text(""), race_text(f"Race {number}: {race.kind}", race, own=own)]
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
    if checked.dry:
        body += [Text(""), *(Text(f"{one}.") for one in checked.dry.sentences())]
    if checked.seen.launches:
        body += [Text(""), Text(f"Examined: {checked.seen.sentence()}.")]
    console.print(Panel(Group(*body), title=f"verdict: {checked.verdict}", border_style=colour))
    for number, witness in enumerate(checked.witnesses, 1):
        again = " Again:" if witness.command else ""
        console.print(f"Race {number} is {witness.verdict}: {witness.says}.{again}", highlight=False, markup=False)
        if witness.command:  # outside the frame: a line to copy
            console.print(f"  {typed(witness.command)}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"Files: {folder}/findings.json, trace/", highlight=False, soft_wrap=True, markup=False)
    console.print(f"Page:  {page or typed(reports_on(folder))}", highlight=False, soft_wrap=True, markup=False)
