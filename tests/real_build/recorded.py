"""Records a program twice: with the recorder of a GPU on torch's real CUDA build, and on the simulated device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from streamrace.detectors import RaceDetector
from streamrace.trace.files import TraceReader
from streamrace.trace.records import (
    HOST_STREAM,
    Alloc,
    Collective,
    Free,
    HostWait,
    Record,
    RecordStream,
    Reuse,
    Stack,
    StreamName,
    TraceRecord,
    Wait,
)
from tests.real_build.building import RealBuild
from tests.real_build.running import Ran, run, simulate

Pair = tuple[str, tuple[str, int], tuple[str, int]]


class Recorded:
    """The traces of one program: of the simulated device (``own``), and of the recorder (``theirs``), by rank."""

    def __init__(self, real: RealBuild, folder: Path, *words: str | Path, ranks: int = 0, **settings: str) -> None:
        own, theirs = folder / "own", folder / "theirs"
        own.mkdir()
        self.ranks = range(max(ranks, 1))
        simulate(*words, ranks=ranks, trace=own if ranks else own / "rank0.trace")
        settings |= {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}  # the simulated device has no workspace of cuBLAS
        self.ran: Ran = run(real, "-m", "streamrace.recorder", "--trace", theirs, *words, ranks=ranks, **settings)
        self.own, self.theirs = self._read(own), self._read(theirs)

    def _read(self, folder: Path) -> list[list[TraceRecord]]:
        return [list(TraceReader(folder / f"rank{rank}.trace").read()) for rank in self.ranks]


def story(records: Sequence[TraceRecord]) -> list[tuple[object, ...]]:
    """Return what a trace says of order and of the device's memory, line by line, but for the work itself.

    Blocks and streams are numbered in the order in which they come. Left out are pinned memory, whose free has no
    callback, events that nobody waits for, and the work, whose kernels have other names on both.
    """
    frames = {record.id: record.frames for record in records if isinstance(record, Stack)}
    waited = {record.marker for record in records if isinstance(record, Wait | HostWait)}
    blocks: dict[int, int] = {}
    streams: dict[str, str] = {}
    markers: dict[int, str] = {}
    own: set[str] = set()  # streams that are the host's own accesses to pinned memory
    told: list[tuple[object, ...]] = []

    def line(stack: int) -> tuple[str, int]:
        return (Path(frames[stack][0].file).name, frames[stack][0].line) if frames.get(stack) else ("", 0)

    def named(word: object) -> object:
        known = isinstance(word, str) and word.startswith("stream ")
        return streams.setdefault(str(word), f"stream {len(streams)}") if known else word

    for record in records:
        match record:
            case StreamName(stream, name) if name == HOST_STREAM:
                own.add(f"stream {stream}")
            case Record(marker, stream):
                markers[marker] = f"stream {stream}"
                if marker in waited and markers[marker] not in own:
                    told.append(("record", markers[marker]))
            case Wait(stream, marker, stack):
                told.append(("wait", f"stream {stream}", markers[marker], line(stack)))
            case HostWait(marker, how, stack) if markers[marker] not in own:
                told.append(("host waits", how, markers[marker], line(stack)))
                match told[-3:]:  # for the device: its streams come in the order of their numbers, others on both
                    case [("host waits", "synchronize", _, before), _, (_, "synchronize", _, now)] if now == before:
                        told[-3:] = [("host waits", how, "all", now)]
            case Alloc(block, nbytes, stream) if stream >= 0:
                blocks[block] = len(blocks)
                told.append(("alloc", blocks[block], nbytes, f"stream {stream}", line(record.stack)))
            case Free(block) if block in blocks:
                told.append(("free", blocks[block]))
            case Reuse(block, former, lo, hi, start, stack, last) if block in blocks:
                told.append(("reuse", blocks[block], blocks[former], lo, hi, start, last, line(stack)))
            case RecordStream(block, stream) if block in blocks:
                told.append(("used by", blocks[block], f"stream {stream}"))
            case Collective(_, stream, kernel, reads, writes, stack):
                moved = [sum(hi - lo for _, lo, hi, _ in part) for part in (reads, writes)]
                name = kernel.rpartition("::")[2].rstrip("_")
                told.append((name, f"stream {stream}", *moved, record.root, line(stack)))
    return [tuple(named(word) for word in one) for one in told]


def pairs(traces: Sequence[Sequence[TraceRecord]]) -> set[Pair]:
    """Return the pairs of lines that race. Kernels have other names on both, so reads and writes are not told apart."""
    detector = RaceDetector()
    for rank, records in enumerate(traces):
        detector.feed(rank, records)
    detector.finish()

    def line(frames: Sequence[tuple[str, int, str]]) -> tuple[str, int]:
        return (Path(frames[0][0]).name, frames[0][1]) if frames else ("", 0)

    return {
        (race.kind if race.kind == "reused" else "overlap", line(race.first.stack), line(race.second.stack))
        for race in detector.races
    }
