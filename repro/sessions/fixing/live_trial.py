"""Tries a candidate live: runs the program again under ``streamrace check`` as if the lines were in its files.

The files are unchanged (:mod:`streamrace.device.overlay`). The race must be gone, no other may appear, and the run must
do the same work: a race whose code is not executed is not cured.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streamrace.detectors.files import records_of
from streamrace.detectors.identity import identity
from streamrace.detectors.order.races import Race, describe, site
from streamrace.device import naming, overlay
from streamrace.device.options import EAGER, GPUS, MOST_GPUS
from streamrace.device.scripts import WrongUse
from streamrace.replay.retiming import end_of
from streamrace.reports.data.findings import Findings
from streamrace.reports.data.fixes import Live
from streamrace.reports.data.schema import first_problem
from streamrace.repro.sessions import check_process
from streamrace.repro.sessions.fixing.candidates import Candidate, Patch
from streamrace.repro.sessions.race_selection import Chosen
from streamrace.trace import wording
from streamrace.trace.records import Collective, Frame, Launch, Stack, TraceError, TraceRecord

_LIMIT_S = 600.0
Work = Counter[tuple[int, int, str, Frame | None]]


@dataclass(frozen=True)
class LiveTry:
    """The outcome of a live run: ``live`` in a word, ``says`` in a sentence without a full stop. ``longer_ns``: delay
    of its end against the original run (None: it did not end cleanly).
    """

    live: Live
    says: str
    longer_ns: int | None = None


class AskedAgain(BaseModel):
    """The request of the original run, from its folder. The folder is untrusted."""

    model_config = ConfigDict(strict=True, frozen=True)

    program: str
    ranks: Annotated[int, Field(ge=1, le=1024)] = 1
    slow: dict[str, float] = {}
    timing: str = ""
    packages: dict[str, str] = {}
    dry_on_nodes: int = 0
    on_gpu: bool = False
    scale_limits: bool = False
    compile: Literal["eager", "aot_eager", "aot_eager_decomp_partition", "inductor"] = "eager"
    gpus: Annotated[int, Field(ge=1, le=MOST_GPUS)] = GPUS

    @cached_property
    def words(self) -> list[str]:
        """Return the program's words, with -m first for a module. Raises ValueError."""
        return shlex.split(self.program)

    @property
    def command(self) -> list[str]:
        """Return the words after ``streamrace check`` for the same program in the same timing."""
        words = ["--witnesses", "0", "--keep-trace", "0", "--ranks", str(self.ranks)]
        for pattern, factor in self.slow.items():
            words += ["--slow", f"{pattern}={factor}"]
        words += ["--timing", self.timing] if self.timing else []
        words += ["--scale-limits"] if self.scale_limits else []
        words += ["--compile", self.compile] if self.compile != EAGER else []
        words += ["--gpus", str(self.gpus)] if self.gpus != GPUS else []
        module = self.words[:1] == ["-m"]
        return [*words, *(["-m"] if module else []), "--", *self.words[module:]]

    @property
    def asked_for(self) -> list[str]:
        """Return the requested releases, without their dependencies."""
        return [package for package, word in self.packages.items() if word != "beside"]


def asked_again(chosen: Chosen) -> AskedAgain | None:
    """Return the request; None if the run is not of ``streamrace check``. Raises :class:`WrongUse`."""
    if not chosen.own:
        return None
    try:
        request = AskedAgain.model_validate(dict(chosen.asked))
        why = "" if request.words[request.words[:1] == ["-m"] :] else "it is empty"
    except ValidationError as error:
        why = first_problem(error)
    except ValueError as error:  # raised by shlex
        why = str(error)
    if why:
        raise WrongUse(f"{chosen.folder} does not say which program ran ({why}): run it again with 'streamrace check'")
    return request


