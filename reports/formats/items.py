"""Reads a run's findings for all formats, each with its places and whether it was known before."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from streamrace.detectors.order.races import Side
from streamrace.detectors.witness import Witness
from streamrace.reports.data import known_findings
from streamrace.reports.data.findings import Basis, Findings, FoundRace, Verdict
from streamrace.reports.data.schema import Judged, KeptSuppression, ReportError
from streamrace.reports.formats.rules import RULES, Rule
from streamrace.reports.text.race import harm
from streamrace.trace import wording
from streamrace.trace.records import Frame
from streamrace.trace.untrusted import visible, whole_characters


class SourceLine(NamedTuple):
    """A line of source. ``path``: from the top of the checkout if ``own``; else from the folder it is imported from."""

    path: str
    line: int
    function: str
    own: bool


@dataclass(frozen=True)
class Result:
    """A finding. ``place``: the line to show it at, the program's own if possible.

    ``accesses``: both sides of a race or a fragile pair, in the order in which the host issued them, each with the
    calls that led to it, innermost first. ``sites``: the waits that alone order a fragile pair. ``pairs``: accesses of
    further races that lack the same wait, and ``fingerprints``: theirs.
    """

    rule: Rule
    message: str
    fingerprint: str
    place: SourceLine
    accesses: tuple[tuple[Side, tuple[SourceLine, ...]], ...] = ()
    sites: tuple[SourceLine, ...] = ()
    witness: Witness | None = None
    suppressed: KeptSuppression | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    pairs: tuple[tuple[tuple[Side, tuple[SourceLine, ...]], ...], ...] = ()
    fingerprints: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """The state: new, baseline or suppressed."""
        if self.suppressed is None:
            return "new"
        return "baseline" if self.suppressed.kind == "baseline" else "suppressed"

    @property
    def fails(self) -> bool:
        """Return whether the finding makes the command fail."""
        return self.suppressed is None and self.rule.level == "error"

    @property
    def text(self) -> str:
        """The message, with the effect of the race."""
        if self.witness is None or not self.witness.verdict:
            return self.message
        return f"{self.message} {harm(self.witness.verdict, self.witness.says)}"


@dataclass(frozen=True)
class CheckedRun:
    """The findings on a program, and each of them as a result. ``script``: the program's file."""

    findings: Findings
    basis: Basis
    script: SourceLine
    items: Sequence[Result]

    @property
    def program(self) -> str:
        return str(self.findings.scenario.get("program", ""))

    @property
    def notes(self) -> list[str]:
        """The parts of the program that the verdict does not cover."""
        notes = [f"Not exercised, so nothing is known of it: {path}." for path in self.basis.unexercised]
        return notes + [f"Not seen: {part}." for part in self.basis.unseen]

    @property
    def gone(self) -> list[str]:
        """Sentences on the findings that only the baseline has."""
        return [f"In the baseline, and not in this run: {message}" for message in self.basis.gone or ()]

    @property
    def unknown(self) -> bool:
        """Return whether parts of the program were not seen."""
        return self.findings.status in (3, 4)


def load(folder: Path) -> Findings:
    """Read the folder of a run of ``streamrace check``. Raises :class:`ReportError`, also for any other run."""
    if not (folder / Findings.NAME).is_file():
        from streamrace.reports.data.loading import not_a_run  # imports pandas, which nothing else here needs

        raise not_a_run(folder)
    findings = Findings.read(folder)
    if findings.checked is None:
        raise ReportError(f"{folder} is no run of 'streamrace check', and only such runs have a --format")
    return findings


def checked_run(run: Findings) -> CheckedRun:
    """Return the results of a run of ``streamrace check``."""
    basis = run.checked
    assert basis is not None
    script = _script(run.scenario, basis.own)
    discoveries = list(zip(known_findings.of(run), run.suppressed, strict=True))
    items = [
        _race(found, [discoveries[number - 1] for number in found.numbers], basis.own, script) for found in run.found
    ]
    items += [_item(item, basis.own, script, why) for item, why in discoveries[len(run.races) :]]
    items += _unknown(run, script)
    items.sort(key=lambda item: (not item.fails, item.rule.level))  # errors first: GitHub shows ten
    return CheckedRun(run, basis, script, items)


