"""Writes a rank's trace as a timeline that opens in ui.perfetto.dev and in chrome://tracing.

The format is Chrome's *Trace Event Format*: JSON events; times are microseconds, here with three decimals, so that
nothing is lost. A track for the host and one for each stream, in reading order; work as slices ("X"); allocated device
memory as a counter ("C"); an arrow ("s" to "f") and two marks ("i") for each example of a race.

The viewers' rules: an arrow binds to the slice that encloses it in time, so its ends are inside a slice, not at its
end; an arrow runs forward in time, so that of a reversed race starts at the access that was issued second. Of slices
that begin together the outer one is written first. The viewers take process and thread 0 for idle ones, so numbers
begin at 1.

The file is read twice, as labels and names may come after the records that they name, and written event by event.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, TextIO

from streamrace.detectors.order.labels import Labels
from streamrace.detectors.order.races import AccessKind, Moment, Occurrence, Race, Side
from streamrace.reports.timelines.lanes import host_time, lane
from streamrace.reports.timelines.parameters import parameter_of
from streamrace.trace import wording
from streamrace.trace.parts import PartReader
from streamrace.trace.records import (
    Access,
    Alloc,
    Begin,
    Collective,
    Free,
    Group,
    HostWait,
    Label,
    Launch,
    Phase,
    Stack,
    StreamName,
    TraceError,
    TraceRecord,
)

_HOST = 1  # the host's track
_Event = dict[str, Any]
_Emit = Callable[[_Event], None]


@dataclass(frozen=True)
class _Slice:
    """The possible end of an arrow: nanoseconds, a track, and whether the work is a collective."""

    track: int
    start: int
    end: int
    collective: bool = False

    def inside(self, time: int) -> int:
        return max(self.start, min(time, self.end - 1))


@dataclass
class _Survey:
    """The results of the first reading."""

    rank: int = 0
    world: int = 1
    names: dict[int, str] = field(default_factory=dict)
    streams: set[int] = field(default_factory=set)  # streams with work in the requested steps
    labels: dict[int, Labels] = field(default_factory=dict)
    phases: list[tuple[Phase, int, int]] = field(default_factory=list)

    def tracks(self) -> dict[int, int]:
        """Return a track for each stream, below the host's."""
        ordered = sorted(self.streams, key=lambda stream: (lane(self.name(stream)), stream))
        return {stream: _HOST + 1 + at for at, stream in enumerate(ordered)}

    def name(self, stream: int) -> str:
        return self.names.get(stream, f"stream {stream}")


class _Window:
    """The requested steps, and the current phase."""

    def __init__(self, first: int | None, last: int | None) -> None:
        self._first, self._last = first, last
        self.phase = Phase(0, 0, "init")
        self.open = self.holds(self.phase)

    def holds(self, phase: Phase) -> bool:
        return (self._first is None or phase.step >= self._first) and (self._last is None or phase.step <= self._last)

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        self.open = self.holds(phase)


def write(
    trace_file: Path,
    races: Sequence[Race],
    out: Path,
    *,
    first_step: int | None = None,
    last_step: int | None = None,
) -> None:
    """Write the timeline of one rank, of the given steps (inclusive; None: no limit), to ``out``.

    ``out`` is compressed if its name ends with ``.gz``. Of the races' examples, those of this rank with both sides in
    these steps are drawn. Raises :class:`TraceError` for a file that is no trace, OSError if ``out`` cannot be written.
    """
    survey = _survey(trace_file, _Window(first_step, last_step))
    with _opened(out) as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
        separator = ""

        def emit(event: _Event) -> None:
            nonlocal separator
            file.write(separator + encode({"pid": survey.rank + 1, **event}))
            separator = ",\n"

        _Timeline(survey, _Window(first_step, last_step), races, emit).write(trace_file)
        file.write("\n]}\n")


@contextmanager
def _opened(out: Path) -> Iterator[TextIO]:
    with ExitStack() as stack:
        raw: Any = stack.enter_context(out.open("wb"))
        if out.suffix == ".gz":  # with neither name nor time, so that the same run gives the same bytes
            raw = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0))
        yield stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline="\n"))


