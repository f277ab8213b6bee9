"""Records a training run's values step by step: a folder with a file of JSON lines for each rank.

Written by the live watch, flushed each step: a header, then a line a step with its losses, its gradient norm and
checksums of every parameter that was used. Nothing that is read is executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from streamrace.detectors.values.divergence import number
from streamrace.trace import untrusted, wording

FORMAT = "stream-race-recording"
VERSION = 1
PHASES = ("forward", "backward", "step")
_FILE = re.compile(r"rank-(0|[1-9]\d{0,6})\.jsonl")


class RecordingError(Exception):
    """A recording cannot be written, read or compared; the message gives the reason."""


class UseRecord(NamedTuple):
    """A parameter in use; in phase "step" its own partition on this rank, after the optimizer step or an edit.

    ``micro_batch`` from 1; ``sums``: unsigned 64-bit checksums, one a part; ``largest``: absolute (NaN: or not known).
    """

    micro_batch: int
    phase: str
    parameter: str
    sums: tuple[int, ...]
    largest: float


class StepRecord(NamedTuple):
    """One step of one rank. ``losses`` by micro-batch; ``uses`` in the order of execution."""

    step: int
    losses: tuple[float, ...]
    gradient_norm: float | None
    uses: tuple[UseRecord, ...]


class Recorder:
    """Writes one rank's file, a line a step, flushed: a run that is killed loses at most its current step.

    ``info`` (JSON-ready): ``precision`` ("fp32", "bf16", "fp16", "fp64"), ``parameters`` (elements in all), ``tokens``
    (terms of a micro-batch's loss; 0: not known), and any other facts. Raises :class:`RecordingError`.
    """

    def __init__(self, folder: Path, *, rank: int, world: int, info: Mapping[str, Any]) -> None:
        self._path = folder / f"rank-{rank}.jsonl"
        self._names: dict[str, int] = {}
        header = {"format": FORMAT, "version": VERSION, "rank": rank, "world": world, "info": dict(info)}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("x", encoding="ascii", newline="\n")
        except OSError as error:
            exists = isinstance(error, FileExistsError) and self._path.exists()
            why = f"it already holds a recording of rank {rank}" if exists else error.strerror
            raise RecordingError(f"cannot record into {folder}: {why}; give another folder") from None
        self._write(header)

    def add(self, record: StepRecord) -> None:
        """Write one step. Raises :class:`RecordingError` if writing fails."""
        fresh = list(dict.fromkeys(use.parameter for use in record.uses if use.parameter not in self._names))
        self._names |= {name: len(self._names) + index for index, name in enumerate(fresh)}
        rows = [
            [int(micro_batch), PHASES.index(phase), self._names[name], [*map(int, sums)], number(float(largest))]
            for micro_batch, phase, name, sums, largest in record.uses
        ]
        norm = None if record.gradient_norm is None else number(float(record.gradient_norm))
        losses = [number(float(loss)) for loss in record.losses]
        self._write({"step": int(record.step), "losses": losses, "gradient_norm": norm, "names": fresh, "uses": rows})

    def close(self) -> None:
        self._file.close()

    def _write(self, data: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise RecordingError(f"cannot record into {self._path}: {error.strerror}") from error


@dataclass(frozen=True)
class WatchRecording:
    """The contents of a folder, by rank. ``truncated``: ranks killed within a line, which is left out."""

    world: int
    info: dict[int, dict[str, Any]]
    steps: dict[int, list[StepRecord]]
    truncated: tuple[int, ...] = ()


def load(folder: Path) -> WatchRecording:
    """Read a recording of any origin. Raises :class:`RecordingError` for folders that are none, or incomplete."""
    if not folder.is_dir():
        raise RecordingError(f"{folder} is no folder: give the folder that a run recorded into")
    paths = {int(name[1]): path for path in folder.glob("rank-*") if (name := _FILE.fullmatch(path.name))}
    if not paths:
        raise RecordingError(f"{folder} holds no recording (rank-0.jsonl and so on): give the folder of one")
    steps: dict[int, list[StepRecord]] = {}
    info: dict[int, dict[str, Any]] = {}
    worlds, truncated = set[int](), list[int]()
    for rank, path in sorted(paths.items()):
        lines = _lines(path, rank, truncated)
        world, info[rank] = _header(next(lines, (1, None))[1], path, rank)
        worlds.add(world)
        steps[rank], names = [], list[str]()
        for at, data in lines:
            try:
                steps[rank].append(_step(data, names, after=steps[rank][-1].step if steps[rank] else -1))
            except (ValueError, TypeError, LookupError, OverflowError) as error:
                raise _damaged(path, at, str(error)) from None
    if len(worlds) > 1:
        raise RecordingError(f"{folder} mixes runs of {wording.every(sorted(worlds))} ranks: copy it again")
    for rank in range(world):
        if rank not in paths:
            raise RecordingError(f"{folder} has no recording of rank {rank}, of {world} ranks: copy rank-{rank}.jsonl")
    return WatchRecording(world, info, steps, tuple(truncated))


def _lines(path: Path, rank: int, truncated: list[int]) -> Iterator[tuple[int, Any]]:
    """Yield numbered lines, as data. Only the last can be cut off: its rank is added to ``truncated``."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    truncated.append(rank)
                    return
                try:
                    data = untrusted.json_of(line)
                except untrusted.Unreadable as error:
                    raise _damaged(path, number, str(error)) from None
                yield number, data
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}; check its permissions") from None


