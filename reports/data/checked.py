"""Holds the verdict on a program of the user's own, as ``streamrace check`` writes it to ``findings.json``.

The format is that of a scenario's run, so all readers of runs accept the file. Without a reference, values are judged
only where the program states the expected ones (:mod:`streamrace.detectors.values.answers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from streamrace.detectors import Race, Uninitialised
from streamrace.detectors.confidence.incidental import OrderBasis
from streamrace.detectors.order.races import Occurrence
from streamrace.detectors.values.answers import Answer
from streamrace.reports.data import known as knowing
from streamrace.reports.data.findings import FORMAT, VERSION, Verdict, put
from streamrace.reports.data.known import Discovery, Known
from streamrace.reports.data.schema import KeptSuppression
from streamrace.reports.text import clean
from streamrace.trace.untrusted import visible

_OF_ANSWER = {"stale": Verdict.STALE, "bounds": Verdict.BOUNDS, "arithmetic": Verdict.ARITHMETIC}
FAILED = 3  # the exit status if the program failed
STATUSES = {
    Verdict.CLEAN: 0,
    Verdict.FRAGILE: 0,
    Verdict.RACE: 1,
    Verdict.UNKNOWN: 4,
    Verdict.STALE: 5,
    Verdict.BOUNDS: 5,
    Verdict.ARITHMETIC: 5,
    Verdict.UNINITIALISED: 5,
}
_SAYS = {"stale": "Stale", "bounds": "Wrong bounds", "arithmetic": "Wrong arithmetic"}


@dataclass(frozen=True)
class Seen:
    """The part of a program that was examined. ``virtual_ns``: when its last work ended, in virtual time."""

    ranks: int = 0
    launches: int = 0
    streams: int = 0
    virtual_ns: int = 0

    def sentence(self) -> str:
        def many(count: int, word: str, ending: str = "s") -> str:
            return f"{count:,} {word}{'' if count == 1 else ending}"

        return f"{many(self.launches, 'launch', 'es')} on {many(self.streams, 'stream')} of {many(self.ranks, 'rank')}"


class Witnessed(NamedTuple):
    """The result of a race in a timing that executes its pair in the other order.

    ``verdict``: harmful, benign or not confirmed; ``says``: the evidence, a sentence without a full stop. ``token``
    names the timing, and ``command`` runs the program in it; both empty if no such timing was found.
    """

    verdict: str
    says: str
    token: str = ""
    command: str = ""

    def as_dict(self) -> dict[str, str]:
        return {**self._asdict(), "reason": "" if self.token else self.says}


def kept(examples: Sequence[Occurrence], ends: Mapping[int, int]) -> list[Occurrence]:
    """Return the examples in the part of the traces that is kept. ``ends``: see :class:`Thinned`."""

    def last(one: Occurrence) -> int:
        return max(-1 if side.op is None else side.op for side in (one.first, one.second))

    return [one for one in examples if one.rank not in ends or last(one) <= ends[one.rank]]


@dataclass(frozen=True)
class Thinned:
    """Describes a long run of whose traces only the beginning is kept: ``operations`` of the ``of`` that were judged.
    ``ends``: the last kept operation, for each rank whose trace was cut.
    """

    operations: int
    of: int
    ends: Mapping[int, int]

    def has(self, race: Race) -> bool:
        """Check whether the kept traces hold one of the race's reported occurrences."""
        return bool(kept(race.examples, self.ends))

    def sentences(self, races: Sequence[Race]) -> tuple[str, ...]:
        """Return sentences for a person, without full stops: the kept part, and the run's races that are not in it."""
        said = [
            f"Kept of the traces: the first {self.operations:,} operations of {self.of:,}. The others were judged like "
            "them, and thinned out (--keep-trace 0 keeps all)"
        ]
        gone = [str(number) for number, race in enumerate(races, 1) if not self.has(race)]
        if gone:
            which = f"Race {gone[0]} is" if len(gone) == 1 else f"Races {', '.join(gone)} are"
            said.append(f"{which} in what was thinned out: what is told here is all that is left of it")
        return tuple(said)

    def as_dict(self, races: Sequence[Race]) -> dict[str, Any]:
        ends = [{"rank": rank, "op": op} for rank, op in self.ends.items()]
        return {"operations": self.operations, "of": self.of, "ends": ends, "says": list(self.sentences(races))}


