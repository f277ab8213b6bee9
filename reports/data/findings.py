"""Holds the verdict on one run, of a scenario or of a program of the user's own: ``findings.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from pydantic import FiniteFloat, PlainSerializer, SerializerFunctionWrapHandler, model_serializer

from streamrace.detectors import Divergence, Finding, Hang, Race, Stale, Uncovered
from streamrace.detectors.confidence.incidental import IncidentalOrder, OrderBasis
from streamrace.detectors.confidence.waits import WaitSite
from streamrace.detectors.missing_waits import Where, missing_waits
from streamrace.detectors.order.races import plain
from streamrace.detectors.witness import Witness
from streamrace.reports.data import finding_kinds as kinds
from streamrace.reports.data.dry_program import Dry, DryTogether
from streamrace.reports.data.limits import KeptLimits
from streamrace.reports.data.schema import (
    JsonFile,
    JsonPart,
    Judged,
    JudgedAnswer,
    KeptSuppression,
)
from streamrace.reports.text import clean

FAILED = 3  # the exit status if the program failed
_OF_SCENARIO = ("token", "reason")  # what is written of a witness
_OF_PROGRAM = ("verdict", "says", *_OF_SCENARIO[:1], "command", "reason")
_HARM = ("harmful", "not confirmed", "benign")  # the gravest first
_NUMBERS = {"value", "reference", "distance", "growth"}
_NO_NUMBERS = {"nan", "inf", "-inf"}  # JSON has no number for them


class Verdict(StrEnum):
    """The verdict of a run, in a word."""

    UNSTABLE = "unstable"  # a race, and this timing shows it: values differ from the reference
    HIDDEN = "hidden"  # a race that this timing does not show
    STALE = "stale"  # all accesses are ordered, yet an older version of a parameter is used
    UNCOVERED = "uncovered"  # a part of a partition is read that was never written
    DIVERGED = "diverged"  # values differ, and no race explains it
    CLEAN = "clean"  # none of these
    # For a program of the user's own, whose values have no reference (streamrace.reports.data.verdict):
    RACE = "race"
    FRAGILE = "fragile"  # ordered only by waits that exist for another reason
    UNKNOWN = "unknown"  # nothing was found but not all was seen, or the run was killed
    # All is ordered, and a value is not what the program states that it must be (``stale`` is a third kind):
    ARITHMETIC = "wrong arithmetic"
    BOUNDS = "wrong bounds"
    UNINITIALISED = "uninitialised"  # all is ordered, and a result depends on memory that was never written
    KERNEL = "kernel"  # all is ordered, and the programs of one kernel are not, or it accesses other memory
    HANG = "hang"  # no rank can go on
    MAY_HANG = "may-hang"  # ranks issue collectives of several groups in different order
    GRAPH_MEMORY = "graph-memory"  # all is ordered, and a CUDA graph uses memory that another tensor has

    @property
    def tone(self) -> str:
        """The tone of a :class:`streamrace.studies.table.Cell`."""
        return {"clean": "good", "hidden": "warn", "fragile": "warn", "unknown": "warn"}.get(self, "bad")


STATUSES = {
    Verdict.CLEAN: 0,
    Verdict.FRAGILE: 0,
    Verdict.RACE: 1,
    Verdict.UNKNOWN: 4,
    Verdict.STALE: 5,
    Verdict.BOUNDS: 5,
    Verdict.ARITHMETIC: 5,
    **{Verdict(kind.name): kind.status for kind in kinds.KINDS},
}


class Held(JsonPart):
    """Races that appear as soon as the incidental waits of ``sites`` are removed."""

    sites: tuple[WaitSite, ...] = ()
    sentence: str
    races: list[Judged]

    @classmethod
    def of(cls, held: IncidentalOrder, races: Sequence[Judged]) -> Held:
        return cls(sites=held.sites, sentence=held.sentence(), races=list(races))


class RankEnd(JsonPart):
    """The last kept operation of a rank whose trace was cut."""

    rank: int
    op: int


class Thinned(JsonPart):
    """A long run of whose traces only the beginning is kept: ``operations`` of the ``of`` that were judged.

    ``says``: sentences for a person, without full stops.
    """

    operations: int
    of: int
    ends: list[RankEnd]
    says: list[str]


class WantedWait(JsonPart):
    """A missing wait, as a file has it: ``races`` by their numbers, the one whose access marks the place first."""

    where: Where
    races: list[int]


class FoundRace(NamedTuple):
    """One finding: the races that one missing wait would order (:mod:`streamrace.detectors.missing_waits`).

    ``numbers``: the races' own, from 1. ``races``: in the same order. The finding is described by the race that counts
    whose witness has the gravest result, and has its number.
    """

    where: Where
    numbers: tuple[int, ...]
    races: tuple[Judged, ...]

    @property
    def number(self) -> int:
        return self.numbers[self._gravest]

    @property
    def race(self) -> Judged:
        return self.races[self._gravest]

    @property
    def others(self) -> dict[int, Judged]:
        """The other races, by their numbers."""
        races = dict(zip(self.numbers, self.races, strict=True))
        return {number: race for number, race in races.items() if number != self.number}

    @property
    def _gravest(self) -> int:
        return min(range(len(self.races)), key=lambda at: _gravity(self.races[at]))

    @property
    def suppressed(self) -> KeptSuppression | None:
        """Why the finding does not count: none of its races does."""
        return None if any(race.suppressed is None for race in self.races) else self.race.suppressed


def found(races: Sequence[Judged], waits: Sequence[WantedWait] = ()) -> list[FoundRace]:
    """Return the races by the wait that they lack, as ``waits`` say; computed if they do not say it of each."""
    said = [(wait.where, [number - 1 for number in wait.races]) for wait in waits]
    if sorted(number for _, numbers in said for number in numbers) != list(range(len(races))):
        said = [(wait.where, list(wait.races)) for wait in missing_waits(races)]
    return [
        FoundRace(where, tuple(at + 1 for at in numbers), tuple(races[at] for at in numbers)) for where, numbers in said
    ]


def _gravity(race: Judged) -> tuple[bool, int]:
    """Sort key: what counts first, then by the result of its witness."""
    harm = race.witness.verdict if race.witness is not None else ""
    return race.suppressed is not None, _HARM.index(harm) if harm in _HARM else len(_HARM)


class Basis(JsonPart):
    """The basis of a verdict. ``held``: pairs that incidental waits alone order; ``unexamined``: number of further
    lines with such waits. ``unexercised``: features that were on and never used, sentences without a full stop.

    All other fields are of a program of the user's own. ``seen``: the part that was examined; ``virtual_ns``: when its
    last work ended. ``unseen``: accesses that were not recorded, which the verdict does not cover. ``answers``: the
    program's statements about values of tensors. ``seeded``: the seeding that the program itself does not do.
    ``compiled``: the way in which compiled functions ran. ``own``: the program's own files
    (:mod:`streamrace.reports.data.checkout`). ``status``: the exit status. ``gone``: messages of findings that only the
    baseline has; None: unknown, without a baseline or where not all was seen. ``limits``: limits of libraries that the
    model does not meet, or that were scaled to it. ``early``: numbers of the races all of whose occurrences lie before
    the first call of a module, on ranks that call one.
    """

    seen: str = ""
    virtual_ns: int = 0
    held: list[Held]
    unexamined: int
    unexercised: list[str]
    unseen: list[str] = []
    dry: DryTogether | Dry | None = None
    answers: list[JudgedAnswer] = []
    uninitialised: list[kinds.KeptUninitialised] = []
    kernels: list[kinds.KeptKernelDefect] = []
    graph_memory: list[kinds.KeptGraphMemory] = []
    hangs: list[kinds.KeptHang] = []
    may_hang: list[kinds.KeptMayHang] = []
    seeded: str = ""
    compiled: str = ""
    thinned: Thinned | None = None
    own: dict[str, str] = {}
    status: int | None = None
    gone: list[str] | None = None
    limits: list[KeptLimits] = []
    early: list[int] = []

    @property
    def scope(self) -> list[str]:
        """The scope of the run, sentences without a full stop."""
        said = [sentence for sentence in (self.compiled, self.seeded) if sentence]
        return [*said, *(sentence for limits in self.limits for sentence in limits.sentences())]

    @property
    def others(self) -> dict[kinds.FindingKind, list[Any]]:
        """The findings besides races and wrong answers, by their kind; only the kinds that were found."""
        return {kind: findings for kind in kinds.KINDS if (findings := getattr(self, kind.field))}

    @property
    def wrong(self) -> list[JudgedAnswer]:
        """The answers that differ from the program's statement."""
        return [answer for answer in self.answers if answer.kind != "right"]

    @property
    def idle(self) -> bool:
        """True if the program issued nothing to the device."""
        return self.seen.startswith("0 launches")


