"""Reads the traces of a run from its folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from streamrace.detectors.base import Detector
from streamrace.detectors.confidence import removal
from streamrace.detectors.confidence.incidental import OrderBasis, WithoutIncidentalWaits, holding
from streamrace.detectors.confidence.waits import AsIf, Counts, Keep, Waits
from streamrace.detectors.order.races import Race
from streamrace.detectors.race_detector import EXAMPLES, RaceDetector
from streamrace.process.interrupts import held
from streamrace.trace.encoding import Encoded, replaced
from streamrace.trace.files import file_of
from streamrace.trace.parts import PartReader
from streamrace.trace.records import Begin, Onward, TraceError, TraceRecord

_BATCH = 4096  # records; the ranks take turns, so that little has to be kept for a rank that waits
_BITE = 1024  # ... while the program runs: the follower has other work to do


Enough = Callable[[], bool]
"""Polled after each few records; returns True if reading should stop because other work is waiting."""


def _never() -> bool:
    return False


class Reader(Protocol):
    """Reads the records of all ranks, each rank's in order. A :class:`Detector` is a reader."""

    def feed(self, rank: int, records: Sequence[TraceRecord]) -> object: ...


def read(
    trace_folder: Path,
    readers: Sequence[Reader],
    *,
    keep: Keep | None = None,
    as_if: AsIf | None = None,
    kept: bool = False,
) -> None:
    """Read the run whose ``rank*.trace`` files lie in ``trace_folder`` once, for all ``readers``.

    ``keep``: predicate that selects the records of a rank to pass on; ``as_if`` maps each of these to the record passed
    on instead. ``kept``: accept traces that were thinned (:mod:`streamrace.trace.parts`), as far as they go; no verdict
    rests on such a read. A mirrored trace (:mod:`streamrace.detectors.order.rendezvous`) stands for all ranks and is
    the only file: the findings are those of its rank. A trace without an end (the rank was killed, or still runs) is
    used up to its last record. Raises :class:`streamrace.trace.records.TraceError` if the folder has no traces, a
    rank's is missing, or one is damaged, thinned or not of this run.
    """
    Following(trace_folder, readers, keep=keep, as_if=as_if, kept=kept).finish()


def records_of(trace_folder: Path) -> dict[int, list[TraceRecord]]:
    """Return all records of the traces in a folder, by rank. Raises as :func:`read` does."""
    collected = _Records()
    read(trace_folder, [collected])
    return collected.by_rank


class _Records:
    """Keeps all records, by rank."""

    def __init__(self) -> None:
        self.by_rank: dict[int, list[TraceRecord]] = {}

    def feed(self, rank: int, records: Sequence[TraceRecord]) -> None:
        self.by_rank.setdefault(rank, []).extend(records)


class Following:
    """Reads a run's traces for all ``readers``, as :func:`read` does, also while its ranks still write them.

    The readers get the same records; only the interleaving of the ranks differs, on which no finding depends. ``thin``:
    delete parts of a trace once read, except the first part. ``thinned``: by rank, the end of its first part.
    """

    def __init__(
        self,
        trace_folder: Path,
        readers: Sequence[Reader],
        *,
        keep: Keep | None = None,
        as_if: AsIf | None = None,
        kept: bool = False,
        thin: bool = False,
    ) -> None:
        self._kept, self._thin = kept, thin
        self._folder, self._readers, self._keep, self._as_if = trace_folder, readers, keep, as_if
        self._detectors = [reader for reader in readers if isinstance(reader, Detector)]
        self._traces: dict[int, _RankTrace] = {}
        self._problem: Exception | None = None

    @property
    def thinned(self) -> dict[int, Onward]:
        return {rank: trace.first for rank, trace in self._traces.items() if trace.first is not None}

    def poll(self, enough: Enough = _never) -> bool:
        """Read a little further, until ``enough`` returns True; return whether more records are available already.
        Raises nothing: a problem is kept, and :meth:`finish` raises it.
        """
        if self._problem is not None:
            return False
        try:
            for rank in _files(self._folder):
                self._open(rank)
            more_left = {rank: self._turn(rank, _BITE, enough) for rank in self._free(self._traces)}
            return any(more_left.values())
        except Exception as problem:  # the program still runs, and must not be disturbed
            self._problem = problem
            return False

    def finish(self, enough: Enough = _never) -> bool:
        """Read the rest, as no more is being written; return False if ``enough`` stopped it. Raises as :func:`read`.

        Ctrl-C takes effect between two slices only, so all readers have seen the same records by then.
        """
        try:
            if self._problem is not None:
                raise self._problem
            ranks = _ranks(self._folder)
            for rank in ranks:
                self._open(rank)
            for trace in self._traces.values():
                trace.belongs(ranks)
            remaining = list(self._traces)
            while remaining:
                # Ranks held up by others come last: they are read only when no other rank has records left.
                for rank in self._free(remaining) or list(remaining):
                    if not self._turn(rank, _BATCH, enough):
                        remaining.remove(rank)
                    elif enough():
                        return False
            if self._thin:
                for trace in self._traces.values():
                    trace.thin(done=True)
        finally:
            for trace in self._traces.values():
                trace.close()
        for detector in self._detectors:
            detector.finish()
        return True

    def _open(self, rank: int) -> None:
        if rank not in self._traces:
            self._traces[rank] = _RankTrace(file_of(self._folder, rank), kept=self._kept)

    def _free(self, ranks: Iterable[int]) -> list[int]:
        """Return the ranks that are not held up at a collective: for these no records have to be kept."""
        return [rank for rank in ranks if not any(detector.waits(rank) for detector in self._detectors)]

    def _turn(self, rank: int, most: int, enough: Enough) -> bool:
        """Pass on up to ``most`` records of a rank; return whether the rank may have more."""
        trace = self._traces[rank]
        count = 0
        while count < most and not (count and enough()):
            with held():
                batch = trace.some()
                if batch is None:
                    break
                self._pass_on(rank, batch, trace.path)
            count += len(batch)
        if self._thin:
            trace.thin()
        return batch is not None

    def _pass_on(self, rank: int, records: Sequence[TraceRecord], path: Path) -> None:
        keep, as_if = self._keep, self._as_if
        if keep is not None:
            records = replaced(records, {at: None for at, record in enumerate(records) if not keep(rank, record)})
        if as_if is not None:
            changed = ((at, record, as_if(rank, record)) for at, record in enumerate(records))
            records = replaced(records, {at: new for at, record, new in changed if new is not record})
        if records:
            _feed(self._readers, rank, records, path)