def _header(data: Any, path: Path, rank: int) -> tuple[int, dict[str, Any]]:
    """Return the run's number of ranks, and its info."""
    if data is None:
        raise RecordingError(f"{path} ends in its first line: the run ended before it recorded anything")
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise RecordingError(f"{path} is not a recording of the live watch: give the folder of one")
    version, world, info = data.get("version"), data.get("world"), data.get("info")
    if _is_count(version) and version > VERSION:
        raise RecordingError(f"{path} has format version {version}, this release reads {VERSION}: update streamrace")
    if version != VERSION or not _is_count(world) or rank >= world or data.get("rank") != rank:
        raise _damaged(path, 1, f"it is no header of rank {rank}")
    if not isinstance(info, dict) or not all(_is_count(info.get(key, 0)) for key in ("tokens", "parameters")):
        raise _damaged(path, 1, "its info has no counts")
    return world, info


def _step(data: Mapping[str, Any], names: list[str], *, after: int) -> StepRecord:
    """Return a line's step. Adds the names that the line introduces to ``names``."""
    step, norm = data["step"], data["gradient_norm"]
    names += data["names"]
    if not _is_count(step) or step <= after or not all(isinstance(name, str) for name in names):
        raise ValueError("steps do not count up, or a name is no text")
    uses = []
    for micro_batch, phase, name, sums, largest in data["uses"]:
        if not all(map(_is_count, (micro_batch, phase, name, *sums))):
            raise ValueError("a use has numbers that are no counts")
        uses.append(UseRecord(micro_batch, PHASES[phase], names[name], tuple(sums), _float(largest)))
    losses = tuple(_float(loss) for loss in data["losses"])
    return StepRecord(step, losses, None if norm is None else _float(norm), tuple(uses))


def _is_count(value: Any) -> TypeGuard[int]:
    """Check whether the value is an integer that fits into 64 bits without a sign."""
    return type(value) is int and 0 <= value < 2**64


def _float(value: Any) -> float:
    if type(value) in (int, float) or value in ("nan", "inf", "-inf"):
        return float(value)
    raise ValueError("a value is no number")


def _damaged(path: Path, line: int, reason: str) -> RecordingError:
    return RecordingError(f"{path} is damaged in line {line} ({reason[:100]}): copy the recording again")