def work_of(records: Mapping[int, Sequence[TraceRecord]]) -> Work:
    """Count the work that a run launched, by stream and place."""
    counts: Work = Counter()
    for rank, rank_records in records.items():
        sites: dict[int, Frame | None] = {}
        for record in rank_records:
            if isinstance(record, Stack):
                sites[record.id] = site(record.frames)
            elif isinstance(record, (Launch, Collective)):
                counts[rank, record.stream, record.kernel, sites.get(record.stack)] += 1
    return counts


@dataclass(frozen=True)
class Trying:
    """Tries candidates for ``race``, one of the races ``base`` of the run that ``asked`` describes.

    ``work``: launched by that run; ``end_ns``: the end of its last work or of its host.
    """

    asked: AskedAgain
    race: Race
    base: Sequence[Race]
    work: Work
    end_ns: int

    def run(self, patch: Patch, folder: Path) -> LiveTry:
        """Run with these lines. ``folder`` is created, and receives the run."""
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "overlay.json").absolute()
        more = overlay.write(patch, file)
        try:
            findings = check_process.check(
                self.asked.command, self.asked.asked_for, folder, "run", limit_s=_LIMIT_S, more=more
            )
        except check_process.NoVerdict as failure:
            return LiveTry("fails", f"with it the program comes to no verdict: {failure}")
        if lacking := [path for path in patch if path.resolve() not in overlay.used(file)]:
            return LiveTry("unknown", f"the run did not load {lacking[0].name} from where the lines were put in")
        return self._judge(findings, folder / "run" / "trace")

    def names(self, candidate: Candidate, blocks: set[tuple[int, int]], folder: Path) -> list[tuple[str, bool]]:
        """Return expressions for this memory (ranks and block numbers) at a candidate's place, and whether each is a
        list; those that cover most of it first. Ties: the statement's own expressions first.
        """
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "names.jsonl").absolute()
        more = overlay.write(candidate.asking(file), (folder / "overlay.json").absolute())
        with suppress(check_process.NoVerdict):  # the names may have been reported before a failure
            check_process.check(self.asked.command, self.asked.asked_for, folder, "run", limit_s=_LIMIT_S, more=more)
        has: dict[tuple[str, bool], set[tuple[int, int]]] = {}
        for rank, named in naming.read(file):
            for expression, (listed, numbers) in named.items():
                has.setdefault((expression, listed), set()).update((rank, number) for number in numbers)
        covering = [key for key, covered in has.items() if covered & blocks]
        return sorted(covering, key=lambda key: -len(has[key] & blocks))

    def _judge(self, findings: Findings, trace: Path) -> LiveTry:
        key = identity(self.race)
        now = {identity(race): race for race in findings.races}
        if key in now:
            return LiveTry("race", "the race is still there")
        known = {identity(race) for race in self.base}
        if new := [race for other, race in now.items() if other not in known]:
            first, second = (describe(side.kernel, side.stack) for side in (new[0].first, new[0].second))
            return LiveTry("race", f"the race is gone, and another comes: {first} and {second}")
        by_chance = [race for group in (findings.checked.held if findings.checked else []) for race in group.races]
        if any(identity(race) == key for race in by_chance):
            return LiveTry("unknown", "the race is gone only by a read, a copy or a timer that happens to wait")
        try:
            records = records_of(trace)
        except TraceError as problem:
            return LiveTry("unknown", str(problem))
        if other := self._other_work(work_of(records)):
            return LiveTry("unknown", other)
        if findings.failure:
            return LiveTry("fails", findings.failure)
        stay = f"{wording.count(len(now), 'other race')} of the program {wording.plural_of(len(now), 'stays', 'stay')}"
        says = f"the race is gone, and no other comes{f'; {stay}' if now else ''}"
        return LiveTry("clean", says, end_of(records) - self.end_ns)

    def _other_work(self, work: Work) -> str:
        """Return why the run differs in its work; empty if it does not."""
        if work == self.work:
            return ""
        rank, _, kernel, frame = next(iter((self.work - work) or (work - self.work)))
        where = describe(kernel, (frame,) if frame else ())
        return f"with it the program does other work: {where} on rank {rank} does not run as often as before"