class _RankTrace:
    """One rank's trace, as far as it has been written and read."""

    def __init__(self, path: Path, *, kept: bool) -> None:
        self.path = path
        self._reader = PartReader(path, kept=kept)
        self._begin: Begin | None = None
        self._ahead: Encoded | None = None

    def some(self) -> Encoded | None:
        """Return the next few records; None if no more exist for now. Raises :class:`TraceError`."""
        batch, self._ahead = self._ahead, None
        if batch is None:
            batch = self._reader.some()
        if self._begin is None and batch:
            if not isinstance(batch[0], Begin):
                raise TraceError(f"{self.path} is not a trace of this project")
            self._begin = batch[0]
        return batch

    def belongs(self, ranks: Sequence[int]) -> None:
        """Check that the trace is of a run of these ranks, or stands for all. Raises :class:`TraceError` otherwise."""
        if self._begin is None:
            self._ahead = self.some()
        if self._begin is None:
            raise TraceError(f"trace {self.path} is empty")
        info = self._begin.info if isinstance(self._begin.info, dict) else {}
        mirrored, running = info.get("mirrored"), info.get("running")
        if mirrored and running:
            _complain_of_missing(self.path.parent, set(ranks), running)
        if mirrored and len(ranks) > len(running or [0]):
            raise TraceError(
                f"trace {self.path} is of a dry run, whose other ranks have no traces, but there are others beside it"
            )
        if not mirrored:
            _complain_of_missing(self.path.parent, set(ranks), range(self._begin.world))
            if self._begin.world != len(ranks):
                raise TraceError(
                    f"trace {self.path} is of a run with {self._begin.world} ranks, but there are {len(ranks)} traces"
                )

    @property
    def first(self) -> Onward | None:
        """Return the end of the trace's first part, if more parts exist."""
        return self._reader.first

    def thin(self, *, done: bool = False) -> None:
        self._reader.thin(done=done)

    def close(self) -> None:
        self._reader.close()


def find_races(
    trace_folder: Path, *, keep: Keep | None = None, as_if: AsIf | None = None, examples: int | None = EXAMPLES
) -> list[Race]:
    """Return the races alone. ``examples``: occurrences kept of each race (None: all). Raises as :func:`read`."""
    detector = RaceDetector(examples)
    read(trace_folder, [detector], keep=keep, as_if=as_if)
    return detector.findings()


def rests_on(trace_folder: Path, waits: Waits, stripped: WithoutIncidentalWaits | None = None) -> OrderBasis:
    """Return the waits that a run without races rests on. ``waits`` and ``stripped`` were fed all records;
    without ``stripped`` the records are read once more. Raises as :func:`read`.
    """
    if stripped is None:
        stripped = WithoutIncidentalWaits(waits)
        if waits.sites:
            read(trace_folder, [stripped])

    def judge(keep: Keep, counts: Counts) -> list[Race]:
        detector = RaceDetector(counts=counts)
        read(trace_folder, [detector], keep=keep)
        return detector.findings()

    return holding(waits, stripped, judge)


class _Folder:
    """The traces of a folder, for :func:`take_away`."""

    def __init__(self, trace_folder: Path) -> None:
        self._folder = trace_folder

    def read(self, reader: Reader, keep: Keep | None = None) -> None:
        read(self._folder, [reader], keep=keep)

    def races(self, keep: Keep | None = None, as_if: AsIf | None = None) -> list[Race]:
        return find_races(self._folder, keep=keep, as_if=as_if, examples=None)


def take_away(trace_folder: Path, progress: Callable[[str], None] = lambda sentence: None) -> removal.Removals:
    """Remove each line's waits alone (:mod:`streamrace.detectors.confidence.removal`). Raises as :func:`read`."""
    return removal.take_away(_Folder(trace_folder), progress)


def _ranks(folder: Path) -> list[int]:
    """Return the ranks with a file. Raises :class:`TraceError` if there are none."""
    ranks = _files(folder)
    if not ranks:
        raise TraceError(f"no rank*.trace in {folder}" if folder.is_dir() else f"no trace folder {folder}")
    return ranks


def _files(folder: Path) -> list[int]:
    """Return the ranks that have a file by now."""
    try:
        names = [re.fullmatch(r"rank(\d+)\.trace", name) for name in os.listdir(folder)]
    except FileNotFoundError:
        return []
    return sorted(int(name[1]) for name in names if name)


def _complain_of_missing(folder: Path, ranks: set[int], needed: Iterable[int]) -> None:
    missing = [str(rank) for rank in needed if rank not in ranks]
    if missing:
        raise TraceError(f"{folder} has no trace of rank {', '.join(missing)}")


def _feed(readers: Sequence[Reader], rank: int, records: Sequence[TraceRecord], path: Path) -> None:
    try:
        for reader in readers:
            reader.feed(rank, records)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        # The reader checks the number of a record's fields, not their types.
        raise TraceError(f"trace {path} is damaged: a record has fields of the wrong type ({error})") from error
