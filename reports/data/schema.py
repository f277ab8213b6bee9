"""Defines what the files of a run's folder must hold to be read, checked by pydantic so that later code is safe.

A run's folder may come from anybody. All fields used anywhere in :mod:`reports` are checked here; further keys are kept
as they are. Keys that earlier commits did not write have defaults here, all others are required.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from streamrace.detectors import Race, Uninitialised
from streamrace.detectors.values.answers import Kind
from streamrace.reports.data.findings import Verdict
from streamrace.reports.data.whole import put
from streamrace.reports.text import plain_text
from streamrace.trace import untrusted
from streamrace.trace.records import Frame

Model = TypeVar("Model", bound=BaseModel)

VERDICTS = tuple(map(str, Verdict))
_LARGEST = 2**53  # of any integer; larger ones are not exact in a page's script
_LONGEST_PROBLEM = 200  # characters of pydantic's message
_OF_RACES = {"examples", "lo"}  # keys that identify a race and an occurrence
_RENAMED = {"shown": "manifested", "margin_ns": "slack_ns"}  # fields by their names in earlier versions
_SIGNED = {"start", "end", "longer_ns", "live_longer_ns", *_RENAMED, *_RENAMED.values()}
_OPTIONS = {"scenario", "profile", "asked", "job", "options", "watch"}  # the values are those of a command's options
_WHERE_FROM = "Run the scenario again, or get the folder anew from where it came"

_Count = Annotated[int, Field(ge=0, le=_LARGEST)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Number = _Finite | Literal["nan", "inf", "-inf"]  # JSON has no number for the last three


class ReportError(Exception):
    """A folder cannot be read as a run, or runs cannot be compared. One sentence: the problem, and what to do."""


class Part(BaseModel):
    """Base of the models of files: types are strict (a number in quotes is none), and unknown keys are left out."""

    model_config = ConfigDict(strict=True, frozen=True)


class File(Part):
    """Base of a JSON file in a run's folder: one model writes it and reads it. ``NAME``: the file's.

    The defaults of ``format`` and ``version`` are those that are written, and the newest that is read.
    """

    NAME: ClassVar[str]
    _indent: ClassVar[int | None] = 2
    _ascii: ClassVar[bool] = False
    format: str
    version: int = 1

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file in ``folder``. Raises :class:`ReportError`."""
        return checked(cls, folder / cls.NAME, read_json(folder / cls.NAME))

    def text(self) -> str:
        """Return the file's text: the same findings give the same bytes."""
        return plain_text(json.dumps(self.model_dump(), indent=self._indent, ensure_ascii=self._ascii)) + "\n"

    def write(self, folder: Path) -> Path:
        """Write the file into ``folder``, whole or not at all. Raises OSError."""
        return put(folder / self.NAME, self.text())


@dataclass(frozen=True)
class KeptWitness:
    """A race's witness: the token of a timing that executes its pair in the other order, or the reason why none exists.

    For a program of the user's own also the result: :class:`streamrace.reports.data.checked.Witnessed`.
    """

    token: str
    reason: str
    verdict: str = ""
    says: str = ""
    command: str = ""


@dataclass(frozen=True)
class KeptSuppression:
    """The reason why a finding does not count. ``kind``: a ``comment`` at ``line`` of ``file``, or a ``baseline``.

    ``file``: from the top of the checkout.
    """

    kind: Literal["comment", "baseline"]
    reason: str
    file: str = ""
    line: Annotated[int, Field(ge=0, le=_LARGEST)] = 0


@dataclass(frozen=True)
class Judged(Race):
    """A race as read from a file. Its fields and their types are those of :class:`detectors.Race`."""

    witness: KeptWitness | None = None
    suppressed: KeptSuppression | None = None


class _WrongParameter(Part):
    step: _Count
    micro_batch: _Count
    phase: str
    rank: _Count
    name: str
    parts: list[_Count]
    bad: _Count
    ranks: list[_Count]


class _WrongLoss(Part):
    step: _Count
    micro_batch: _Count
    rank: _Count
    value: _Number
    reference: _Number


class _Divergence(Part):
    parameter: _WrongParameter | None
    loss: _WrongLoss | None
    final: list[str]
    growth: list[Annotated[list[_Number], Field(min_length=2, max_length=2)]]
    compared: _Count


class _Stale(Part):
    step: _Count
    micro_batch: _Count
    phase: str
    rank: _Count
    name: str
    version: _Count
    edited: bool
    uses: _Count
    names: list[str]
    ranks: list[_Count]
    distance: _Number
    sentence: str = "an older version is used"


class _Uncovered(Part):
    kernel: str
    stack: list[dict[str, Any]]
    reads: _Count
    nbytes: _Count
    names: list[str]
    ranks: list[_Count]
    sentence: str = "memory that nothing wrote is read"


def _known(verdict: str) -> str:
    if verdict not in VERDICTS:
        raise ValueError(f"'{verdict}' is no verdict")
    return verdict


class _Site(Part):
    how: Literal["read", "copy", "measurement"]
    frame: Frame | None


class _Held(Part):
    sites: list[_Site] = []
    sentence: str
    races: list[Judged]


