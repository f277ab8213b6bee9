"""Reads and writes incidents: an incident is the folder that the watch saves at its first finding, for all ranks.

``incident.json`` has the finding, ``rank-0/`` and so on each rank's data: ``statistics.csv`` (the probes of the
last steps), ``batch.safetensors`` with ``batch.json`` (the micro-batch; values that are no tensors, as text) and
``rng.safetensors``. An incident is sent to other people, so it contains no pickle: nothing that is read here
is executed. Ranks write without waiting for each other; a rank that died leaves no statistics, and is missing.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamrace.detectors.live import tensor_file
from streamrace.detectors.live.finding import PHASES, Finding, Kind, ProbePoint, ProbeResult
from streamrace.trace import untrusted

FORMAT = "stream-race-incident"
VERSION = 1
COLUMNS = (
    "step",
    "micro_batch",
    "phase",
    "order",
    "kind",
    "module",
    "parameter",
    "detail",
    "nan",
    "plus_inf",
    "minus_inf",
    "low",
    "high",
    "numel",
    "beyond",
)
_LONGEST_TEXT = 10_000  # characters of a value that is kept as text
_DEEPEST = 32  # levels of a configuration; deeper is one that contains itself
_LARGEST_WORLD = 1_000_000  # ranks; a larger world is taken for damage
_LARGEST = 2**53  # of any number; a page's script holds no larger one exactly
_RANK = re.compile(r"rank-(0|[1-9]\d{0,6})")
# DeepSpeed's configuration has a place for Comet's API key, and incidents are sent to others.
_SECRET = re.compile(r"api_?key|password|secret|credentials?|(access|auth|hf|hub)_?token", re.IGNORECASE)


class IncidentError(Exception):
    """A folder cannot be written as an incident, or read as one. The message gives the reason and a remedy."""


@dataclass(frozen=True)
class Incident:
    """An incident's contents. ``statistics``: probes by rank, in the order of execution; ``missing``: ranks without."""

    finding: Finding
    world: int
    configuration: Mapping[str, Any]
    versions: Mapping[str, str]
    statistics: dict[int, list[ProbeResult]]
    missing: tuple[int, ...]


# -- writing ---------------------------------------------------------------------------------------


