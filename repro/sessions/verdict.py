"""Judges a program by its traces: its races, the waits that order the rest, and what was not exercised or seen."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from streamrace.detectors import (
    Hang,
    Race,
    RaceDetector,
    Unexercised,
    Uninitialised,
    Unseen,
    UnwrittenRead,
)
from streamrace.detectors.base import found_by
from streamrace.detectors.confidence.incidental import OrderBasis, WithoutIncidentalWaits, together
from streamrace.detectors.confidence.waits import Waits
from streamrace.detectors.files import Enough, Following, Reader, records_of, rests_on
from streamrace.detectors.identity import RaceKey, identity
from streamrace.detectors.missing_waits import TracedWaits, missing_waits
from streamrace.detectors.order.races import Occurrence
from streamrace.detectors.values import answers
from streamrace.detectors.witness import Witness
from streamrace.device import compiled, seeds
from streamrace.device.extras import installed
from streamrace.process.interrupts import held
from streamrace.reports.data import branches, checkout, known_findings, limits, sources
from streamrace.reports.data.comments import comments
from streamrace.reports.data.finding_kinds import KINDS
from streamrace.reports.data.findings import Findings, Thinned
from streamrace.reports.data.known_findings import Baseline
from streamrace.reports.data.verdict import Seen, of_program, thinned
from streamrace.repro.sessions.detector_set import detectors
from streamrace.repro.sessions.dry_metrics import DryMetrics
from streamrace.repro.sessions.folders import ANSWERS, COMPILED, LIMITS, SEEDED
from streamrace.trace.records import (
    HOST_STREAM,
    TRAINING,
    Alloc,
    Collective,
    End,
    Free,
    Launch,
    Phase,
    Reuse,
    StreamName,
    TraceError,
    TraceRecord,
)
from streamrace.trace.untrusted import Unreadable

_PACKAGES = ("streamrace", "torch", "deepspeed", "transformers", "accelerate", "lightning")
_SOON_S = 0.5  # time limit for judging the rest of an interrupted program
_TRACED = 50_000  # operations of a run in which missing waits are tried
_seconds = time.monotonic
_MEMORY = frozenset({Alloc, Free, Reuse})  # two thirds of all records


class Witnesses(Protocol):
    """Runs the program again, with the accesses of each race reversed; returns one result for each race."""

    def __call__(self, trace: Path, races: Sequence[Race]) -> Sequence[Witness]:
        """Return a result for each race. ``trace``: the folder of the traces that were judged."""
        ...

    def unwritten(self, reads: Sequence[UnwrittenRead]) -> tuple[Sequence[Uninitialised], Sequence[str]]:
        """Return the uninitialised values that affect results, from runs with other bytes, and the unknown cases."""
        ...


def judge(
    folder: Path, request: Mapping[str, Any], *, failure: str | None, beside: Path, witnesses: Witnesses | None = None,
    dry: Path | None = None, baseline: Baseline | None = None, keeping: str = "",
    failed: bool = False,
) -> Findings:  # fmt: skip
    """Judge the traces in ``folder``, of a finished run: see :meth:`Judging.conclude`."""
    judging = Judging(folder, request, dry=dry is not None)
    findings = judging.conclude(
        failure=failure, beside=beside, witnesses=witnesses, dry=dry, baseline=baseline, keeping=keeping, failed=failed
    )
    if judging.interrupted:
        raise KeyboardInterrupt
    return findings


class Judging:
    """Judges the traces in ``folder``, while the program runs or after its end, with the same result.

    ``request``: see :func:`streamrace.repro.sessions.folders.request`; ``dry``: the run is a dry run; ``strict``:
    what is fragile fails. ``on_race`` is called once, with the first race. Parts of traces that are not kept
    (:mod:`streamrace.trace.parts`) are removed once judged. ``interrupted``: the judging was interrupted, and the
    verdict says so. ``unreasoned``: see :class:`streamrace.reports.data.known_findings.Known`.
    """

    interrupted = False
    unreasoned: Sequence[str] = ()

    def __init__(
        self, folder: Path, request: Mapping[str, Any], *, dry: bool, strict: bool = False,
        on_race: Callable[[Race], None] | None = None,
    ) -> None:  # fmt: skip
        self._folder, self._request, self._strict, self._on_race = folder, request, strict, on_race
        self._waits, self._count, self._using = Waits(), _Count(), detectors(self._notice)
        self._late: set[RaceKey] = set()  # races with an occurrence after its rank's first call of a module
        self._bare = WithoutIncidentalWaits(self._waits)
        self._rehearsed = DryMetrics(request) if dry else None
        others = [self._rehearsed] if self._rehearsed else []
        readers: list[Reader] = [self._waits, self._count, *others, *self._using, self._bare]
        self._following = Following(folder / "trace", readers, thin=True)

    def _notice(self, key: RaceKey, occurrence: Occurrence) -> None:
        if occurrence.second.phase == TRAINING:
            self._late.add(key)

    def _is_early(self, race: Race) -> bool:
        """Check whether all of the race lies before the first call of a module, which each of its ranks has made."""
        return self._count.trained.issuperset(race.ranks) and identity(race) not in self._late

    def poll(self, enough: Enough = lambda: False) -> bool:
        """Judge more of the trace written by now, until ``enough`` returns True. Return whether more is available."""
        more = self._following.poll(enough)
        if any(detector.count for detector in self._using if isinstance(detector, RaceDetector)):
            self._bare.stop()  # only needed for a clean verdict
            if self._on_race is not None:
                self._on_race(found_by(self._using, Race)[0])
                self._on_race = None
        return more

    def races(self) -> list[Race]:
        """Return the races in the readable part of the traces, for a run without a verdict."""
        with suppress(TraceError, OSError):
            self._following.finish()
        return found_by(self._using, Race)

    def conclude(
        self, *, failure: str | None, beside: Path, witnesses: Witnesses | None = None, dry: Path | None = None,
        baseline: Baseline | None = None, keeping: str = "", failed: bool = False, soon: bool = False,
    ) -> Findings:  # fmt: skip
        """Judge the rest, and write all findings into the folder. ``beside``: the folder of the script's modules.

        ``failure``: why the program ended early, without a full stop; the part that ran is judged. ``dry``: the file
        that a completed dry run leaves. ``baseline``: known findings. ``keeping``: the name of a baseline that receives
        the findings, which are known from then on. ``failed``: the program's exit status was not 0. ``soon``: a user
        waits, so the rest is judged only for a moment.

        Ctrl-C ends the judging, not the writing of its results.
        """
        until = _seconds() + _SOON_S
        races: list[Race] = []
        holding = OrderBasis()
        try:
            complete = self._following.finish(lambda: soon and _seconds() > until)
            races = found_by(self._using, Race)
            if not complete:
                failure = f"{failure}, and its end was not judged"
            elif not races and not failure:
                holding = self._rests_on()
        except TraceError as error:
            failure = failure or str(error)
        except KeyboardInterrupt:
            self.interrupted = True
            races = found_by(self._using, Race)
            failure = failure or "judging it was interrupted"
        with held() if self.interrupted else nullcontext():
            return self._written(failure, races, holding, beside, witnesses, dry, baseline, keeping, failed=failed)

    def _rests_on(self) -> OrderBasis:
        if self._following.thinned:
            return together(self._waits, self._bare)
        return rests_on(self._folder / "trace", self._waits, self._bare)

    def _written(
        self, failure: str | None, races: list[Race], holding: OrderBasis, beside: Path, witnesses: Witnesses | None,
        dry: Path | None, baseline: Baseline | None, keeping: str, *, failed: bool,
    ) -> Findings:  # fmt: skip
        folder, request, count = self._folder, self._request, self._count
        if not failure and count.open:
            failure = f"the trace of rank {', '.join(map(str, count.open))} breaks off"
        recorded_answers: list[answers.Answer] = []
        try:
            recorded_answers = answers.read(folder / ANSWERS)
        except (OSError, Unreadable) as error:
            failure = failure or f"what it said of its values cannot be read: {error}"
        waits = missing_waits(races, self._traced(races))
        proven: Sequence[Uninitialised] = ()
        unsure: Sequence[str] = ()
        if (reads := found_by(self._using, UnwrittenRead)) and witnesses and not self.interrupted:
            proven, unsure = witnesses.unwritten(reads)
        build = partial(
            of_program,
            request,
            installed(*dict.fromkeys([*_PACKAGES, *(pkg.partition("==")[0] for pkg in request.get("packages", ()))])),
            races=races,
            holding=holding,
            unexercised=[*found_by(self._using, Unexercised), *unsure],
            unseen=found_by(self._using, Unseen),
            seen=count.seen(),
            failure=failure,
            witnesses=witnesses(folder / "trace", races) if witnesses and races and not self.interrupted else (),
            dry=self._rehearsed.result(dry) if self._rehearsed and dry else None,
            answers=recorded_answers,
            failed=failed,
            thinned=self._thinned(races),
            others=[*proven, *self._others(beside)],
            seeded=seeds.sentence(folder / SEEDED),
            compiled=compiled.sentence(folder / COMPILED),
            strict=self._strict,
            waits=waits,
            limits=limits.noted(folder / LIMITS),
            early=[at for at, race in enumerate(races, 1) if self._is_early(race)],
        )
        sources.write([*races, *(race for group in holding.held for race in group.races)], folder, (beside,))
        bare = build()
        own = checkout.own(
            [frame.file for finding in known_findings.of(bare) for frame in finding.frames], (beside,), Path.cwd()
        )
        known_ = known_findings.judge(
            known_findings.of(build(own=own)),
            own,
            lambda file: comments(sources.lines_of(file, (beside,)) or ()),
            baseline,
        )
        if keeping and not bare.uncertain:  # an absent finding may be one that was not seen
            known_ = known_.kept_in(keeping)
        self.unreasoned = known_.unreasoned
        findings = build(own=own, known=known_)
        findings.write(folder)
        return findings

    def _traced(self, races: Sequence[Race]) -> TracedWaits | None:
        """Return the traces, to judge missing waits in; None if they are not whole, or too long for that."""
        if len(races) < 2 or self._following.thinned or sum(self._count.launched.values()) > _TRACED:
            return None
        with suppress(TraceError, OSError):
            return TracedWaits(records_of(self._folder / "trace"))
        return None

    def _others(self, beside: Path) -> Iterator[Any]:
        for kind in KINDS:
            for finding in found_by(self._using, kind.found):
                if isinstance(finding, Hang):
                    parted = branches.parted(finding, lambda file: sources.lines_of(file, (beside,)))
                    finding = replace(finding, parted=parted)
                yield finding

    def _thinned(self, races: Sequence[Race]) -> Thinned | None:
        ends, launched = self._following.thinned, self._count.launched
        if not ends:
            return None
        kept = sum(ends[rank].operations if rank in ends else count for rank, count in launched.items())
        return thinned(kept, sum(launched.values()), {rank: end.op for rank, end in ends.items()}, races)


class _Count:
    """Counts launches and streams, and finds the ranks whose traces have no end."""

    def __init__(self) -> None:
        self._launches = self._last_ns = 0
        self.launched: Counter[int] = Counter()  # launches by rank, including the host's own
        self._streams: dict[int, set[int]] = {}
        self._hosts: dict[int, set[int]] = {}
        self._ended: set[int] = set()
        self.trained: set[int] = set()  # ranks that called a module

    def feed(self, rank: int, records: Sequence[TraceRecord]) -> None:
        streams, hosts = self._streams.setdefault(rank, set()), self._hosts.setdefault(rank, set())
        for record in records:
            if type(record) in _MEMORY:
                continue
            if isinstance(record, (Launch, Collective)):
                self.launched[rank] += 1
                if record.stream not in hosts:
                    self._launches += 1
                    self._last_ns = max(self._last_ns, record.end)
                    streams.add(record.stream)
            elif isinstance(record, StreamName) and record.name == HOST_STREAM:
                hosts.add(record.stream)
            elif isinstance(record, End):
                self._ended.add(rank)
            elif isinstance(record, Phase):
                self.trained.add(rank)

    @property
    def open(self) -> list[int]:
        return sorted(self._streams.keys() - self._ended)

    def seen(self) -> Seen:
        streams = len(set().union(*self._streams.values()))
        return Seen(len(self._streams), self._launches, streams, self._last_ns)