@dataclass(frozen=True)
class Dry:
    """A program that ran dry, as rank 0 of ``ranks`` on ``nodes``.

    ``peak`` and ``capacity``: bytes of memory allocated at most, and available on a GPU (0: unknown). ``step_ns``: the
    virtual time of the last optimizer step; 0 if the program took fewer than two steps.
    """

    ranks: int
    nodes: int
    peak: int
    capacity: int
    step_ns: int

    def sentences(self) -> tuple[str, ...]:
        """Return sentences for a person, without full stops."""
        others = "; the others are taken to do the same at the same time" if self.ranks > 1 else ""
        nodes = f"{self.nodes:,} node{'' if self.nodes == 1 else 's'}"
        said = [
            f"A dry run as rank 0 of {self.ranks:,} on {nodes}, on tensors that hold nothing{others}. There are "
            "no witnesses: what a race would change needs values",
            f"Memory: at most {self.peak / 2**30:.2f} GiB allocated"
            + (f" of the {self.capacity / 2**30:.0f} GiB of a GPU" if self.capacity else ""),
        ]
        if self.step_ns:
            said.append(f"An optimizer step takes {self.step_ns / 1e9:.3f} s of virtual time (the last one)")
        return tuple(said)

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("ranks", "nodes", "peak", "capacity", "step_ns")}