class _Answer(Part):
    name: str
    rank: _Count
    kind: Kind
    says: str
    suppressed: KeptSuppression | None = None


@dataclass(frozen=True)
class KeptUninitialised(Uninitialised):
    """An uninitialised use as read from a file."""

    suppressed: KeptSuppression | None = None


class Rests(Part):
    held: list[_Held]
    unexamined: _Count
    unexercised: list[str]
    unseen: list[str] = []
    answers: list[_Answer] = []
    uninitialised: list[KeptUninitialised] = []

    @property
    def wrong(self) -> list[_Answer]:
        """The answers that differ from the program's statement."""
        return [one for one in self.answers if one.kind != "right"]


class _End(Part):
    """The last kept operation of a rank."""

    rank: int
    op: int


class _Thinned(Part):
    """Traces that are kept in part: number of kept operations, of how many, and sentences about that."""

    operations: _Count
    of: _Count
    ends: list[_End]
    says: list[str]


class _Checked(Rests):
    seen: str
    seeded: str = ""
    thinned: _Thinned | None = None
    virtual_ns: _Count = 0
    own: dict[str, str] = {}
    status: _Count | None = None
    gone: list[str] | None = None


class FindingsFile(File):
    """``findings.json``, in the order in which :meth:`streamrace.reports.data.findings.Findings.as_dict` writes it.

    ``checked``: for a program of the user's own (:class:`streamrace.reports.data.checked.Checked`). ``rests``: the
    waits that the verdict on a clean scenario depends on.
    """

    @property
    def basis(self) -> Rests | None:
        """The basis of a clean verdict; for a program of the user's own also the parts that were not seen."""
        return self.checked or self.rests

    @property
    def first_bad_step(self) -> int | None:
        """The first step in which a parameter or a loss is wrong."""
        wrong = (self.divergence.parameter, self.divergence.loss) if self.divergence else ()
        return min((one.step for one in wrong if one), default=None)

    NAME = "findings.json"
    format: str = "stream-race-findings"
    verdict: Annotated[str, AfterValidator(_known)]
    sentence: str
    failure: str | None
    steps_done: _Count
    causes: list[str] = []
    stale: _Stale | None = None
    uncovered: list[_Uncovered] = []
    divergence: _Divergence | None
    distance: str = "0"
    diverged: bool = False
    watch: dict[str, Any] | None = None
    checked: _Checked | None = None
    rests: Rests | None = None
    races: list[Judged]
    virtual_ns_per_step: _Finite | None = None
    host_blocked_ns_per_step: _Finite | None = None
    scenario: dict[str, Any]
    profile: dict[str, Any] = {}
    versions: dict[str, str]


def checked(model: type[Model], file: Path, data: Mapping[str, Any]) -> Model:
    """Return ``data`` as a ``model`` of its format, at most of its version. Raises :class:`ReportError`."""
    named, version = (model.model_fields[name].default for name in ("format", "version"))
    if data.get("format") != named:
        raise ReportError(f"{file} is not what a run writes: its format is not '{named}'. Choose a run's folder")
    found = data.get("version")
    if type(found) is int and found > version:
        raise ReportError(
            f"{file} is of version {found}, and this program reads up to version {version}: read it with the program "
            "that wrote it, or update this one"
        )
    if found != version or type(found) is not int:
        raise ReportError(f"{file} has no version that this program knows ({version}). {_WHERE_FROM}")
    try:
        _bounded({key: value for key, value in data.items() if key in model.model_fields.keys() - _OPTIONS})
        # As JSON, since pydantic converts its arrays and objects to tuples and dataclasses even in strict mode.
        return model.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise does_not_hold(file, first_problem(error)) from None
    except ValueError as error:
        raise does_not_hold(file, str(error)) from None


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


def does_not_hold(file: Path, what: str) -> ReportError:
    """Return the error for a file whose contents no run writes."""
    why = untrusted.shortened(what, _LONGEST_PROBLEM)
    return ReportError(f"{file} does not hold what a run writes: {why}. {_WHERE_FROM}")


def _renamed(value: Any) -> Any:
    """Return the value with the fields of races renamed to their current names."""
    if isinstance(value, list):
        return [_renamed(one) for one in value]
    if not isinstance(value, dict):
        return value
    if not value.keys() & _OF_RACES:
        return {key: _renamed(one) for key, one in value.items()}
    made = {_RENAMED.get(key, key): _renamed(one) for key, one in value.items()}
    made.setdefault("slack_ns", 0)  # missing in the first runs
    return made


def _bounded(value: Any, name: str = "") -> None:
    """Raise ValueError for a whole number that no run writes: too large, or below 0 where none is."""
    if isinstance(value, dict):
        for key, one in value.items():
            _bounded(one, key)
    elif isinstance(value, list):
        for one in value:
            _bounded(one, name)
    elif isinstance(value, int) and not (-_LARGEST if name in _SIGNED else 0) <= value <= _LARGEST:
        raise ValueError(f"{name} is a number that no run writes")


def first_problem(error: ValidationError) -> str:
    """Return pydantic's first message, with the field's path."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}"