def check_writable(folder: Path) -> None:
    """Create ``folder`` if it does not exist, and write into it once. Raises :class:`IncidentError` if that fails.

    Called before training begins: hours later, at the finding, is too late.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"0")
    except OSError as error:
        if isinstance(error, FileExistsError | NotADirectoryError):
            raise IncidentError(f"{folder} is a file, not a folder: choose another folder") from None
        raise IncidentError(f"cannot write incidents into {folder}: {_why(error)}; choose another folder") from error


def free_name(parent: Path, finding: Finding, taken: Collection[str] | None = None) -> Path:
    """Return ``parent/incident-step12``, or with -2, -3 and so on if that is ``taken`` (None: if it exists)."""
    name = f"incident-step{finding.step}"
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(parent / name for name in names if not ((parent / name).exists() if taken is None else name in taken))


def write(
    folder: Path, finding: Finding, *, world: int, configuration: Mapping[str, Any], versions: Mapping[str, str]
) -> None:
    """Write the head of an incident, on one rank only. Raises :class:`IncidentError` if that fails.

    Values that JSON cannot hold become text, and values that look like a password are left out.
    """
    data = {
        "format": FORMAT,
        "version": VERSION,
        "finding": finding.as_dict(),
        "world": world,
        "configuration": _jsonable(configuration),
        "versions": {str(name): _text(version) for name, version in versions.items()},
    }
    with _refusals(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / "incident.json", lambda path: _write_json(path, data))


def write_rank(
    folder: Path, rank: int, *, probes: Iterable[ProbeResult], batch: Mapping[str, Any], rng: Mapping[str, Tensor]
) -> None:
    """Write the data of one rank. Raises :class:`IncidentError` if that fails.

    ``batch``: tensors, or dicts and lists of them, of any device and shape; they are copied to the host. Waits
    for the device. The statistics are written last: a rank that has them is complete.
    """
    tensors, texts = _sorted_out(batch)
    states, _ = _sorted_out(rng)
    with _refusals(folder):
        place = folder / f"rank-{rank}"
        place.mkdir(parents=True, exist_ok=True)
        _replace(place / "batch.safetensors", lambda path: tensor_file.write(tensors, path))
        _replace(place / "rng.safetensors", lambda path: tensor_file.write(states, path))
        if texts:
            _replace(place / "batch.json", lambda path: _write_json(path, texts))
        _replace(place / "statistics.csv", lambda path: _write_statistics(path, probes))


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise IncidentError(f"cannot save the incident in {folder}: {_why(error)}") from error


def _why(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _replace(path: Path, save: Callable[[Path], None]) -> None:
    """Write a file such that a reader sees all of it or none: a rank may die while it writes."""
    temporary = path.with_name(f".{path.name}.part")
    save(temporary)
    os.replace(temporary, path)


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _write_statistics(path: Path, probes: Iterable[ProbeResult]) -> None:
    # A name may hold half a surrogate pair, which UTF-8 refuses.
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        rows = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)  # or a name with \r breaks a row
        rows.writerow(COLUMNS)
        for probe in probes:
            point, counts = probe.point, (probe.nan, probe.plus_inf, probe.minus_inf)
            place = (probe.step, probe.micro_batch, probe.phase, probe.order)
            names = (str(point.kind), point.module, point.parameter, point.detail)
            rows.writerow((*place, *names, *counts, probe.low, probe.high, probe.numel, int(probe.beyond)))


def _sorted_out(values: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Split into tensors by name, copied to the host, and all other values as text. Nested names are joined by dots."""
    tensors: dict[str, Tensor] = {}
    texts: dict[str, str] = {}
    for name, value in _leaves(values, "", 0):
        name = name.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair is no text to safetensors
        while name in tensors or name in texts or name == tensor_file.RESERVED:
            name += "_"
        copy = _copied(value) if isinstance(value, Tensor) else None
        if copy is None:
            texts[name] = _text(value)
        else:
            tensors[name] = copy
    return tensors, texts


