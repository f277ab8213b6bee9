"""A candidate, tried live: the program runs again under ``repro check`` as if the lines stood in its files.

The files stay as they are (:mod:`simgpu.overlay`). The race has to be gone, no other may come, and the run has to have
done the same work: a race whose code is not come by is not cured.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detectors.order.races import Race, describe, site
from detectors.race_detector import key_of
from replay.retimed import end_of
from reports.data.fixes import Live
from reports.data.schema import FindingsFile
from repro.sessions import apart
from repro.sessions.fixing.candidates import Candidate, Patch
from repro.sessions.fixing.proved import load
from simgpu import naming, overlay
from simgpu.trace import Collective, Frame, Launch, Stack, TraceError, TraceRecord

_LIMIT_S = 600.0
Work = Counter[tuple[int, int, str, Frame | None]]


@dataclass(frozen=True)
class Tried:
    """What a live run said: ``live`` in a word, ``says`` in a sentence without a full stop. ``longer_ns``: by how much
    it ended later than the run without (None: it did not end as that).
    """

    live: Live
    says: str
    longer_ns: int | None = None


def command(asked: Mapping[str, Any]) -> list[str]:
    """The words behind ``repro check`` for the same program in the same timing."""
    words = ["--witnesses", "0", "--ranks", str(asked.get("ranks", 1))]
    for pattern, factor in dict(asked.get("slow") or {}).items():
        words += ["--slow", f"{pattern}={factor}"]
    if timing := asked.get("timing"):
        words += ["--timing", str(timing)]
    return [*words, *shlex.split(str(asked["program"]))]


def packages(asked: Mapping[str, Any]) -> list[str]:
    """Those that were asked for; what they ask for comes with them."""
    return [str(one) for one, word in dict(asked.get("packages") or {}).items() if word != "beside"]


def work_of(records: Mapping[int, Sequence[TraceRecord]]) -> Work:
    """What a run gave its streams, and from where."""
    found: Work = Counter()
    for rank, those in records.items():
        sites: dict[int, Frame | None] = {}
        for one in those:
            if isinstance(one, Stack):
                sites[one.id] = site(one.frames)
            elif isinstance(one, (Launch, Collective)):
                found[rank, one.stream, one.kernel, sites.get(one.stack)] += 1
    return found


@dataclass(frozen=True)
class Trying:
    """Tries candidates of ``race``, one of the races ``base`` of the run that ``asked`` describes.

    ``work``: what that run gave its streams; ``end_ns``: when its last work, or its host, was done.
    """

    asked: Mapping[str, Any]
    race: Race
    base: Sequence[Race]
    work: Work
    end_ns: int

    def run(self, patch: Patch, folder: Path) -> Tried:
        """With these lines. ``folder`` takes the run, and is made."""
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "overlay.json").absolute()
        more = overlay.write(patch, file)
        try:
            found = apart.check(command(self.asked), packages(self.asked), folder, "run", limit_s=_LIMIT_S, more=more)
        except apart.NoVerdict as failure:
            return Tried("fails", f"with it the program comes to no verdict: {failure}")
        if lacking := [path for path in patch if path.resolve() not in overlay.used(file)]:
            return Tried("unknown", f"the run did not load {lacking[0].name} from where the lines were put in")
        return self._judge(found, folder / "run" / "trace")

    def names(self, one: Candidate, blocks: set[tuple[int, int]], folder: Path) -> list[tuple[str, bool]]:
        """Expressions that have this memory (ranks and numbers of blocks) at a candidate's place, those that have most
        of it first, each with whether it is a list. Of equals what the statement itself says comes first.
        """
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "names.jsonl").absolute()
        more = overlay.write(one.asking(file), (folder / "overlay.json").absolute())
        with suppress(apart.NoVerdict):  # it may have told before that
            apart.check(command(self.asked), packages(self.asked), folder, "run", limit_s=_LIMIT_S, more=more)
        has: dict[tuple[str, bool], set[tuple[int, int]]] = {}
        for rank, named in naming.told(file):
            for expression, (listed, numbers) in named.items():
                has.setdefault((expression, listed), set()).update((rank, number) for number in numbers)
        able = [one for one, those in has.items() if those & blocks]
        return sorted(able, key=lambda one: -len(has[one] & blocks))

    def _judge(self, found: FindingsFile, trace: Path) -> Tried:
        key = key_of(self.race.first, self.race.second)
        now = {key_of(one.first, one.second): one for one in found.races}
        if key in now:
            return Tried("race", "the race is still there")
        known = {key_of(one.first, one.second) for one in self.base}
        if new := [one for other, one in now.items() if other not in known]:
            first, second = (describe(side.kernel, side.stack) for side in (new[0].first, new[0].second))
            return Tried("race", f"the race is gone, and another comes: {first} and {second}")
        held = [one for each in (found.checked.held if found.checked else []) for one in each.races]
        if any(key_of(one.first, one.second) == key for one in held):
            return Tried("unknown", "the race is gone only by a read, a copy or a timer that happens to wait")
        try:
            records = load(trace)
        except TraceError as problem:
            return Tried("unknown", str(problem))
        if other := self._other_work(work_of(records)):
            return Tried("unknown", other)
        if found.failure:
            return Tried("fails", found.failure)
        stay = f"{len(now)} other race{'' if len(now) == 1 else 's'} of the program stay{'s' * (len(now) == 1)}"
        says = f"the race is gone, and no other comes{f'; {stay}' if now else ''}"
        return Tried("clean", says, end_of(records) - self.end_ns)

    def _other_work(self, work: Work) -> str:
        """Why it is another run; empty where it did what the first one did."""
        if work == self.work:
            return ""
        rank, _, kernel, frame = next(iter((self.work - work) or (work - self.work)))
        where = describe(kernel, (frame,) if frame else ())
        return f"with it the program does other work: {where} on rank {rank} is not there as often as before"
