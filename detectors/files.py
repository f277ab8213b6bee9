"""Reads the traces of a run from its folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

from detectors.base import Detector
from detectors.confidence import removal
from detectors.confidence.holding import Holding, holding
from detectors.confidence.waits import AsIf, Keep, Waits
from detectors.order.races import Race
from detectors.race_detector import EXAMPLES, RaceDetector
from simgpu.trace import Begin, TraceError, TraceReader, TraceRecord, file_of

_BATCH = 4096  # records; the ranks take turns, so that little has to be kept for a rank that waits


class Reader(Protocol):
    """Reads the records of all ranks, each rank's in order. A :class:`Detector` is one."""

    def feed(self, rank: int, records: list[TraceRecord]) -> object: ...


def read(trace_folder: Path, readers: Sequence[Reader], *, keep: Keep | None = None, as_if: AsIf | None = None) -> None:
    """Read the run whose ``rank*.trace`` files lie in ``trace_folder`` once, for all ``readers``.

    ``keep`` says which records of a rank count, ``as_if`` what those are taken for.
    A mirrored trace (:mod:`detectors.order.rendezvous`) stands for all ranks and is the only file: the findings are
    those of its rank. A trace without an end (the rank was killed, or still runs) is used as far as it goes.
    Raises :class:`simgpu.trace.TraceError` where the folder has no traces, a rank's is missing, or
    one is damaged or not of this run.
    """
    ranks = _ranks(trace_folder)
    paths = {rank: file_of(trace_folder, rank) for rank in ranks}
    detectors = [one for one in readers if isinstance(one, Detector)]
    traces = {rank: TraceReader(path) for rank, path in paths.items()}
    try:
        left = {rank: _checked(trace.read(), paths[rank], ranks) for rank, trace in traces.items()}
        while left:
            # Ranks held up by others come last: they go on only where no other rank has records left.
            for rank in [rank for rank in left if not any(one.waits(rank) for one in detectors)] or list(left):
                batch = list(islice(left[rank], _BATCH))
                if len(batch) < _BATCH:
                    del left[rank]
                if keep:
                    batch = [one for one in batch if keep(rank, one)]
                if as_if:
                    batch = [as_if(rank, one) for one in batch]
                _feed(readers, rank, batch, paths[rank])
    finally:
        for trace in traces.values():
            trace.close()
    for one in detectors:
        one.finish()


def find_races(
    trace_folder: Path, *, keep: Keep | None = None, as_if: AsIf | None = None, examples: int | None = EXAMPLES
) -> list[Race]:
    """The races alone. ``examples``: how many occurrences of each are kept (None: all). Raises as :func:`read`."""
    detector = RaceDetector(examples)
    read(trace_folder, [detector], keep=keep, as_if=as_if)
    return detector.findings()


def rests_on(trace_folder: Path, waits: Waits) -> Holding:
    """What a run without races rests on, ``waits`` being of all its records. Raises as :func:`read`."""
    return holding(waits, lambda keep: find_races(trace_folder, keep=keep, examples=None))


class _Folder:
    """The traces of a folder, for :func:`take_away`."""

    def __init__(self, trace_folder: Path) -> None:
        self._folder = trace_folder

    def read(self, reader: Reader, keep: Keep | None = None) -> None:
        read(self._folder, [reader], keep=keep)

    def races(self, keep: Keep | None = None, as_if: AsIf | None = None) -> list[Race]:
        return find_races(self._folder, keep=keep, as_if=as_if, examples=None)


def take_away(trace_folder: Path, told: Callable[[str], None] = lambda sentence: None) -> removal.Removals:
    """Each line's waits taken away alone (:mod:`detectors.confidence.removal`). Raises as :func:`read`."""
    return removal.take_away(_Folder(trace_folder), told)


def _ranks(folder: Path) -> list[int]:
    """The ranks whose files are there, if those of 0 to the highest all are, or a single one (it may be mirrored)."""
    names = [re.fullmatch(r"rank(\d+)\.trace", path.name) for path in folder.glob("rank*.trace")]
    found = {int(name[1]) for name in names if name}
    if not found:
        raise TraceError(f"no rank*.trace in {folder}" if folder.is_dir() else f"no trace folder {folder}")
    if len(found) > 1:
        _complain_of_missing(folder, found, max(found) + 1)
    return sorted(found)


def _complain_of_missing(folder: Path, found: set[int], world: int) -> None:
    missing = [str(rank) for rank in range(world) if rank not in found]
    if missing:
        raise TraceError(f"{folder} has no trace of rank {', '.join(missing)}")


def _checked(records: Iterator[TraceRecord], path: Path, ranks: list[int]) -> Iterator[TraceRecord]:
    """The records, once the first one says that the file is one of a run of these ranks, or stands for all."""
    begin = next(records, None)
    if not isinstance(begin, Begin):
        raise TraceError(f"trace {path} is empty")
    mirrored = isinstance(begin.info, dict) and begin.info.get("mirrored")
    if mirrored and len(ranks) > 1:
        raise TraceError(f"trace {path} is mirrored, so it stands for all ranks, but there are others beside it")
    if not mirrored:
        _complain_of_missing(path.parent, set(ranks), begin.world)
        if begin.world != len(ranks):
            raise TraceError(f"trace {path} is of a run with {begin.world} ranks, but there are {len(ranks)} traces")
    yield begin
    yield from records


def _feed(readers: Sequence[Reader], rank: int, records: list[TraceRecord], path: Path) -> None:
    try:
        for one in readers:
            one.feed(rank, records)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        # The reader checks the number of a record's fields, not their types.
        raise TraceError(f"trace {path} is damaged: a record has fields of the wrong type ({error})") from error
