"""Reads entries of the catalogue from their programs' heads: TOML within comments, as PEP 723 has metadata.

Between ``# /// catalogue`` and ``# ///`` are the fields of :class:`Entry`; the docstring is above them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from streamrace.scenarios.faults import ScenarioError

PROGRAMS = Path(__file__).parent
LINES = 60
"""The most lines of a program, head and all: it can be read in a minute, and pasted into an issue."""

Kind = Literal[
    "race", "open", "hang", "may-hang", "stale", "arithmetic", "bounds", "uninitialised", "graph-memory", "not-shown"
]
HANGS: tuple[Kind, ...] = ("hang", "may-hang")
"""Kinds whose affected side has the verdict of that name: ranks wait for each other, or may on other hardware."""
CONTROLS: tuple[Kind, ...] = ("stale", "arithmetic", "bounds", "uninitialised", "graph-memory")
"""Kinds that have the symptom of a race but are none."""

_BEGIN, _END = "# /// catalogue", "# ///"
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.+!_-]*\Z")
_PLACE = re.compile(r"[\w.-]+:[\w.<>-]+\Z")
_NEED_TORCH = ("torch", "torch-fsdp")

Text = Annotated[str, Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Setup(_Part):
    """The ``packages`` (NAME==VERSION) and the ``arguments`` that a program is run with."""

    packages: list[str] = []
    arguments: list[str] = []

    @model_validator(mode="after")
    def _names(self) -> Setup:
        for package in self.packages:
            if not _PACKAGE.match(package):
                raise ValueError(f"'{package}' is no package with its version, as deepspeed==0.13.4")
        return self

    def __str__(self) -> str:
        return " ".join([*(package.replace("==", " ") for package in self.packages), *self.arguments]) or "as it is"


class Entry(_Part):
    """A bug. ``path``: its program.

    ``known``: the affected range. ``gpus``, ``compile``: as the options of ``check``. ``places``: file and function of
    the two accesses, as ``file.py:function``, in the order in which the affected side issues them. ``harm``: a
    witness's effect. ``tried``: for kind ``not-shown``, the attempts. ``ci``: one of the dozen that each change is
    tested with. An open bug is one without a fixed release: ``fixed`` runs the affected release with the smallest fix,
    which the program applies itself.
    """

    path: Path
    title: Text
    mechanism: Text
    threads: list[str]
    kind: Kind
    known: Text
    affected: Setup
    fixed: Setup = Setup()
    ranks: Annotated[int, Field(ge=1, le=16)] = 2
    gpus: Annotated[int, Field(ge=1, le=8)] = 1
    compile: Literal["eager", "aot_eager", "inductor"] = "eager"
    places: list[str] = []
    harm: Literal["harmful", "benign", ""] = ""
    tried: str = ""
    ci: bool = False

    @model_validator(mode="after")
    def _whole(self) -> Entry:
        if self.races and (len(self.places) != 2 or not all(_PLACE.match(place) for place in self.places)):
            raise ValueError("a race has two places, as stage3.py:step")
        if self.races != bool(self.harm):
            raise ValueError("a race says harm = harmful or benign, and nothing else does")
        if (self.kind == "not-shown") != bool(self.tried):
            raise ValueError("what is not shown says what was tried, and nothing else does")
        if self.shown and self.affected == self.fixed:
            raise ValueError("its two sides are the same")
        return self

    @cached_property
    def id(self) -> str:
        """Return the program's name, as ``ds5059``."""
        return self.path.stem.replace("_", "-")

    @property
    def library(self) -> str:
        """Return the name of the program's folder."""
        return self.path.parent.name

    @property
    def races(self) -> bool:
        return self.kind in ("race", "open")

    @property
    def shown(self) -> bool:
        return self.kind != "not-shown"

    @property
    def other_torch(self) -> bool:
        """Check whether the entry needs another torch than the environment's."""
        return any(pkg.split("==")[0] in _NEED_TORCH for side in (self.affected, self.fixed) for pkg in side.packages)


def read(path: Path) -> Entry:
    """Read the entry of a program. Raises :class:`streamrace.scenarios.base.ScenarioError`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        begin = lines.index(_BEGIN)
        end = lines.index(_END, begin)
        head = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[begin + 1 : end])
        return Entry(path=path, **tomllib.loads(head))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        prefix = f"{where}: " if where else ""
        raise ScenarioError(f"{path} is no entry of the catalogue: {prefix}{first['msg']}") from None
    except (ValueError, TypeError) as error:
        raise ScenarioError(f"{path} is no entry of the catalogue: {error}") from None


def entries(folder: Path = PROGRAMS) -> list[Entry]:
    """Read all entries, by library and id. Raises :class:`streamrace.scenarios.base.ScenarioError`."""
    # A name that begins with _ is shared by programs; the folder's own modules are no entries.
    if not folder.is_dir():
        raise ScenarioError(f"{folder} is no folder: --programs names one with entries, as LIBRARY/ID.py")
    paths = sorted(path for path in folder.glob("*/*.py") if not path.name.startswith("_"))
    return sorted(map(read, paths), key=lambda entry: (entry.library, _numbers(entry.id)))


def named(ids: Sequence[str], of: Sequence[Entry]) -> list[Entry]:
    """Select the entries of ``ids``, in the order of ``of``. Raises :class:`ScenarioError` for an unknown id."""
    known_ids = {entry.id for entry in of}
    for wanted in ids:
        if wanted not in known_ids:
            part = wanted.strip("#").lower()
            near = [other for other in sorted(known_ids) if part in other] or get_close_matches(part, sorted(known_ids))
            raise ScenarioError(
                f"'{wanted}' is not in the catalogue: "
                + (f"is it {' or '.join(near)}?" if near else "'streamrace catalogue --list' tells what is")
            )
    return [entry for entry in of if entry.id in ids]


def _numbers(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which 606 comes before 5059."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