def _records(trace_file: Path) -> Iterator[TraceRecord]:
    reader = PartReader(trace_file, kept=True)
    try:
        yield from reader.read()
    finally:
        reader.close()


def _survey(trace_file: Path, window: _Window) -> _Survey:
    survey = _Survey()
    now = began = 0
    begun = False

    def close() -> None:
        if window.open and now > began:
            survey.phases.append((window.phase, began, now))

    for record in _records(trace_file):
        now = max(now, host_time(record))
        if isinstance(record, (Launch, Collective)):
            if window.open and record.end >= 0:
                survey.streams.add(record.stream)
        elif isinstance(record, Label):
            survey.labels.setdefault(record.block, Labels()).add(record)
        elif isinstance(record, Phase):
            close()
            began = now
            window.enter(record)
        elif isinstance(record, StreamName):
            survey.names[record.stream] = record.name
        elif isinstance(record, Begin):
            survey.rank, survey.world, begun = record.rank, record.world, True
    if not begun:
        raise TraceError(f"trace {trace_file} is empty")
    close()
    return survey


class _Timeline:
    """The second reading, which emits every event in turn."""

    def __init__(self, survey: _Survey, window: _Window, races: Sequence[Race], emit: _Emit) -> None:
        self._survey = survey
        self._window = window
        self._emit = emit
        self._tracks = survey.tracks()
        self._stacks: dict[int, list[str]] = {}
        self._groups: dict[int, list[int]] = {}
        self._alive: dict[int, int] = {}  # bytes by block
        self._memory = 0
        self._counted: tuple[int, int] | None = None  # time and bytes that are not yet written
        self._examples = [
            (number, race, example)
            for number, race in enumerate(races, 1)
            for example in race.examples
            if example.rank == survey.rank
        ]
        self._raced = {side.op for _, _, example in self._examples for side in (example.first, example.second)}
        self._slices: dict[int, _Slice] = {}  # of the racing operations

    def write(self, trace_file: Path) -> None:
        self._metadata()
        for phase, start, end in self._survey.phases:
            step, micro_batch, name = phase
            self._slice(_HOST, name, "phase", start, end, {"step": step, "micro-batch": micro_batch})
        for record in _records(trace_file):
            if isinstance(record, (Launch, Collective)):
                if self._window.open and record.end >= 0:
                    self._work(record)
            elif isinstance(record, (Alloc, Free)):
                self._count(record)
            elif isinstance(record, HostWait):
                if self._window.open and 0 <= record.began < record.time:
                    args = {"how": record.how, "stack": self._stacks.get(record.stack, [])}
                    self._slice(_HOST, f"wait ({record.how})", "wait", record.began, record.time, args)
            elif isinstance(record, Phase):
                self._window.enter(record)
            elif isinstance(record, Stack):
                self._stacks[record.id] = [wording.frame(frame, path=True) for frame in record.frames]
            elif isinstance(record, Group):
                self._groups[record.group] = list(record.ranks)
        self._write_count()
        for at, (number, race, example) in enumerate(self._examples, 1):
            self._race(at, number, race, example)

    # -- tracks -----------------------------------------------------------------------------------

    def _metadata(self) -> None:
        self._name("process_name", f"rank {self._survey.rank} of {self._survey.world}", _HOST)
        self._emit({"ph": "M", "name": "process_sort_index", "tid": _HOST, "args": {"sort_index": self._survey.rank}})
        named = {_HOST: "host", **{track: self._survey.name(stream) for stream, track in self._tracks.items()}}
        for track, name in named.items():
            self._name("thread_name", name, track)
            self._emit({"ph": "M", "name": "thread_sort_index", "tid": track, "args": {"sort_index": track}})

    def _name(self, kind: str, name: str, track: int) -> None:
        self._emit({"ph": "M", "name": kind, "tid": track, "args": {"name": name}})

    def _slice(self, track: int, name: str, category: str, start: int, end: int, args: _Event) -> None:
        times = {"ts": start / 1000, "dur": (end - start) / 1000}
        self._emit({"ph": "X", "tid": track, "name": name, "cat": category, **times, "args": args})

    # -- work -------------------------------------------------------------------------------------

    def _work(self, record: Launch | Collective) -> None:
        track = self._tracks[record.stream]
        args: _Event = {"op": record.op, "kernel": record.kernel}
        if record.reads:
            args["bytes read"] = sum(map(_touched, record.reads))
        if record.writes:
            args["bytes written"] = sum(map(_touched, record.writes))
        category = "kernel"
        if isinstance(record, Collective):
            category = "collective"
            args |= {"number": record.number, "group": self._groups.get(record.group, [])}
            if record.nominal >= 0:
                args["bytes"] = record.nominal
        args["stack"] = self._stacks.get(record.stack, [])
        name = wording.operator(record.kernel)
        if parameter := parameter_of(record, self._survey.labels):
            name = f"{name} {parameter}"
        self._slice(track, name, category, record.start, record.end, args)
        if record.op in self._raced:
            self._slices[record.op] = _Slice(track, record.start, record.end, isinstance(record, Collective))

    # -- memory -----------------------------------------------------------------------------------

    def _count(self, record: Alloc | Free) -> None:
        if isinstance(record, Alloc):
            if record.stream < 0:
                return  # host memory
            self._alive[record.block] = record.nbytes
            self._memory += record.nbytes
        else:
            self._memory -= self._alive.pop(record.block, 0)
            self._survey.labels.pop(record.block, None)
        if self._window.open:
            if self._counted is not None and self._counted[0] != record.time:
                self._write_count()
            self._counted = (record.time, self._memory)

    def _write_count(self) -> None:
        if self._counted is not None:
            time, nbytes = self._counted
            event = {"ph": "C", "name": "device memory", "tid": _HOST, "ts": time / 1000}
            self._emit({**event, "args": {"bytes": nbytes}})

    # -- races ------------------------------------------------------------------------------------

    def _race(self, arrow: int, number: int, race: Race, example: Occurrence) -> None:
        ends = []
        for word, side, moment in (("first", race.first, example.first), ("second", race.second, example.second)):
            where = self._where(moment)
            if where is None:
                return
            ends.append((where.inside(_effect(where, side.access, moment)), where.track, word, side))
        name = f"race {number}: {race.kind}"
        args = {
            "missing": race.missing_wait,
            "block": example.block,
            "bytes": [example.lo, example.hi],
            "manifested": example.manifested,
            "slack_ns": example.slack_ns,
        }
        ends.sort(key=lambda end: end[0])  # forward in time; the stable sort keeps the order of issue for equal times
        for phase, (time, track, word, side) in zip("sf", ends, strict=True):
            place = {"tid": track, "ts": time / 1000, "cat": "race"}
            binding = {"bp": "e"} if phase == "f" else {}
            self._emit({"ph": phase, "id": arrow, "name": name, **place, **binding})
            self._emit({"ph": "i", "s": "t", "name": f"{name}, {_mark(word, side)}", **place, "args": args})

    def _where(self, moment: Moment) -> _Slice | None:
        """Return the slice of one side of a race. A free is done by the host: its slice is the phase."""
        if moment.op is not None:
            return self._slices.get(moment.op)
        for phase, start, end in self._survey.phases:
            if phase == (moment.step, moment.micro_batch, moment.phase) and start <= moment.start <= end:
                return _Slice(_HOST, start, end)
        return None


def _effect(where: _Slice, access: AccessKind, moment: Moment) -> int:
    """Return when the access touches memory, by the detector's rule; for a free, when the host does it."""
    return moment.start if access == "free" or (where.collective and access == "read") else moment.end


def _mark(word: str, side: Side) -> str:
    return f"issued {word} ({side.access})"


def _touched(access: Access) -> int:
    _, lo, hi, layout = access
    return hi - lo if layout is None else layout[0] * prod(layout[1])
