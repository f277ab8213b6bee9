"""Reads dumps of torch's flight recorder, a file for each rank: its pickles and its JSON, of format 2.

The format is that of torch's ``FlightRecorder.hpp``. An entry is a call of a rank, with its shapes, its place and its
state. Calls between ``startCoalescing`` and ``endCoalescing`` share a sequence number; they never change their state,
which an entry behind them has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, ValidationError

from streamrace.detectors.hangs import ranks as listed
from streamrace.reports.data.schema import JsonPart, ReportError, first_problem
from streamrace.trace import untrusted
from streamrace.trace.pickled import value_of
from streamrace.trace.records import Frame
from streamrace.trace.untrusted import Unreadable

_RANK = re.compile(r"(\d{1,9})(?:\.[A-Za-z]\w*)?$")
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/")
_OF_TORCH = re.compile(r"torch/(?!distributed/|nn/parallel/)|<")  # as in traces (streamrace/device/callsites.py)
_PASSING = ("/distributed_c10d.py", "/c10d_logger.py", "typing_extensions.py", "/contextlib.py")
_FRAMES = 16  # of a stack
_Shape = Annotated[list[int], Field(max_length=64)]


@cache
def _same(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return one object for equal stacks: a dump has thousands, and few different ones."""
    return frames


def _frames(data: Any) -> tuple[Frame, ...]:
    try:
        frames = [Frame(_INSTALLED.sub("", one["filename"]), one["line"], one["name"]) for one in data]
    except (TypeError, KeyError) as error:
        raise ValueError("they are not what torch writes") from error
    if any([type(part) for part in frame] != [str, int, str] for frame in frames):
        raise ValueError("they are not what torch writes")
    return _same(tuple(frames))