def _with_sentence(finding: Stale | Uncovered) -> dict[str, Any]:
    return {**finding.as_dict(), "sentence": finding.sentence()}


class Findings(JsonFile):
    """``findings.json``. ``failure``: why the run ended early, if it did. ``causes``: all that were found, not only the
    gravest: race, stale, uncovered. ``checked``: for a program of the user's own, ``rests``: for a clean scenario.

    ``distance``: the largest of the secondary from the primary, between backward and forward pass. ``watch``: the NaN
    watch's finding. ``scenario``: the options; ``profile``: the hardware that durations are from.
    """

    NAME = "findings.json"
    _ascii = _sparse = True
    format: str = "stream-race-findings"
    verdict: Verdict
    sentence: str
    failure: str | None
    steps_done: int
    causes: list[str] = []
    stale: Annotated[Stale, PlainSerializer(_with_sentence)] | None = None
    uncovered: list[Annotated[Uncovered, PlainSerializer(_with_sentence)]] = []
    divergence: Annotated[Divergence, PlainSerializer(Divergence.as_dict)] | None
    distance: str = "0"
    diverged: bool = False
    watch: dict[str, Any] | None = None
    checked: Basis | None = None
    rests: Basis | None = None
    races: list[Judged]
    missing_waits: list[WantedWait] = []
    virtual_ns_per_step: FiniteFloat | None = None
    host_blocked_ns_per_step: FiniteFloat | None = None
    scenario: dict[str, Any]
    profile: dict[str, Any] = {}
    versions: dict[str, str]

    @property
    def found(self) -> list[FoundRace]:
        """The races by the wait that they lack; computed from the races where a file does not say it of each."""
        return found(self.races, self.missing_waits)

    @property
    def basis(self) -> Basis | None:
        """The basis of a clean verdict; for a program of the user's own also the parts that were not seen."""
        return self.checked or self.rests

    @property
    def held(self) -> list[Held]:
        return self.basis.held if self.basis else []

    @property
    def unexercised(self) -> list[str]:
        return self.basis.unexercised if self.basis else []

    @property
    def suppressed(self) -> list[KeptSuppression | None]:
        """Why a finding does not count, in the order of :func:`streamrace.reports.data.known_findings.findings`."""
        every: list[Any] = [*self.races, *(race for held in self.held for race in held.races)]
        if (basis := self.checked) is not None:
            every += [*basis.wrong, *(finding for findings in basis.others.values() for finding in findings)]
        return [judged.suppressed for judged in every]

    @property
    def uncertain(self) -> bool:
        """True if parts of the program were not seen, so that the absence of findings proves nothing."""
        return bool(self.failure or (self.checked and (self.checked.unseen or self.checked.idle)))

    @property
    def status(self) -> int:
        """The exit status of ``streamrace check`` (docs/how-to/ci.md); earlier versions wrote none."""
        if self.checked is not None and self.checked.status is not None:
            return self.checked.status
        return FAILED if self.failure else STATUSES.get(self.verdict, STATUSES[Verdict.UNKNOWN])

    @property
    def first_bad_step(self) -> int | None:
        """The first step in which a parameter or a loss is wrong."""
        wrong = (self.divergence.parameter, self.divergence.loss) if self.divergence else ()
        return min((value.step for value in wrong if value), default=None)

    @classmethod
    def prepared(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**data, **{name: _numbers(data[name]) for name in ("divergence", "stale") if name in data}}

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        data["races"] = [self._race(race, witness=True) for race in self.races]
        for one, held in zip(self.held, (data.get("checked") or data.get("rests") or {}).get("held", ()), strict=True):
            held |= {"sites": plain(one.sites), "races": [self._race(each, witness=False) for each in one.races]}
        return data

    def _race(self, race: Judged, *, witness: bool) -> dict[str, Any]:
        data = race.as_dict()
        kept, suppressed = data.pop("witness"), data.pop("suppressed")
        if witness:
            data["witness"] = kept and {word: kept[word] for word in (_OF_PROGRAM if self.checked else _OF_SCENARIO)}
        return {**data, "suppressed": suppressed} if self.checked else data


