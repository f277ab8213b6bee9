"""Prints the verdict on a program of the user's own in the terminal."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from streamrace.detectors import Race
from streamrace.reports.data.answer import answers
from streamrace.reports.data.cures import Cure
from streamrace.reports.data.finding_kinds import warns
from streamrace.reports.data.findings import Findings
from streamrace.reports.data.schema import KeptSuppression
from streamrace.reports.data.verdict import ran_with, recorded_on
from streamrace.reports.screen.races import MOST, finding_text, held_text, listed, unexercised_text
from streamrace.reports.text import race as sentences
from streamrace.reports.text import reports_on, typed
from streamrace.studies.table import STYLES
from streamrace.trace import wording
from streamrace.trace.untrusted import visible

_WHERE = {"baseline": "in the baseline", "comment": "by a comment"}


def verdict(console: Console, findings: Findings, folder: Path, page: Path | None = None) -> None:
    """Print the verdict, both lines of each race, and where the files are. ``page``: its file, if already written."""
    basis = findings.checked
    assert basis is not None
    colour = STYLES[findings.verdict.tone]
    body: list[RenderableType] = [Text(findings.sentence, f"bold {colour}")]
    for how in filter(None, (ran_with(findings.scenario), recorded_on(findings.scenario))):
        body.append(Text(f"{how}."))
    own = shlex.split(str(findings.scenario["program"]))[0]
    answered = answers(folder, findings)
    for each in answered[:MOST]:
        text = finding_text(each.found, own=own, answer=each.answer.lines())
        body += [Text(""), text, *_why(each.found.suppressed)]
    if len(answered) > MOST:
        body.append(Text(f"\nAnd {len(answered) - MOST} more: see findings.json."))
    for held in findings.held:
        body += [Text(""), held_text(held, own)]
    if basis.unexamined:
        body.append(Text(f"\n{basis.unexamined} more lines that wait were not left out by themselves."))
    if not findings.failure:
        body += unexercised_text(basis.unexercised)
    body += listed("Not seen:", basis.unseen)
    body += listed("Wrong values:", [f"{row.name} on rank {row.rank} ({row.kind}): {row.says}" for row in basis.wrong])
    for kind, found in basis.others.items():
        for heading, warning in ((kind.heading, False), (kind.warnings, True)):
            some = [one for one in found if warns(one) is warning]
            body += listed(f"{heading}:", [visible(one.sentence(), lines=False) for one in some])
            details = [visible(clause, lines=False) for one in some for clause in kind.details(one)]
            body += listed("Where the ranks stand:", details)
    if aside := [suppression for suppression in findings.suppressed if suppression]:
        kinds = Counter(suppression.kind for suppression in aside)
        words = [f"{count} {_WHERE[kind]}" for kind, count in kinds.items()]
        left = findings.suppressed.count(None)
        body.append(Text(f"\nKnown before, and not counted: {', '.join(words)}. {left} left.", "bold"))
    body += listed("In the baseline, and not in this run:", [message.removesuffix(".") for message in basis.gone or ()])
    if basis.dry:
        body += [Text(""), *(Text(f"{sentence}.") for sentence in basis.dry.sentences())]
    if not basis.idle:
        body += [Text(""), Text(f"Examined: {basis.seen}.")]
    body += [Text(f"{sentence}.") for sentence in basis.scope]
    if basis.thinned:
        body += [Text(f"{sentence}.") for sentence in basis.thinned.says]
    console.print(Panel(Group(*body), title=f"verdict: {findings.verdict}", border_style=colour))

    def say(text: str) -> None:
        # Outside the frame no name may begin a line: a workflow's log interprets lines that begin with :: as commands.
        console.print(visible(text, lines=False), highlight=False, soft_wrap=True, markup=False)

    for each in answered[:MOST]:
        if each.cure is not None:
            _show(console, each.cure)
        if (witness := each.found.race.witness) is not None and witness.command:
            say(f"Again: {typed(witness.command)}")  # a line to copy
    if answered:
        counting = next((each for each in answered if each.found.suppressed is None), answered[0])
        say(f"Next:  {typed(counting.command)}")
    elif basis.hangs or basis.may_hang:
        say(f"Next:  {typed(shlex.join(['streamrace', 'explain', str(folder)]))}")
    console.print(f"Files: {folder}/findings.json, trace/", highlight=False, soft_wrap=True, markup=False)
    console.print(f"Page:  {page or typed(reports_on(folder))}", highlight=False, soft_wrap=True, markup=False)


def _show(console: Console, cure: Cure) -> None:
    """Print a cure as a diff whose lines are never wrapped, and the command that applies it."""
    console.print(f"Cure of race {cure.race}, as the trace proves it:", highlight=False)
    for line in cure.diff.splitlines():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        console.print(Text(visible(line, lines=False), style), soft_wrap=True)
    if cure.apply:
        console.print(f"Apply: {cure.apply}", highlight=False, soft_wrap=True, markup=False)


def first(console: Console, race: Race) -> None:
    """Print a race that was found while the program is running."""
    line = visible(f"A race: {sentences.pair(race)}. The program runs on; the verdict comes at its end.", lines=False)
    console.print(line, highlight=False, markup=False)


def _why(suppression: KeptSuppression | None) -> list[RenderableType]:
    """Return the reason why a race does not count; empty if it counts."""
    if suppression is None:
        return []
    where = f" ({wording.line(suppression.file, suppression.line, path=True)})" if suppression.file else ""
    return [Text(f"  Known before: {suppression.reason}{where}.")]
