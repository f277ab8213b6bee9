"""What the files of a run's folder must hold to be read: checked by pydantic, so that nothing later trips over them.

A run's folder may come from anybody. What is checked here is what is used anywhere in :mod:`reports`; further keys are
kept as they are. Keys that earlier commits did not write have defaults here, all others must be there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from reports.data.findings import Verdict

Model = TypeVar("Model", bound=BaseModel)

VERDICTS = tuple(map(str, Verdict))
_LARGEST = 2**53  # of any whole number; a page's script holds no larger one exactly
_LONGEST_PROBLEM = 200  # characters of what pydantic says
_WHERE_FROM = "Run the scenario again, or get the folder anew from where it came"

_Count = Annotated[int, Field(ge=0, le=_LARGEST)]
_Whole = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Number = _Finite | Literal["nan", "inf", "-inf"]  # JSON has no number for the last three


class ReportError(Exception):
    """A folder cannot be read as a run, or runs cannot be compared. One sentence: what is wrong, and what to do."""


class _Part(BaseModel):
    """Types are taken at their word (a number in quotes is none), and keys that are not known are kept."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Frame(_Part):
    file: str
    line: _Count
    function: str


class _Side(_Part):
    kernel: str
    access: Literal["read", "write", "free"]
    stream: str
    issuer: str = ""
    stack: list[_Frame]
    allocated: list[_Frame] | None = None


class _Moment(_Part):
    op: _Count | None
    step: _Count
    micro_batch: _Count
    phase: str
    start: _Whole
    end: _Whole


class _Occurrence(_Part):
    rank: _Count
    block: _Count
    lo: _Count
    hi: _Count
    first: _Moment
    second: _Moment
    shown: bool
    margin_ns: _Whole = 0


class _Name(_Part):
    kind: str
    name: str


class _Witness(_Part):
    token: str
    reason: str


class _Witnessed(_Witness):
    """Of a program of the user's own: :class:`reports.data.checked.Witnessed`."""

    verdict: str
    says: str
    command: str


class RaceModel(_Part):
    """A race, as :meth:`detectors.Race.as_dict` writes it."""

    kind: Literal["write-write", "read-write", "write-read", "freed", "reused"]
    first: _Side
    second: _Side
    missing_wait: str
    occurrences: _Count
    shown: _Count
    margin_ns: _Whole = 0
    ranks: list[_Count]
    names: list[_Name]
    examples: list[_Occurrence]
    witness: _Witnessed | _Witness | None = None


class _WrongParameter(_Part):
    step: _Count
    micro_batch: _Count
    phase: str
    rank: _Count
    name: str
    parts: list[_Count]
    bad: _Count
    ranks: list[_Count]


class _WrongLoss(_Part):
    step: _Count
    micro_batch: _Count
    rank: _Count
    value: _Number
    reference: _Number


class _Divergence(_Part):
    parameter: _WrongParameter | None
    loss: _WrongLoss | None
    final: list[str]
    growth: list[Annotated[list[_Number], Field(min_length=2, max_length=2)]]
    compared: _Count


class _Stale(_Part):
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


class _Uncovered(_Part):
    kernel: str
    stack: list[_Frame]
    reads: _Count
    nbytes: _Count
    names: list[str]
    ranks: list[_Count]


def _known(verdict: str) -> str:
    if verdict not in VERDICTS:
        raise ValueError(f"'{verdict}' is no verdict")
    return verdict


class _Held(_Part):
    sentence: str
    races: list[RaceModel]


class _Rests(_Part):
    held: list[_Held]
    unexamined: _Count
    unexercised: list[str]


class _Checked(_Rests):
    seen: str
    unseen: list[str]


class FindingsFile(_Part):
    """``findings.json``, in the order in which :meth:`reports.data.findings.Findings.as_dict` writes it.

    ``checked``: of a program of the user's own (:class:`reports.data.checked.Checked`). ``rests``: what the verdict on
    a clean scenario rests on.
    """

    format: str
    version: _Count
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
    rests: _Rests | None = None
    races: list[RaceModel]
    virtual_ns_per_step: _Finite | None = None
    host_blocked_ns_per_step: _Finite | None = None
    scenario: dict[str, Any]
    profile: dict[str, Any] = {}
    versions: dict[str, str]


class _Lines(_Part):
    file: str
    line: Annotated[int, Field(ge=1, le=_LARGEST)]
    first: Annotated[int, Field(ge=1, le=_LARGEST)]
    text: list[str]


class SourcesFile(_Part):
    """``sources.json``, as :func:`reports.data.sources.kept` makes it."""

    format: str
    version: _Count
    sources: list[_Lines]


def checked(model: type[Model], file: Path, data: Mapping[str, Any], *, named: str, version: int) -> Model:
    """``data`` as what it must be: of the format ``named``, no newer than ``version``. Raises :class:`ReportError`."""
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
        return model.model_validate(data)
    except (ValidationError, RecursionError) as error:
        raise ReportError(f"{file} does not hold what a run writes: {_first(error)}. {_WHERE_FROM}") from None


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises :class:`ReportError`, also for numbers that JSON does not have (NaN)."""
    try:
        text = file.read_text(encoding="utf-8")
        data = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except OSError as error:
        raise ReportError(f"{file} cannot be read: {error.strerror or error}. See whether it may be read") from error
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{file} is cut off or is not JSON: {_short(str(error))}. {_WHERE_FROM}") from None
    if not isinstance(data, dict):
        raise ReportError(f"{file} does not hold what a run writes: it is no JSON object. {_WHERE_FROM}")
    # Half a character, which JSON can escape, stops everything that writes text later.
    whole: dict[str, Any] = _whole(data) if "\\ud" in text.lower() else data
    return whole


def does_not_hold(file: Path, what: str) -> ReportError:
    """The error for a table that is not what a run writes."""
    return ReportError(f"{file} does not hold what a run writes: {_short(what)}. {_WHERE_FROM}")


def _refuse(constant: str) -> float:
    raise ValueError(f"it holds {_short(constant)}, which is no number there")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits)  # 1e999


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(one) for key, one in value.items()}
    return value


def _first(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return _short(f"{where}: {first['msg']}")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_PROBLEM else f"{line[:_LONGEST_PROBLEM]} …"
