"""The recorder of a real GPU beside the simulated GPU's own trace: of a test, or of a script.

``python -m streamrace.device --trace OWN recorded_beside.py FOLDER SCRIPT`` writes the recorder's traces into FOLDER.
The simulated GPU's collectives are no operators of c10d, so the recorder is told of them.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamrace.detectors.order.races import Race, Side
from streamrace.device import collectives
from streamrace.recorder import GpuRecorder
from streamrace.recorder.recorder import active
from streamrace.trace.encoding import Packed, decode
from streamrace.trace.files import TraceWriter, file_of
from streamrace.trace.records import TraceRecord

Pair = tuple[str, tuple[str, int], tuple[str, int]]


@contextmanager
def recorded(write: Callable[[list[Any]], None]) -> Iterator[GpuRecorder]:
    """Record what runs inside, as on a real GPU."""
    recorder = GpuRecorder(
        write, skipped=("/recorded_beside.py", "/judged.py", "/world.py", "contextlib.py", "<frozen runpy>")
    )
    recorder.start()
    untell = tell_of_collectives()
    try:
        yield recorder
    finally:
        untell()
        recorder.stop()


def tell_of_collectives() -> Callable[[], None]:
    """Tell the process's recorder of the simulated GPU's collectives. Gives the function that ends it."""
    plain_issue = collectives.issue
    (recorder,) = active

    def issue(job: Any, *, stream: Any) -> None:
        with recorder.told(job.kernel, job.reads, job.writes, job.members, job.origin, job.root, stream.stream_id):
            plain_issue(job, stream=stream)

    vars(collectives)["issue"] = issue
    return lambda: vars(collectives).update(issue=plain_issue)


@contextmanager
def recorded_into(folder: Path, rank: int, world: int) -> Iterator[None]:
    """The same into a rank's file."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = TraceWriter(file_of(folder, rank), rank=rank, world=world, info={})
    with recorded(writer.write):
        yield
    writer.close()


def unpacked(into: list[TraceRecord]) -> Callable[[list[Any]], None]:
    """A writer that keeps records as they are read from a file."""

    def write(records: list[Any]) -> None:
        for record in records:
            into.extend(decode(record.data) if isinstance(record, Packed) else [record])

    return write


def pairs(races: Iterable[Race]) -> set[Pair]:
    """Each race by its kind and its two lines. An operator that writes in place also reads, as one kernel or as two."""
    return {("reused" if race.kind == "reused" else "overlap", line(race.first), line(race.second)) for race in races}


def line(side: Side) -> tuple[str, int]:
    frame = next((frame for frame in side.stack if not frame.file.endswith("recorded_beside.py")), None)
    return (frame.file, frame.line) if frame else ("", 0)


if __name__ == "__main__":
    folder, script = Path(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    with recorded_into(folder, rank, world):
        sys.path.insert(0, str(Path(script).absolute().parent))
        runpy.run_path(script, run_name="__main__")
