"""Base of the files of a run's folder: a model by pydantic for each kind of file, which writes it and reads it.

A run's folder may come from anybody. All fields used anywhere in :mod:`reports` are checked when a file is read. Keys
that earlier commits did not write have defaults in the models, all others are required.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from streamrace.detectors import Race
from streamrace.detectors.values.answers import Answer
from streamrace.detectors.witness import Witness
from streamrace.reports.data.whole import put
from streamrace.reports.text import plain_text
from streamrace.trace import untrusted

_LARGEST = 2**53  # of any integer; larger ones are not exact in a page's script
_LONGEST_PROBLEM = 200  # characters of pydantic's message
_OF_RACES = {"examples", "lo"}  # keys that identify a race and an occurrence
_RENAMED = {"shown": "manifested", "margin_ns": "slack_ns"}  # fields by their names in earlier versions
_SIGNED = {"start", "end", "longer_ns", "live_longer_ns", *_RENAMED, *_RENAMED.values()}
_LEAST = {"op": -1}  # the host's, in a window
_OPTIONS = {"scenario", "profile", "asked", "job", "options", "watch"}  # the values are those of a command's options
_WHERE_FROM = "Run the scenario again, or get the folder anew from where it came"


class ReportError(Exception):
    """A folder cannot be read as a run, or runs cannot be compared. One sentence: the problem, and what to do."""


class JsonPart(BaseModel):
    """Base of the models of files: types are strict (a number in quotes is none), and unknown keys are left out."""

    model_config = ConfigDict(strict=True, frozen=True)

    @classmethod
    def read_lines(cls, file: Path) -> Iterator[Self]:
        """Yield the parts that the ranks of a program wrote to ``file``, one a line; none if there is no such file.

        Lines of another form are left out, as the program could write there, too.
        """
        with suppress(OSError, untrusted.Unreadable):
            for line in untrusted.contents(file).splitlines():
                with suppress(ValidationError):
                    yield cls.model_validate_json(line)


class JsonFile(JsonPart):
    """Base of a JSON file in a run's folder: one model writes it and reads it. ``NAME``: the file's.

    The defaults of ``format`` and ``version`` are those that are written, and the newest that is read.
    """

    NAME: ClassVar[str]
    _indent: ClassVar[int | None] = 2
    _sparse: ClassVar[bool] = False  # fields that are not set are not written
    _ascii: ClassVar[bool] = False
    format: str
    version: int = 1

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file in ``folder``. Raises :class:`ReportError`."""
        return cls.parsed(folder / cls.NAME, read_json(folder / cls.NAME))

    @classmethod
    def parsed(cls, file: Path, data: Mapping[str, Any]) -> Self:
        """Return the ``data`` of ``file``, of this format and at most of its version. Raises :class:`ReportError`."""
        named, version = (cls.model_fields[name].default for name in ("format", "version"))
        if data.get("format") != named:
            raise ReportError(f"{file} is not what a run writes: its format is not '{named}'. Choose a run's folder")
        number = data.get("version")
        if type(number) is int and number > version:
            raise ReportError(
                f"{file} is of version {number}, and this program reads up to version {version}: read it with the "
                "program that wrote it, or update this one"
            )
        if number != version or type(number) is not int:
            raise ReportError(f"{file} has no version that this program knows ({version}). {_WHERE_FROM}")
        try:
            _bounded({key: value for key, value in data.items() if key in cls.model_fields.keys() - _OPTIONS})
            # As JSON, since pydantic converts its arrays and objects to tuples and dataclasses even in strict mode.
            return cls.model_validate_json(json.dumps(cls.prepared(data)))
        except ValidationError as error:
            raise does_not_hold(file, first_problem(error)) from None
        except ValueError as error:
            raise does_not_hold(file, str(error)) from None

    @classmethod
    def prepared(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the data as it is validated."""
        return data

    def text(self) -> str:
        """Return the file's text: the same findings give the same bytes."""
        data = {"format": self.format, "version": self.version, **self.model_dump(exclude_unset=self._sparse)}
        return plain_text(json.dumps(data, indent=self._indent, ensure_ascii=self._ascii, allow_nan=False)) + "\n"

    def write(self, folder: Path) -> Path:
        """Write the file into ``folder``, whole or not at all. Raises OSError."""
        return put(folder / self.NAME, self.text())


@dataclass(frozen=True)
class KeptSuppression:
    """The reason why a finding does not count. ``kind``: a ``comment`` at ``line`` of ``file``, or a ``baseline``.

    ``file``: from the top of the checkout.
    """

    kind: Literal["comment", "baseline"]
    reason: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class Judged(Race):
    """A race as read from a file. Its fields and their types are those of :class:`detectors.Race`."""

    witness: Witness | None = None
    suppressed: KeptSuppression | None = None


@dataclass(frozen=True)
class JudgedAnswer(Answer):
    """An answer, and why it does not count."""

    suppressed: KeptSuppression | None = None


def read_json(file: Path, *, largest: int = untrusted.LARGEST) -> dict[str, Any]:
    """Read the object in a JSON file of at most ``largest`` bytes. Raises :class:`ReportError`."""
    try:
        data = untrusted.read_json(file, largest=largest)
        renamed = _renamed(data)
    except OSError as error:
        raise ReportError(f"{file} cannot be read: {error.strerror or error}. See whether it may be read") from error
    except ValueError as error:
        raise does_not_hold(file, str(error)) from None
    if not isinstance(renamed, dict):
        raise does_not_hold(file, "it is no JSON object")
    return renamed


def does_not_hold(file: Path, problem: str) -> ReportError:
    """Return the error for a file whose contents no run writes."""
    why = untrusted.shortened(problem, _LONGEST_PROBLEM)
    return ReportError(f"{file} does not hold what a run writes: {why}. {_WHERE_FROM}")


def _renamed(value: Any) -> Any:
    """Return the value with the fields of races renamed to their current names."""
    if isinstance(value, list):
        return [_renamed(item) for item in value]
    if not isinstance(value, dict):
        return value
    if not value.keys() & _OF_RACES:
        return {key: _renamed(item) for key, item in value.items()}
    renamed = {_RENAMED.get(key, key): _renamed(item) for key, item in value.items()}
    renamed.setdefault("slack_ns", 0)  # missing in the first runs
    return renamed


def _bounded(value: Any, name: str = "") -> None:
    """Raise ValueError for a whole number that no run writes: too large, or below 0 where none is."""
    if isinstance(value, dict):
        for key, item in value.items():
            _bounded(item, key)
    elif isinstance(value, list):
        for item in value:
            _bounded(item, name)
    elif isinstance(value, int) and not (-_LARGEST if name in _SIGNED else _LEAST.get(name, 0)) <= value <= _LARGEST:
        raise ValueError(f"{name} is a number that no run writes")


def first_problem(error: ValidationError) -> str:
    """Return pydantic's first message, with the field's path."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}"
