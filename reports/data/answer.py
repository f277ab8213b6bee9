"""Answers what a person asks of a finding first: what goes wrong, its effect, the cure, and the bug that it is."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from streamrace.reports.data import cures as known_cures
from streamrace.reports.data.cures import Cure
from streamrace.reports.data.findings import Basis, Findings, FoundRace
from streamrace.reports.data.known_bugs import known_bug
from streamrace.reports.text import race as sentences
from streamrace.trace import wording
from streamrace.trace.untrusted import visible


class FindingAnswer(NamedTuple):
    """The answer to a finding, each part a sentence or empty; names are made visible."""

    wrong: str
    effect: str
    cure: str
    known: str
    others: str

    def lines(self) -> list[str]:
        """Return the answer as a terminal shows it."""
        cure, known = (f"{name}: {said}" if said else "" for name, said in (("Cure", self.cure), ("Known", self.known)))
        return [line for line in (self.wrong, self.effect, cure, known, self.others) if line]


def answer(run: Findings, found: FoundRace, cure: Cure | None) -> FindingAnswer:
    """Return the answer to a finding of a program of the user's own."""
    assert run.checked is not None
    bug = known_bug(run, found)
    said = FindingAnswer(
        wrong=sentences.answer(found.race, run.checked.own),
        effect=" ".join(_effect(run.checked, found)),
        cure=f"{wording.capital(cure.words)}. It costs {cure.cost}." if cure is not None else "",
        known=f"{bug}." if bug else "",
        others=f"{sentences.folded(list(found.others))}." if found.others else "",
    )
    return FindingAnswer(*(visible(sentence, lines=False) for sentence in said))


def _effect(basis: Basis, found: FoundRace) -> Iterator[str]:
    """Yield a finding's effect and its bounds: a larger model, or the steps after the construction, may differ."""
    witness = found.race.witness
    if witness is not None:
        yield f"{sentences.witness(found.number, witness)[0]}."
    if set(found.numbers) <= set(basis.early):
        yield "The two race only before the model's first forward pass."
    if witness is not None and witness.verdict == "benign" and any(engine.never_met for engine in basis.limits):
        yield "In a large model it may do harm: this one stays below the limits that are named below."


class AnsweredFinding(NamedTuple):
    """A finding of a program of the user's own: its answer, its cure if the run has one, and the next command."""

    found: FoundRace
    answer: FindingAnswer
    cure: Cure | None
    command: str


def answers(folder: Path, run: Findings) -> list[AnsweredFinding]:
    """Return the findings of the run in ``folder`` with their answers; none if it is no run of a check.

    Raises :class:`streamrace.reports.data.schema.ReportError`.
    """
    if run.checked is None or not run.races:
        return []
    cures = known_cures.read(folder)
    cured = [(found, cures.get(found.number)) for found in run.found]
    return [AnsweredFinding(found, answer(run, found, cure), cure, fixing(found, folder)) for found, cure in cured]


def fixing(found: FoundRace, folder: Path) -> str:
    """Return the command that comes next: trying cures of the finding."""
    return f"streamrace fix {shlex.quote(str(folder))} {found.number}"
