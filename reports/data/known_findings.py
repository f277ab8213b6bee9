"""Matches findings against earlier knowledge: a comment in the program, or a baseline that names the finding.

A finding's *fingerprint* depends only on what stays when lines move: its kind and, of both accesses, kernel, file and
function. Findings with the same parts are numbered, so that one more of them counts as new.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from streamrace.detectors.confidence.waits import WaitSite
from streamrace.detectors.identity import LastingKey, lasting
from streamrace.detectors.order.races import Race
from streamrace.detectors.values.answers import Answer
from streamrace.reports.data.checkout import portable
from streamrace.reports.data.comments import Comment
from streamrace.reports.data.finding_kinds import FindingKind
from streamrace.reports.data.findings import Findings
from streamrace.reports.data.schema import JsonFile, JsonPart, KeptSuppression, ReportError, first_problem
from streamrace.reports.text import plain_text
from streamrace.reports.text import race as sentences
from streamrace.trace import wording
from streamrace.trace.records import Frame
from streamrace.trace.untrusted import LARGEST, Unreadable, read_json, visible

VERSION = 1
FRAGILE = "fragile"
_DIGITS = 20  # hexadecimal digits of a fingerprint, of 64


class Discovery(NamedTuple):
    """A finding. ``group``: race, fragile, answer, or the name of another kind; ``rule``: within it.

    ``message``: one or more sentences; ``frames``: all calls that led to it.
    """

    group: str
    rule: str
    fingerprint: str
    message: str
    frames: tuple[Frame, ...]
    race: Race | None = None
    sites: tuple[WaitSite, ...] = ()  # of a fragile pair: the waits that alone order it


def of(result: Findings) -> list[Discovery]:
    """Return all findings on a program, in the order of :attr:`Findings.suppressed`."""
    if result.checked is None:
        return []
    held = [(pair.sites, pair.races) for pair in result.held]
    basis = result.checked
    return findings(result.races, held, basis.wrong, basis.own, basis.others)


def findings(
    races: Iterable[Race],
    held: Iterable[tuple[Sequence[WaitSite], Sequence[Race]]],
    wrong: Iterable[Answer],
    own: Mapping[str, str],
    others: Mapping[FindingKind, Iterable[Any]] = MappingProxyType({}),
) -> list[Discovery]:
    """Return all findings: races, pairs that only an incidental wait orders, wrong values, and the ``others``; in this
    order.

    ``own``: as :func:`streamrace.reports.data.checkout.own` returns it.
    """
    counts: Counter[str] = Counter()

    def numbered(*parts: Any) -> str:
        counts[short := fingerprint(parts)] += 1
        return f"{short}:{counts[short]}"

    def pair(race: Race) -> LastingKey:
        return lasting(race, file=lambda file: portable(file, own), text=plain_text)

    def frames(race: Race) -> tuple[Frame, ...]:
        return (*race.first.stack, *race.second.stack, *(race.second.allocated or ()))

    discoveries = [
        Discovery("race", race.kind, numbered("race", *pair(race)), sentences.unordered(race), frames(race), race)
        for race in races
    ]
    for sites, pairs in held:
        places = tuple(site.frame for site in sites if site.frame)
        where = [_where(one, own) for one in places]
        discoveries += [
            Discovery(
                "fragile",
                FRAGILE,
                numbered("fragile", where, *pair(race)),
                sentences.held(race, sites),
                (*places, *frames(race)),
                race,
                tuple(sites),
            )
            for race in pairs
        ]
    for value in wrong:
        rule = value.kind if value.kind == "stale" else f"wrong-{value.kind}"
        message = f"{value.name} is not what the program says that it must be, on rank {value.rank}: {value.says}."
        discoveries.append(
            Discovery("answer", rule, numbered("answer", value.kind, plain_text(value.name), value.rank), message, ())
        )
    for kind, ones in others.items():
        for one in ones:
            parts = [one.kind] if hasattr(one, "kind") else []
            marks = [_where(frame, own) for frame in kind.marks(one)]
            print_ = numbered(kind.name, *parts, plain_text(one.kernel), *marks)
            calls = tuple(kind.calls(one))
            discoveries.append(Discovery(kind.name, kind.rule(one), print_, f"{one.sentence()}.", calls))
    return [discovery._replace(message=visible(discovery.message, lines=False)) for discovery in discoveries]


def fingerprint(parts: Sequence[Any]) -> str:
    """Return the fingerprint of the parts: text, lists of text, or None."""
    return sha256(json.dumps(parts).encode()).hexdigest()[:_DIGITS]


def _where(frame: Frame | None, own: Mapping[str, str]) -> list[str] | None:
    return [plain_text(portable(frame.file, own)), plain_text(frame.function)] if frame else None


# -- comments ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """The assessment of the findings. ``suppressed``: one entry per finding, None if the finding counts.

    ``unreasoned``: comments without a reason, which have no effect. ``gone``: messages of findings that only the
    baseline has; None: not compared with a baseline.
    """

    suppressed: Sequence[KeptSuppression | None] = ()
    unreasoned: Sequence[str] = ()
    gone: Sequence[str] | None = None

    def kept_in(self, baseline: str) -> Known:
        """Return the same after a new baseline of this name has taken all findings that counted."""
        suppression = _in_baseline(baseline)
        return replace(self, suppressed=[suppression if why is None else why for why in self.suppressed])


def judge(
    discoveries: Sequence[Discovery],
    own: Mapping[str, str],
    commented: Callable[[str], Mapping[int, Comment]],
    baseline: Baseline | None = None,
) -> Known:
    """Assess the findings. ``commented``: returns a file's comments, by line. ``baseline``: findings known before."""
    suppressed: list[KeptSuppression | None] = []
    unreasoned: dict[str, None] = {}
    read: dict[str, Mapping[int, Comment]] = {}
    for discovery in discoveries:
        suppression = None
        for frame in discovery.frames:
            if frame.file not in own:
                continue
            if frame.file not in read:
                read[frame.file] = commented(frame.file)
            comment = read[frame.file].get(frame.line)
            if comment is None:
                continue
            if not comment.reason:
                unreasoned[wording.line(own[frame.file], comment.line, path=True)] = None
            elif suppression is None:
                suppression = KeptSuppression("comment", comment.reason, own[frame.file], comment.line)
        if suppression is None and baseline is not None and discovery.fingerprint in baseline.prints:
            suppression = _in_baseline(baseline.name)
        suppressed.append(suppression)
    gone = None
    if baseline is not None:
        raced = any(discovery.group == "race" for discovery in discoveries)
        gone = baseline.without({discovery.fingerprint for discovery in discoveries}, fragile=not raced)
    return Known(suppressed, list(unreasoned), gone)


