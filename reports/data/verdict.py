"""Builds the findings on a program of the user's own, as ``streamrace check`` writes them.

Without a reference, values are judged only where the program states the expected ones
(:mod:`streamrace.detectors.values.answers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat, zip_longest
from types import MappingProxyType
from typing import Any

from streamrace.detectors import Race
from streamrace.detectors.confidence.incidental import OrderBasis
from streamrace.detectors.missing_waits import MissingWait
from streamrace.detectors.order.races import Occurrence
from streamrace.detectors.values.answers import Answer
from streamrace.detectors.witness import Witness
from streamrace.reports.data.dry_program import Dry
from streamrace.reports.data.finding_kinds import KINDS, FindingKind, Precedence, warns
from streamrace.reports.data.findings import (
    FAILED,
    STATUSES,
    Basis,
    Findings,
    Held,
    RankEnd,
    Thinned,
    Verdict,
    WantedWait,
)
from streamrace.reports.data.known_findings import Known
from streamrace.reports.data.limits import KeptLimits
from streamrace.reports.data.schema import Judged, JudgedAnswer
from streamrace.reports.text import clean
from streamrace.reports.text import race as sentences
from streamrace.trace import wording

_KIND = {kind.name: kind for kind in KINDS}
_OF_ANSWER = {"stale": Verdict.STALE, "bounds": Verdict.BOUNDS, "arithmetic": Verdict.ARITHMETIC}
_SAYS = {"stale": "Stale", "bounds": "Wrong bounds", "arithmetic": "Wrong arithmetic"}


@dataclass(frozen=True)
class Seen:
    """The part of a program that was examined. ``virtual_ns``: when its last work ended, in virtual time."""

    ranks: int = 0
    launches: int = 0
    streams: int = 0
    virtual_ns: int = 0

    def sentence(self) -> str:
        launches = wording.count(self.launches, "launch", "launches")
        return f"{launches} on {wording.count(self.streams, 'stream')} of {wording.count(self.ranks, 'rank')}"


def kept(examples: Sequence[Occurrence], ends: Sequence[RankEnd]) -> list[Occurrence]:
    """Return the examples in the part of the traces that is kept. ``ends``: of the ranks whose traces were cut."""
    of = {end.rank: end.op for end in ends}

    def last(pair: Occurrence) -> int:
        return max(-1 if side.op is None else side.op for side in (pair.first, pair.second))

    return [pair for pair in examples if pair.rank not in of or last(pair) <= of[pair.rank]]


def thinned(operations: int, of: int, ends: Mapping[int, int], races: Sequence[Race]) -> Thinned:
    """Describe traces of whose operations only the first are kept, and which of the races are not in that part."""
    cut = [RankEnd(rank=rank, op=op) for rank, op in ends.items()]
    says = [
        f"Kept of the traces: the first {operations:,} operations of {of:,}. The others were judged, too, and "
        "removed (--keep-trace 0 keeps all)"
    ]
    gone = [str(number) for number, race in enumerate(races, 1) if not kept(race.examples, cut)]
    if gone:
        subject = f"Race {gone[0]} is" if len(gone) == 1 else f"Races {', '.join(gone)} are"
        says.append(f"{subject} in the part of the traces that was removed: only what stands here is left of it")
    return Thinned(operations=operations, of=of, ends=cut, says=says)


def of_program(
    options: Mapping[str, Any],
    versions: Mapping[str, str],
    *,
    races: Sequence[Race] = (),
    holding: OrderBasis = OrderBasis(),  # noqa: B008
    unexercised: Sequence[str] = (),
    unseen: Sequence[str] = (),
    seen: Seen = Seen(),
    failure: str | None = None,
    witnesses: Sequence[Witness] = (),
    dry: Dry | None = None,
    answers: Sequence[Answer] = (),
    own: Mapping[str, str] = MappingProxyType({}),
    known: Known = Known(),  # noqa: B008
    failed: bool = False,
    thinned: Thinned | None = None,
    others: Sequence[Any] = (),
    seeded: str = "",
    compiled: str = "",
    strict: bool = False,
    waits: Sequence[MissingWait] = (),
    limits: Sequence[KeptLimits] = (),
    early: Sequence[int] = (),
) -> Findings:
    """Return the findings on a program that ran. ``asked``: the command, its ranks, the slowed operations.

    ``failure``: why it ended early, if it did; ``failed``: the program itself failed, whatever was found before.
    ``witnesses``: one for each race, or none. ``strict``: what is fragile fails, too. ``waits``: the missing ones
    (default: by the races alone). The other arguments: see :class:`streamrace.reports.data.findings.Basis`.
    """
    why = iter(known.suppressed) if known.suppressed else repeat(None)
    judged = [Judged(**vars(race), witness=one, suppressed=next(why)) for race, one in zip_longest(races, witnesses)]
    held = [Held.of(pair, [Judged(**vars(race), suppressed=next(why)) for race in pair.races]) for pair in holding.held]
    marked = [JudgedAnswer(**vars(item), suppressed=None if item.kind == "right" else next(why)) for item in answers]
    kept_others = {kind: [kind.keep(one, next(why)) for one in others if isinstance(one, kind.found)] for kind in KINDS}
    wrong = [answer for answer in marked if answer.kind != "right"]
    uncertain = bool(failure or not seen.launches or unseen)

    def verdict(*, counting: bool) -> Verdict:
        def any_of(findings: Sequence[Any]) -> bool:
            return any(not counting or finding.suppressed is None for finding in findings)

        def kinds(precedence: Precedence) -> Sequence[Verdict]:
            return [
                Verdict(kind.name)
                for kind, findings in kept_others.items()
                if kind.precedence is precedence and any_of([finding for finding in findings if not warns(finding)])
            ]

        some = kinds(Precedence.FIRST) or (any_of(judged) and [Verdict.RACE]) or kinds(Precedence.BEHIND_RACES)
        if some or uncertain:
            return some[0] if some else Verdict.UNKNOWN
        if others := kinds(Precedence.ALL_SEEN):
            return others[0]
        for answer in wrong:
            if any_of([answer]):
                return _OF_ANSWER[answer.kind]
        return Verdict.FRAGILE if held else Verdict.CLEAN

    counting = verdict(counting=True)
    fragile = strict and any(race.suppressed is None for group in held for race in group.races)
    some: dict[str, Any] = {
        "dry": dry,
        "answers": marked,
        **{kind.field: findings for kind, findings in kept_others.items()},
        "seeded": seeded,
        "compiled": compiled,
        "thinned": thinned,
        "limits": list(limits),
        "early": list(early),
    }
    basis = Basis(
        seen=seen.sentence(),
        virtual_ns=seen.virtual_ns,
        held=held,
        unexamined=holding.unexamined,
        unexercised=list(unexercised),
        unseen=list(unseen),
        **{name: value for name, value in some.items() if value},
        own=dict(own),
        status=FAILED if failed and counting is not Verdict.HANG else STATUSES[Verdict.RACE if fragile else counting],
        gone=None if uncertain or known.gone is None else list(known.gone),
    )
    findings = Findings(
        verdict=verdict(counting=False),
        sentence="",
        failure=failure,
        steps_done=0,
        causes=["race"] if races else [],
        divergence=None,
        checked=basis,
        races=judged,
        scenario=dict(options),
        versions=dict(versions),
    )
    if waits:
        findings = findings.model_copy(update={"missing_waits": [_wanted(wait) for wait in waits]})
    return findings.model_copy(update={"sentence": _sentence(findings, basis, seen.ranks)})


def _wanted(wait: MissingWait) -> WantedWait:
    return WantedWait(where=wait.where, races=[at + 1 for at in wait.races])


def _sentence(findings: Findings, basis: Basis, ranks: int) -> str:
    """Return the verdict as a sentence for a person."""
    ordered = "every two accesses to the same memory, one of them a write, are ordered by the program"
    if findings.verdict is Verdict.HANG:
        return f"{_of_kind(basis, _KIND[findings.verdict], '')}{_races_besides(findings)}"
    if findings.races:
        count = sentences.count(len(findings.races), len(findings.found))
        text = f"{count}: streams use the same memory, and nothing orders them."
        if aside := sum(race.suppressed is not None for race in findings.races):
            text += f" {_of_them(aside, len(findings.races))} known before."
    elif findings.verdict is Verdict.MAY_HANG:
        text = _of_kind(basis, _KIND[findings.verdict], "")
    elif findings.failure:
        return f"Unknown: the program ended early ({findings.failure}), and no race was seen until then."
    elif basis.idle:
        text = "Unknown: nothing was issued to the device, so there is nothing to judge. Does the program use cuda?"
    elif findings.verdict == Verdict.UNKNOWN:
        text = "Unknown: no race was seen, but a part of what the program does was not seen either."
    elif kind := _KIND.get(findings.verdict):
        text = _of_kind(basis, kind, ordered)
    elif basis.wrong:
        first, *more = basis.wrong
        clause = f"{first.name} is not what it must be{f' (and {len(more)} more)' if more else ''}"
        text = f"{_SAYS[first.kind]}: {ordered}, but {clause}."
    elif findings.verdict == Verdict.FRAGILE:
        text = "Fragile: all is ordered, but in part only by waits that are there for another reason."
    else:
        text = clean(ordered, basis.unexercised)
    if findings.failure:
        text += f" The program ended early: {findings.failure}."
        if ranks > 1:  # RaceDetector.finish: less order is known
            text += " The other ranks are not judged beyond that point, so a wait of theirs may be missing here."
    return text


def _of_kind(basis: Basis, kind: FindingKind, ordered: str) -> str:
    first, *more = (one for one in basis.others[kind] if not warns(one))
    clause = f"{kind.clause(first)}{f' (and {len(more)} more)' if more else ''}"
    but = ": " if kind.precedence is Precedence.FIRST else ", but "
    return f"{kind.title}: {kind.ordered or ordered}{but}{clause}."


def _races_besides(findings: Findings) -> str:
    if not findings.races:
        return " No race was seen until then."
    count = sentences.count(len(findings.races), len(findings.found))
    return f" Until then, {count[:1].lower()}{count[1:]} between streams."


def _of_them(count: int, of: int) -> str:
    if count == of:
        return "It is" if count == 1 else "All of them are"
    return f"{count} of them {wording.plural_of(count, 'is', 'are')}"


def ran_with(options: Mapping[str, Any]) -> str:
    """Return the releases that replaced the environment's, a sentence without a full stop; empty if none did."""
    releases = options.get("packages", {})
    words = {"not tried": " (not tried here before)"}
    named = [f"{pin.replace('==', ' ')}{words.get(word, '')}" for pin, word in releases.items() if word != "beside"]
    beside = len(releases) - len(named)  # each was reported when it was installed
    asks = wording.plural_of(len(named), "it asks for", "they ask for")
    more = f", and {wording.count(beside, 'package')} that {asks}" if beside else ""
    with_ = [f"With {', '.join(named)}{more}"] if named else []
    vary = ["Each rank had an interpreter, a hash seed and a host's speed of its own"] if options.get("vary") else []
    return ". ".join([*with_, *vary])


def recorded_on(options: Mapping[str, Any]) -> str:
    """Return that the run is of a real GPU, a sentence without a full stop; empty if it is not."""
    if not options.get("on_gpu"):
        return ""
    return "Recorded on a GPU: nothing was simulated, so no witness shows what a race does"
