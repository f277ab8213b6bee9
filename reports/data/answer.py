"""Answers what a person asks of a finding first: what goes wrong, its effect, the cure, and the bug that it is."""

from __future__ import annotations

from streamrace.reports.data.cures import Cure
from streamrace.reports.data.findings import Findings, FoundRace
from streamrace.reports.data.known_bugs import known_bug
from streamrace.reports.text import race as sentences
from streamrace.trace import wording
from streamrace.trace.untrusted import visible


def answer(run: Findings, found: FoundRace, cure: Cure | None) -> list[str]:
    """Return the answer to a finding of a program of the user's own, a line each. Names are made visible."""
    assert run.checked is not None
    lines = [sentences.answer(found.race, run.checked.own)]
    if found.race.witness is not None:
        lines.append(f"{sentences.witness(found.number, found.race.witness)[0]}.")
    if cure is not None:
        lines.append(f"Cure: {wording.capital(cure.words)}. It costs {cure.cost}.")
    if bug := known_bug(run, found):
        lines.append(f"Known: {bug}.")
    if found.others:
        lines.append(f"{sentences.folded(found.others)}.")
    return [visible(line, lines=False) for line in lines]