def _numbers(value: Any, name: str = "") -> Any:
    """Return the value with the numbers that JSON does not have, which are written as text."""
    if isinstance(value, dict):
        return {key: _numbers(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_numbers(inner, name) for inner in value]
    return float(value) if name in _NUMBERS and value in _NO_NUMBERS else value


@dataclass(frozen=True)
class Cost:
    """The cost of a run in virtual time: nanoseconds per optimizer step, on average over ranks."""

    step_ns: float
    blocked_ns: float


def of_scenario(
    *,
    scenario: Mapping[str, Any],
    versions: Mapping[str, str],
    races: Sequence[Race],
    stale: Stale | None,
    uncovered: Sequence[Uncovered],
    divergence: Divergence | None,
    cost: Cost | None,
    steps_done: int,
    failure: str | None = None,
    watch: Finding | None = None,
    witnesses: Sequence[Witness] = (),
    profile: Mapping[str, Any] = MappingProxyType({}),
    distance: float = 0.0,
    holding: OrderBasis = OrderBasis(),  # noqa: B008
    unexercised: Sequence[str] = (),
    hangs: Sequence[Hang] = (),
) -> Findings:
    """Return the findings of a scenario's run. ``witnesses``: one for each race, or none. ``holding``: the waits that a
    clean verdict depends on. ``hangs``: the one that ended it, if one did.
    """
    diverged = divergence is not None and divergence.diverged
    causes = {"race": races, "stale": stale, "uncovered": uncovered}
    if hangs:
        verdict = Verdict.HANG
    elif races:
        verdict = Verdict.UNSTABLE if diverged else Verdict.HIDDEN
    elif stale is not None:
        verdict = Verdict.STALE
    elif uncovered:
        verdict = Verdict.UNCOVERED
    else:
        verdict = Verdict.DIVERGED if diverged else Verdict.CLEAN
    rests = None
    if holding.held or holding.unexamined or unexercised:
        held = [Held.of(pair, [Judged(**vars(race)) for race in pair.races]) for pair in holding.held]
        rests = Basis(held=held, unexamined=holding.unexamined, unexercised=list(unexercised))
    findings = Findings(
        verdict=verdict,
        sentence="",
        failure=failure,
        steps_done=steps_done,
        causes=[cause for cause, present in causes.items() if present],
        stale=stale,
        uncovered=list(uncovered),
        divergence=divergence,
        distance=f"{distance:.3g}",
        diverged=diverged,
        watch={**watch.as_dict(), "sentence": watch.sentence()} if watch else None,
        checked=None,
        rests=rests,
        races=[Judged(**vars(race), witness=witness) for race, witness in zip_longest(races, witnesses)],
        virtual_ns_per_step=cost.step_ns if cost else None,
        host_blocked_ns_per_step=cost.blocked_ns if cost else None,
        scenario=dict(scenario),
        profile=dict(profile),
        versions=dict(versions),
    )
    hung = [f"Hang: no rank can go on: {hang.sentence()}." for hang in hangs]
    return findings.model_copy(update={"sentence": " ".join(hung) or _sentence(findings)})


def _sentence(findings: Findings) -> str:
    """Return the verdict on a scenario as sentences for a person."""
    parts = [
        {
            Verdict.UNSTABLE: "Unstable: streams race, and training goes wrong.",
            Verdict.HIDDEN: "A race is there, and did no harm in this timing: training came out right by luck.",
            Verdict.STALE: "Stale: every access is ordered, and yet an older version of a parameter is used.",
            Verdict.UNCOVERED: "Uncovered: a part of a secondary partition is read that nothing wrote.",
            Verdict.DIVERGED: "Training goes wrong, and no race between streams explains it.",
            Verdict.CLEAN: clean("no race, and every value equals the reference bit for bit", findings.unexercised),
        }[findings.verdict]
    ]
    if findings.held:
        parts.append("But only by chance: some of its waits are there for another reason.")
    if findings.divergence is None:
        parts = [f"No reference to compare with; found: {', '.join(findings.causes) or 'nothing'}."]
    if findings.failure:
        parts.append(f"The run ended early: {findings.failure}.")
    return " ".join(parts)