def _leaves(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    inner: Iterable[tuple[Any, Any]] | None = None
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            inner = value.items()
        elif isinstance(value, list | tuple) and any(isinstance(item, Tensor | Mapping) for item in value):
            inner = enumerate(value)
    if inner is None:
        yield name, value
    else:
        for key, item in inner:
            yield from _leaves(item, f"{name}.{_text(key)}" if name else _text(key), depth + 1)


def _copied(tensor: Tensor) -> Tensor | None:
    """Copy to the host, contiguous, as a file of tensors needs it. Return None if the file cannot hold the tensor."""
    if tensor.dtype not in tensor_file.TYPES or tensor.layout is not torch.strided or tensor.is_meta:
        return None
    try:
        copy = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        # A subclass may wrap its numbers, and have no memory of its own.
        return copy if copy.data_ptr() or not copy.nbytes else None
    except Exception:  # a subclass of Tensor that cannot be copied must not cost the rest of the incident
        return None


def _text(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception:  # whatever the user's class raises
        text = f"a {type(value).__name__} that has no text"
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}... ({len(text)} characters)"


def _jsonable(value: Any, depth: int = 0) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if (type(value) is int and abs(value) < 2**63) or (type(value) is float and math.isfinite(value)):
        return value
    if depth < _DEEPEST:
        try:
            if isinstance(value, Mapping):
                return {_text(key): _redacted(_text(key), item, depth) for key, item in value.items()}
            if isinstance(value, list | tuple):
                return [_jsonable(item, depth + 1) for item in value]
            if isinstance(value, set | frozenset):
                return sorted(_text(item) for item in value)
        except Exception:  # whatever the user's class raises while it is walked
            return _text(value)
    return _text(value)


def _redacted(key: str, value: Any, depth: int) -> Any:
    if isinstance(value, str) and value and _SECRET.search(key):
        return "(left out)"
    return _jsonable(value, depth + 1)


# -- reading ---------------------------------------------------------------------------------------


def load(folder: Path) -> Incident:
    """Read an incident of any origin. Raises :class:`IncidentError` for folders that are no incident, or incomplete."""
    data = _head(folder)
    try:
        finding = Finding.from_dict(data["finding"])
        world, configuration, versions = data["world"], data["configuration"], data["versions"]
    except (KeyError, ValueError, OverflowError) as error:
        reason = f"'{error.args[0]}' is missing" if isinstance(error, KeyError) else str(error)
        raise _damaged(folder / "incident.json", reason) from None
    if type(world) is not int or not 0 <= finding.rank < world <= _LARGEST_WORLD:
        raise _damaged(folder / "incident.json", "the world's size does not fit the finding's rank")
    counts = (finding.step, finding.micro_batch, finding.nan, finding.inf, finding.numel)
    if not all(0 <= number < _LARGEST for number in counts):
        raise _damaged(folder / "incident.json", "a number of the finding is out of range")
    if not isinstance(configuration, dict) or not isinstance(versions, dict):
        raise _damaged(folder / "incident.json", "configuration and versions are no mappings")
    statistics = {}
    for rank in sorted(int(match[1]) for path in folder.iterdir() if (match := _RANK.fullmatch(path.name))):
        path = folder / f"rank-{rank}" / "statistics.csv"
        if rank < world and path.is_file():
            statistics[rank] = sorted(_statistics(path), key=lambda probe: (probe.step, probe.order))
    return Incident(
        finding=finding,
        world=world,
        configuration=configuration,
        versions={name: str(version) for name, version in versions.items()},
        statistics=statistics,
        missing=tuple(rank for rank in range(world) if rank not in statistics),
    )


def _head(folder: Path) -> dict[str, Any]:
    path = folder / "incident.json"
    if not folder.exists():
        raise IncidentError(f"{folder} does not exist: give the folder of an incident, such as incident-step12")
    if not path.is_file():
        raise IncidentError(f"{folder} is not an incident, it has no incident.json: give a folder the watch saved")
    try:
        data = untrusted.read_json(path, halves=True)
    except OSError as error:
        raise IncidentError(f"cannot read {path}: {_why(error)}; check its permissions") from None
    except untrusted.Unreadable as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise IncidentError(f"{folder} is not an incident, its incident.json is foreign: give a folder of the watch")
    version = data.get("version")
    if type(version) is not int or version < 1:
        raise _damaged(path, "its format has no version")
    if version > VERSION:
        raise IncidentError(
            f"{folder} has format version {version} and this release reads up to {VERSION}: update streamrace"
        )
    return data


def _statistics(path: Path) -> Iterator[ProbeResult]:
    line = 1
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read()
        if not text.endswith("\n"):
            raise ValueError("its last line is cut off")
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        if next(rows) != list(COLUMNS):
            raise ValueError("its columns are not those of the watch")
        for row in rows:
            line = rows.line_num
            yield _probe(row)
    except OSError as error:
        raise IncidentError(f"cannot read {path}: {_why(error)}; check its permissions") from None
    except (ValueError, OverflowError, csv.Error, StopIteration) as error:
        raise _damaged(path, f"line {line}: {error}") from None


def _probe(row: list[str]) -> ProbeResult:
    if len(row) != len(COLUMNS):
        raise ValueError(f"{len(row)} values instead of {len(COLUMNS)}")
    step, micro_batch, phase, order, kind, module, parameter, detail, *numbers = row
    if phase not in PHASES:
        raise ValueError(f"unknown phase {phase[:40]!r}")
    nan, plus_inf, minus_inf, low, high, numel, beyond = numbers
    point = ProbePoint(Kind(kind), module, parameter, detail)
    counts = (_count(nan), _count(plus_inf), _count(minus_inf))
    place = (_count(step), _count(micro_batch), phase, _count(order))
    return ProbeResult(point, *place, *counts, float(low), float(high), _count(numel), bool(_count(beyond)))


def _count(text: str) -> int:
    number = int(text)
    if not 0 <= number < _LARGEST:
        raise ValueError(f"{number} is out of range")
    return number


def _damaged(path: Path, reason: str) -> IncidentError:
    reason = repr(reason)[1:-1]  # text that was read must not control the terminal
    short = reason if len(reason) <= 200 else f"{reason[:200]}..."
    return IncidentError(f"{path} is damaged ({short}): copy the incident again from where it was saved")