class RecordedCall(JsonPart):
    """A call of a rank. Its properties are what other ranks' entries are compared by."""

    process_group: Annotated[list[str], Field(min_length=2, max_length=2)]
    profiling_name: str
    record_id: int
    collective_seq_id: int
    p2p_seq_id: int = 0
    is_p2p: bool = False
    input_sizes: list[_Shape]
    output_sizes: list[_Shape]
    input_dtypes: list[str] = []
    output_dtypes: list[str] = []
    state: str
    retired: bool = False
    frames: Annotated[tuple[Frame, ...], PlainValidator(_frames)] = ()

    @property
    def group(self) -> str:
        return self.process_group[0]

    @cached_property
    def operation(self) -> str:
        return self.profiling_name.partition(":")[2].partition(" ")[0]

    @property
    def done(self) -> bool:
        return self.state == "completed" or (self.profiling_name.startswith("gloo:") and self.retired)

    @cached_property
    def between(self) -> tuple[int, int] | None:
        """The positions in the group of a message's sender and receiver; None for other calls."""
        if not (ends := re.search(r":(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})$", self.profiling_name)):
            return None
        own, other = int(ends[2]), int(ends[3])
        return (own, other) if ends[1] == "send" else (other, own)

    @property
    def dtype(self) -> str:
        return next(iter(self.input_dtypes + self.output_dtypes), "")

    @property
    def batch(self) -> tuple[str, bool, int]:
        """The group, the kind and the number that calls have in common which were coalesced."""
        p2p = self.is_p2p or self.between is not None
        return self.group, p2p, self.p2p_seq_id if p2p else self.collective_seq_id

    @property
    def closes(self) -> bool:
        """Check whether the entry ends calls that were coalesced."""
        return self.operation == "coalesced" or (self.operation[:1].isupper() and self.operation.endswith("_coalesced"))

    @property
    def stack(self) -> tuple[Frame, ...]:
        """The frames that a trace would have: without torch's own, except for those that issue collectives."""
        own = (frame for frame in self.frames if not _OF_TORCH.match(frame.file) and not frame.file.endswith(_PASSING))
        return _same(tuple(own)[:_FRAMES])

    @property
    def function(self) -> str:
        """The outermost function of ``distributed_c10d.py`` that the program called; empty if it is not known."""
        name = "barrier" if self.operation == "all_reduce_barrier" else ""
        for frame in self.frames:
            if frame.file.endswith("/distributed_c10d.py"):
                name = frame.function
            elif name and not frame.file.endswith(_PASSING):
                break
        return name

    def elements(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the elements of each input and of each output."""
        inputs, outputs = (tuple(map(math.prod, sizes)) for sizes in (self.input_sizes, self.output_sizes))
        return inputs, outputs


def _parsed(ranks: Any) -> Any:
    return untrusted.json_of(ranks.encode()) if isinstance(ranks, str) else ranks


class _Group(JsonPart):
    ranks: Annotated[list[int], BeforeValidator(_parsed)]


class Dump(JsonPart):
    """The dump of a rank."""

    file: Path
    rank: int
    version: Annotated[str, Field(pattern=r"^\d{1,4}\.\d{1,4}$")]
    pg_config: dict[str, _Group]
    pg_status: dict[str, Any] = {}
    entries: list[RecordedCall] = []

    @property
    def lost(self) -> bool:
        """Check whether the rank has issued calls that are not in its dump."""
        return self.entries[-1].record_id >= len(self.entries) if self.entries else bool(self.pg_status)

    @property
    def active(self) -> bool:
        """Check whether all completed calls are missing, so that one which is not there may have been issued."""
        return self.lost and not any(entry.done for entry in self.entries)

    @cached_property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The ranks of the groups by name. Gloo's have no name there, and not the ranks of a group."""
        return {name: tuple(group.ranks) for name, group in self.pg_config.items() if name}


def files_in(paths: Sequence[Path]) -> list[Path]:
    """Return the files, and those of the folders whose names end in a rank. Raises :class:`ReportError`."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        some = sorted(file for file in path.iterdir() if _RANK.search(file.name) and file.is_file())
        if not some:
            raise ReportError(f"{path} has no dumps: no name of a file there ends in a rank, as nccl_trace_rank_0")
        files += some
    return files


def read(files: Sequence[Path]) -> list[Dump]:
    """Read the dumps of one job, in the order of their ranks. Raises :class:`ReportError`, OSError."""
    dumps: dict[int, Dump] = {}
    for file in files:
        dump = read_file(file)
        if dump.rank in dumps:
            raise ReportError(f"{dumps[dump.rank].file} and {file} are both of rank {dump.rank}: name one of them")
        dumps[dump.rank] = dump
    known: dict[str, list[Dump]] = {}
    for _, dump in sorted(dumps.items()):
        for other in known.setdefault("", []):
            if dump.version != other.version:
                why = f"their formats are {other.version} and {dump.version}"
                raise ReportError(f"{other.file} and {dump.file} are not of one job: {why}")
        for name, ranks in dump.groups.items():
            if dump.rank not in ranks:
                why = f"its group '{name}' has {listed(ranks)}"
                raise ReportError(f"{dump.file} is not the dump of rank {dump.rank}: {why}")
            for other in known.setdefault(name, []):
                if other.groups[name] != ranks and {*other.groups[name]} & {*ranks}:
                    why = f"group '{name}' has {listed(other.groups[name])} in one, and {listed(ranks)} in the other"
                    raise ReportError(f"{other.file} and {dump.file} are not of one job: {why}")
            known[name].append(dump)
        known[""] = [dump]
    return [dump for _, dump in sorted(dumps.items())]


def read_file(file: Path) -> Dump:
    """Read a dump. Raises :class:`ReportError`, OSError."""
    raw = untrusted.contents(file)
    found = _RANK.search(file.name)
    if not found:
        raise ReportError(f"{file} does not tell its rank: the name of a dump ends in it, as nccl_trace_rank_0")
    try:
        data = value_of(raw) if raw[:1] == b"\x80" else untrusted.json_of(raw, finite=False)
        version = data.get("version") if isinstance(data, dict) else None
        if not isinstance(version, str):
            raise Unreadable("it has no version")
        if version.partition(".")[0] != "2":
            raise Unreadable(f"its format is {untrusted.shortened(version)}, and format 2 is read")
        dump = Dump.model_validate({**data, "file": file, "rank": int(found[1])})
    except ValidationError as error:
        raise ReportError(f"{file} is no dump of torch's flight recorder: {first_problem(error)}") from None
    except Unreadable as why:
        raise ReportError(f"{file} is no dump of torch's flight recorder: {why}") from None
    dump.entries.sort(key=lambda entry: entry.record_id)
    return dump