def _in_baseline(name: str) -> KeptSuppression:
    return KeptSuppression("baseline", f"it is in the baseline {visible(plain_text(name), lines=False)}")


# -- the baseline --------------------------------------------------------------------------------------------


class BaselineEntry(JsonPart):
    """A finding. ``races``: fingerprints of further races that lack the same wait."""

    fingerprint: str
    races: list[str] = []
    rule: str = ""
    message: str = ""


class _File(JsonFile):
    _indent, _ascii, _sparse = 1, True, True
    format: Literal["stream-race-baseline"] = "stream-race-baseline"
    findings: list[BaselineEntry]


@dataclass(frozen=True)
class Baseline:
    """Findings known before. ``name``: the file's."""

    name: str
    entries: Sequence[BaselineEntry]

    @property
    def prints(self) -> set[str]:
        """Return the fingerprints of all races and other findings."""
        return {fingerprint for entry in self.entries for fingerprint in (entry.fingerprint, *entry.races)}

    def without(self, fingerprints: set[str], *, fragile: bool = True) -> list[str]:
        """Return the messages of the findings that are not among ``fingerprints``.

        ``fragile`` False: without fragile pairs, which are only searched for if no race was found.
        """
        return [
            visible(entry.message, lines=False)
            for entry in self.entries
            if fingerprints.isdisjoint((entry.fingerprint, *entry.races)) and (fragile or entry.rule != FRAGILE)
        ]


def load(file: Path) -> Baseline:
    """Read a baseline. Raises :class:`ReportError`."""
    try:
        data = read_json(file, largest=LARGEST)
        if isinstance(data, dict) and type(data.get("version")) is int and data["version"] > VERSION:
            raise Unreadable(f"it is of version {data['version']}, and this program reads up to version {VERSION}")
        held = _File.model_validate_json(json.dumps(data))
    except OSError as error:
        raise ReportError(
            f"the baseline {file} cannot be read: {error.strerror or error}. "
            "'streamrace check --write-baseline' makes one"
        ) from error
    except ValidationError as error:
        raise ReportError(f"{file} is no baseline: {first_problem(error)}. {_AGAIN}") from None
    except ValueError as error:
        raise ReportError(f"{file} is no baseline: {error}. {_AGAIN}") from None
    return Baseline(file.name, held.findings)


_AGAIN = "Make it again with 'streamrace check --write-baseline'"


def text_of(run: Findings) -> str:
    """Return a baseline's file with the findings of ``run``: an entry for each missing wait, with all its races."""
    return text(of(run), run.suppressed, [[number - 1 for number in found.numbers] for found in run.found])


def text(
    discoveries: Sequence[Discovery],
    suppressed: Sequence[KeptSuppression | None],
    together: Sequence[Sequence[int]] = (),
) -> str:
    """Return a baseline's file with these findings, except those that a comment already suppresses.

    ``together``: positions of findings that share an entry.
    """
    grouped = {at for group in together for at in group}
    entries = []
    for group in [*together, *([at] for at in range(len(discoveries)) if at not in grouped)]:
        kept = [discoveries[at] for at in group if (why := suppressed[at]) is None or why.kind != "comment"]
        if kept:
            entry = BaselineEntry(fingerprint=kept[0].fingerprint, rule=kept[0].rule, message=kept[0].message)
            prints = [discovery.fingerprint for discovery in kept[1:]]
            entries.append(entry.model_copy(update={"races": prints}) if prints else entry)
    return _File(findings=entries).text()
