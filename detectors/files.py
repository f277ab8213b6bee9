"""Reads the traces of a run from its folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from detectors.order.happens_before import HappensBefore
from detectors.order.races import Race
from detectors.order.tally import EXAMPLES
from simgpu.trace import Begin, TraceError, TraceReader, TraceRecord, file_of

_BATCH = 4096  # records; the ranks take turns, so that little has to be kept for a rank that waits


def find_races(
    trace_folder: Path,
    *,
    keep: Callable[[int, TraceRecord], bool] | None = None,
    beside: Callable[[int, list[TraceRecord]], object] | None = None,
    examples: int | None = EXAMPLES,
) -> list[Race]:
    """The races in the run whose ``rank*.trace`` files lie in ``trace_folder``.

    ``keep`` says which records of a rank count; ``beside`` is shown all of them, each rank's in order; ``examples``:
    how many occurrences of each race are kept (None: all).
    A mirrored trace (:mod:`detectors.order.rendezvous`) stands for all ranks and is the only file: the races are those
    of its rank.
    A trace without an end (the rank was killed, or still runs) is used as far as it goes.
    Raises :class:`simgpu.trace.TraceError` where the folder has no traces, a rank's is missing, or
    one is damaged or not of this run.
    """
    ranks = _ranks(trace_folder)
    paths = {rank: file_of(trace_folder, rank) for rank in ranks}
    detector = HappensBefore(examples)
    readers = {rank: TraceReader(path) for rank, path in paths.items()}
    try:
        traces = {rank: _checked(reader.read(), paths[rank], ranks) for rank, reader in readers.items()}
        while traces:
            # Ranks held up by others come last: they go on only where no other rank has anything to say.
            for rank in [rank for rank in traces if not detector.waits(rank)] or list(traces):
                batch = list(islice(traces[rank], _BATCH))
                if len(batch) < _BATCH:
                    del traces[rank]
                if beside is not None:
                    beside(rank, batch)
                if keep is not None:
                    batch = [record for record in batch if keep(rank, record)]
                _feed(detector, rank, batch, paths[rank])
    finally:
        for reader in readers.values():
            reader.close()
    detector.finish()
    return detector.races


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


def _feed(detector: HappensBefore, rank: int, records: list[TraceRecord], path: Path) -> None:
    try:
        detector.feed(rank, records)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        # The reader checks the number of a record's fields, not their types.
        raise TraceError(f"trace {path} is damaged: a record has fields of the wrong type ({error})") from error