@dataclass(frozen=True)
class Checked:
    """All that is known about a program that ran. ``asked``: the command, its ranks, the slowed operations.

    ``failure``: why it ended early, if it did. ``unexercised``: features that were on and never used. ``unseen``:
    accesses that were not recorded, which the verdict does not cover. All are sentences without a full stop.
    ``answers``: the program's statements about the values of tensors.
    """

    asked: Mapping[str, Any]
    versions: Mapping[str, str]
    races: Sequence[Race] = ()
    holding: OrderBasis = field(default_factory=OrderBasis)
    unexercised: Sequence[str] = ()
    unseen: Sequence[str] = ()
    seen: Seen = field(default_factory=Seen)
    failure: str | None = None
    witnesses: Sequence[Witnessed] = ()  # one per race, or none at all
    dry: Dry | None = None
    answers: Sequence[Answer] = ()
    own: Mapping[str, str] = field(default_factory=dict)  # the program's own files: streamrace.reports.data.checkout
    known: Known = field(default_factory=Known)
    failed: bool = False  # the program itself failed, whatever was found before
    thinned: Thinned | None = None
    uninitialised: Sequence[Uninitialised] = ()
    seeded: str = ""  # the seeding that the program itself does not do, a sentence without a full stop

    @property
    def found(self) -> list[Discovery]:
        """All findings, in the order of ``known.suppressed``."""
        held = [(one.sites, one.races) for one in self.holding.held]
        return knowing.findings(self.races, held, self.wrong, self.own, self.uninitialised)

    @property
    def suppressed(self) -> list[KeptSuppression | None]:
        """The reason, per finding, why the finding does not count; None if it counts."""
        given = self.known.suppressed
        return list(given) if given else [None] * len(self.found)

    @property
    def uncertain(self) -> bool:
        """Return whether parts of the program were not seen, so that the absence of findings proves nothing."""
        return bool(self.failure or not self.seen.launches or self.unseen)

    @property
    def counting(self) -> Verdict:
        """The verdict on the findings that count: all but the suppressed ones."""
        left = {one.group for one, why in zip(self.found, self.suppressed, strict=True) if why is None}
        if "race" in left:
            return Verdict.RACE
        if self.uncertain:
            return Verdict.UNKNOWN
        if "uninitialised" in left:
            return Verdict.UNINITIALISED
        if "answer" in left:
            at = len(self.found) - len(self.uninitialised) - len(self.wrong)
            kinds = [one.kind for one, why in zip(self.wrong, self.suppressed[at:], strict=False) if why is None]
            return _OF_ANSWER[kinds[0]]
        return Verdict.FRAGILE if self.holding.held else Verdict.CLEAN

    @property
    def status(self) -> int:
        """The exit status of ``streamrace check`` (docs/how-to/ci.md)."""
        return FAILED if self.failed else STATUSES[self.counting]

    @property
    def wrong(self) -> list[Answer]:
        """The answers that are not right."""
        return [one for one in self.answers if one.kind != "right"]

    @property
    def verdict(self) -> Verdict:
        if self.races:
            return Verdict.RACE
        if self.uncertain:
            return Verdict.UNKNOWN
        if self.uninitialised:
            return Verdict.UNINITIALISED
        if self.wrong:
            return _OF_ANSWER[self.wrong[0].kind]
        return Verdict.FRAGILE if self.holding.held else Verdict.CLEAN

    def ran_with(self) -> str:
        """Return the releases that replaced the environment's, a sentence without a full stop; empty if none did."""
        return ran_with(self.asked)

    def sentence(self) -> str:
        """Return the verdict as a sentence for a person."""
        ordered = "every two accesses to the same memory, one of them a write, are ordered by the program"
        if self.verdict == Verdict.RACE:
            count = "A race" if len(self.races) == 1 else f"{len(self.races)} races"
            text = f"{count}: streams use the same memory, and nothing orders them."
            if aside := sum(why is not None for why in self.suppressed[: len(self.races)]):
                text += f" {self._of_them(aside)} known before."
        elif self.failure:
            return f"Unknown: the program ended early ({self.failure}), and no race was seen until then."
        elif not self.seen.launches:
            text = "Unknown: nothing was issued to the device, so there is nothing to judge. Does the program use cuda?"
        elif self.verdict == Verdict.UNKNOWN:
            text = "Unknown: no race was seen, but not all that the program does was."
        elif self.uninitialised:
            where = visible(self.uninitialised[0].where, lines=False)
            left = len(self.uninitialised) - 1
            others = f" (and {left} more)" if left else ""
            text = f"Uninitialised, and no race: {ordered}, and yet what nobody wrote reaches {where}{others}."
        elif self.wrong:
            first = self.wrong[0]
            told = f"{first.name} is not what it must be"
            more = len(self.wrong) - 1
            text = (
                f"{_SAYS[first.kind]}, and no race: {ordered}, and yet {told}{f' (and {more} more)' if more else ''}."
            )
        elif self.verdict == Verdict.FRAGILE:
            text = "Fragile: clean, but only by chance: what orders it are waits that are there for another reason."
        else:
            text = clean(ordered, self.unexercised)
        if self.failure:
            text += f" The program ended early: {self.failure}."
        if self.failure and self.seen.ranks > 1:  # RaceDetector.finish: less order is known
            text += " What the other ranks did then is missing, and with it perhaps what orders the two."
        return text

    def _of_them(self, count: int) -> str:
        if count == len(self.races):
            return "It is" if count == 1 else "All of them are"
        return f"{count} of them {'is' if count == 1 else 'are'}"

    def as_dict(self) -> dict[str, Any]:
        aside = iter([one and asdict(one) for one in self.suppressed])  # in the order of the findings below
        races = [
            {**race.as_dict(), "witness": witness.as_dict() if witness else None, "suppressed": next(aside)}
            for race, witness in zip_longest(self.races, self.witnesses)
        ]
        held = [one.as_dict() for one in self.holding.held]
        for one in held:
            one["races"] = [{**race, "suppressed": next(aside)} for race in one["races"]]
        answers = [{**asdict(one), "suppressed": next(aside) if one in self.wrong else None} for one in self.answers]
        unwritten = [{**vars(one), "says": one.sentence(), "suppressed": next(aside)} for one in self.uninitialised]
        return {
            "format": FORMAT,
            "version": VERSION,
            "verdict": str(self.verdict),
            "sentence": self.sentence(),
            "failure": self.failure,
            "steps_done": 0,
            "causes": ["race"] if self.races else [],
            "divergence": None,
            "checked": {
                "seen": self.seen.sentence(),
                "virtual_ns": self.seen.virtual_ns,
                "held": held,
                "unexamined": self.holding.unexamined,
                "unexercised": list(self.unexercised),
                "unseen": list(self.unseen),
                **({"dry": self.dry.as_dict()} if self.dry else {}),
                **({"answers": answers} if answers else {}),
                **({"uninitialised": unwritten} if unwritten else {}),
                **({"seeded": self.seeded} if self.seeded else {}),
                **({"thinned": self.thinned.as_dict(self.races)} if self.thinned else {}),
                "own": dict(self.own),
                "status": self.status,
                "gone": self.known.gone if self.known.gone is None else list(self.known.gone),
            },
            "races": races,
            "scenario": dict(self.asked),
            "versions": dict(self.versions),
        }


def ran_with(asked: Mapping[str, Any]) -> str:
    """Return the releases that replaced the environment's, a sentence without a full stop; empty if none did."""
    releases = asked.get("packages", {})
    words = {"not tried": " (not tried here before)"}
    named = [f"{one.replace('==', ' ')}{words.get(word, '')}" for one, word in releases.items() if word != "beside"]
    beside = len(releases) - len(named)  # each was reported when it was installed
    more = f", and {beside} package{'' if beside == 1 else 's'} that they ask for" if beside else ""
    return f"With {', '.join(named)}{more}" if named else ""


def write(checked: Checked, folder: Path) -> Path:
    """Write ``findings.json``, whole or not at all. Raises OSError."""
    return put(checked.as_dict(), folder)