def _race(
    found: FoundRace,
    races: Sequence[tuple[known_findings.Discovery, KeptSuppression | None]],
    own: Mapping[str, str],
    script: SourceLine,
) -> Result:
    """Return the result for races that lack the same wait: that of the first one that counts, and the others' pairs."""
    counting = next((at for at, (_, why) in enumerate(races) if why is None), 0)
    results = [_item(discovery, own, script, why) for discovery, why in races]
    others = [*results[:counting], *results[counting + 1 :]]
    result = results[counting]
    if not others:
        return result
    pairs = "; ".join(f"{other.accesses[0][0]} and {other.accesses[1][0]}" for other in others)
    message = visible(f"{result.message} The same wait would order {wording.count(len(others), 'more pair')}: {pairs}.")
    return replace(
        result,
        message=message,
        witness=found.race.witness,
        pairs=tuple(other.accesses for other in others),
        fingerprints=tuple(other.fingerprint for other in others),
    )


def _item(
    finding: known_findings.Discovery,
    own: Mapping[str, str],
    script: SourceLine,
    suppressed: KeptSuppression | None,
) -> Result:
    sides = (finding.race.first, finding.race.second) if finding.race else ()
    accesses = tuple((side, tuple(_place(frame, own) for frame in side.stack)) for side in sides)
    sites = tuple(_place(site.frame, own) for site in finding.sites if site.frame)
    # In order of preference, own lines first: an incidental wait, the second access, the first, any other frame.
    candidates = [*sites, *(_innermost(places) for _, places in reversed(accesses))]
    candidates += [_innermost([_place(frame, own) for frame in finding.frames])]
    existing = [place for place in candidates if place]
    place = next((place for place in existing if place.own), existing[0] if existing else script)
    race, witness = finding.race, finding.race.witness if isinstance(finding.race, Judged) else None
    numbers = {"occurrences": race.occurrences, "ranks": list(race.ranks), "memory": race.memory} if race else {}
    return Result(
        RULES[finding.rule], finding.message, finding.fingerprint, place, accesses, sites, witness, suppressed, numbers
    )


def _unknown(findings: Findings, script: SourceLine) -> list[Result]:
    """Return a finding for a program that was not seen in full: without it the list would look clean."""
    if not (findings.verdict == Verdict.UNKNOWN or findings.uncertain):
        return []
    message = findings.failure and f"The program ended early: {findings.failure}. What came after that is not known."
    message = message or "Not all that the program does was seen, so what was not found may be there."
    return [Result(RULES["unknown"], visible(message, lines=False), known_findings.fingerprint(["unknown"]), script)]


def _place(frame: Frame, own: Mapping[str, str]) -> SourceLine:
    return SourceLine(own.get(frame.file, frame.file), max(frame.line, 1), frame.function, frame.file in own)


def _innermost(places: Sequence[SourceLine]) -> SourceLine | None:
    """Return the innermost line of the program's own; else the innermost line."""
    return next((place for place in places if place.own), places[0] if places else None)


def _script(asked: Mapping[str, Any], own: Mapping[str, str]) -> SourceLine:
    """Return the program's own file, at which findings without a line are shown."""
    try:
        words = shlex.split(str(asked.get("program", "")))
    except ValueError:
        words = []
    name = words[0] if words else ""
    if name == "-m" and len(words) > 1:
        name = words[1].replace(".", "/") + ".py"
    path = PurePosixPath(name)
    inside = not path.is_absolute() and ".." not in path.parts
    return SourceLine(own.get(name, str(path) if inside else path.name), 1, "", inside)


def as_json(value: Any) -> str:
    """Return JSON in ASCII, so that no character of a name affects whoever reads it."""
    return json.dumps(whole_characters(value), indent=1) + "\n"
