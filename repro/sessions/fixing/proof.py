"""Proves candidates as edges in the trace: removal of the race, new races, and added time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamrace.detectors.confidence.edges import put_in, races_of
from streamrace.detectors.confidence.waits import Waits, but_for
from streamrace.detectors.files import records_of
from streamrace.detectors.identity import RaceKey, identity
from streamrace.detectors.order.races import Race, Side, site
from streamrace.replay.faults import ReplayError
from streamrace.replay.retiming import Deadlock, Schedule
from streamrace.repro.sessions.fixing.candidates import Candidate
from streamrace.trace.records import Begin, Frame, Free, Launch, Reuse, Stack, StreamName, TraceRecord

Records = Mapping[int, Sequence[TraceRecord]]


@dataclass(frozen=True)
class Proof:
    """The effect of a candidate on the trace. ``gone``: the race is removed. ``more``: number of other races removed;
    ``left``: number of races that lack the same wait and remain; ``new``: number of races added. ``longer_ns``: delay
    of the run's end (None: no schedule). ``reached``: how often each line is executed. ``by_chance``: removed only
    together with incidental waits. ``this_owner``: of freed memory: removed only for its next owner in this run.
    ``why``: why the proof fails, without a full stop.
    """

    candidate: Candidate
    gone: bool = False
    more: int = 0
    left: int = 0
    new: int = 0
    longer_ns: int | None = None
    reached: tuple[int, ...] = ()
    by_chance: bool = False
    this_owner: bool = False
    why: str = ""

    @property
    def holds(self) -> bool:
        """Return whether the candidate removes the race, and adds none."""
        return self.gone and not self.new and not self.why


class Prover:
    """Judges candidates on the traces of a run. Raises :class:`TraceError`."""

    def __init__(self, folder: Path) -> None:
        self._records = records_of(folder)
        self._base = races_of(self._records)
        self._keys = {identity(race) for race in self._base}
        begins = [rank_records[0] for rank_records in self._records.values() if rank_records]
        mirrored = any(isinstance(begin, Begin) and bool(begin.info.get("mirrored")) for begin in begins)
        self._schedule: Schedule | None = None
        self.no_schedule = ""
        try:
            self._schedule = Schedule(self._records, mirrored=mirrored)
        except ReplayError as problem:
            self.no_schedule = str(problem)
        if self._schedule is not None and not self._schedule.exact:
            self._schedule, self.no_schedule = None, "the recorded waits do not explain the recorded times"
        self._waits = Waits()
        for rank, rank_records in self._records.items():
            self._waits.feed(rank, rank_records)

    @property
    def records(self) -> Records:
        return self._records

    @property
    def end_ns(self) -> int | None:
        """Return the end of the run; None if its schedule is not known."""
        return self._schedule.end_ns if self._schedule else None

    def has(self, race: Race) -> bool:
        """Check whether these traces have the race."""
        return identity(race) in self._keys

    def prove(self, race: Race, candidate: Candidate, together: Sequence[Race] = ()) -> Proof:
        """Judge the records with the candidate's lines inserted. ``together``: the races that lack the same wait."""
        key = identity(race)
        changed = put_in(self._records, candidate.lines)
        if not all(changed.reached):
            return Proof(candidate, reached=changed.reached, why="the run does not reach that line")
        after = {identity(race) for race in changed.races}
        longer: int | None = None
        if self._schedule is not None:
            try:
                longer = self._schedule.longer(changed.records, changed.inserted)
            except Deadlock as deadlock:
                return Proof(candidate, reached=changed.reached, why=str(deadlock))
        gone = key not in after
        return Proof(
            candidate,
            gone=gone,
            more=len(self._keys - after - {key}),
            left=len(after.intersection(map(identity, together))),
            new=len(after - self._keys),
            longer_ns=longer,
            reached=changed.reached,
            by_chance=gone and self._by_chance(key, candidate),
            this_owner=gone and race.kind == "reused" and self._early(race, candidate),
            why="" if gone else "the race is still there",
        )

    def _by_chance(self, key: RaceKey, candidate: Candidate) -> bool:
        """Check whether the race returns without the incidental waits."""
        if not self._waits.sites:
            return False
        keep = self._waits.without(self._waits.sites)
        bare = {rank: [record for record in records if keep(rank, record)] for rank, records in self._records.items()}
        own = self._waits.own(self._waits.sites)
        left = but_for(
            put_in(bare, candidate.lines).races,
            lambda race, at: (race.examples[at].rank, race.examples[at].first.op) in own,
        )
        return key in {identity(race) for race in left}

    def formers(self, race: Race) -> set[tuple[int, int]]:
        """Return rank and number of the freed blocks whose memory the race is about."""
        base = next(traced for traced in self._base if identity(traced) == identity(race))
        blocks = {(example.rank, example.block) for example in base.examples}
        return {
            (rank, record.former)
            for rank, rank_records in self._records.items()
            for record in rank_records
            if isinstance(record, Reuse) and (rank, record.block) in blocks
        }

    def users(self, race: Race) -> list[Side]:
        """Return the first stream's accesses to freed and reused memory, by place; those that use most of it first."""
        formers = self.formers(race)
        used: dict[tuple[str, tuple[Frame, ...]], set[tuple[int, int]]] = {}
        for rank, rank_records in self._records.items():
            stacks: dict[int, tuple[Frame, ...]] = {}
            streams: dict[int, str] = {}
            for record in rank_records:
                if isinstance(record, Stack):
                    stacks[record.id] = record.frames
                elif isinstance(record, StreamName):
                    streams[record.stream] = record.name
                elif isinstance(record, Launch) and streams.get(record.stream) == race.first.stream:
                    blocks = {(rank, access[0]) for access in (*record.reads, *record.writes)} & formers
                    if blocks:
                        used.setdefault((record.kernel, stacks.get(record.stack, ())), set()).update(blocks)
        places = sorted(used, key=lambda key: -len(used[key]))
        return [Side(kernel, "read", race.first.stream, stack=stack) for kernel, stack in places if stack]

    def _early(self, race: Race, candidate: Candidate) -> bool:
        """Check whether another next owner of the memory could still come too early."""
        formers = self.formers(race)
        noticed = {
            rank: [
                record._replace(quiet=False) if isinstance(record, Free) and (rank, record.block) in formers else record
                for record in rank_records
            ]
            for rank, rank_records in self._records.items()
        }
        first_access = race.first.kernel, race.first.access, site(race.first.stack), race.first.stream
        return any(
            other.kind == "freed"
            and (other.first.kernel, other.first.access, site(other.first.stack), other.first.stream) == first_access
            for other in put_in(noticed, candidate.lines).races
        )
