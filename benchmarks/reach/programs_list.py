"""Reads the list of public programs (``benchmarks/reach.toml``)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

LIST = Path(__file__).resolve().parents[1] / "reach.toml"
FOLDER = Path(__file__).with_name("programs")


class _Family(BaseModel):
    model_config = ConfigDict(extra="forbid")

    file: str
    packages: list[str]
    programs: list[str]
    ranks: int = 0
    gpus: int = 1
    alone: str = ""
    own_fault: str = ""


class _List(BaseModel):
    model_config = ConfigDict(extra="forbid")

    family: list[_Family]


@dataclass(frozen=True)
class Program:
    """A public program.

    ``alone``: why its values are not compared with those on the CPU; empty: they are. ``own_fault``: why it fails by
    itself; empty: it should run.
    """

    name: str
    file: Path
    arguments: tuple[str, ...]
    packages: tuple[str, ...]
    ranks: int
    gpus: int
    alone: str
    own_fault: str = ""


def _named(family: _Family, words: list[str]) -> str:
    if family.file == "github_script.py":
        repository, _, script, *_ = words
        return f"{repository} {script}" + (f", {family.ranks} ranks" if family.ranks else "")
    return f"{Path(family.file).stem.partition('_')[0]} {' '.join(words)}"


def programs() -> Iterator[Program]:
    """Yield the programs in the order of the list. Raise ValidationError if the list is wrong."""
    for family in _List.model_validate(tomllib.loads(LIST.read_text(encoding="utf-8"))).family:
        for words in family.programs:
            name = _named(family, words.split())
            packages = tuple(family.packages)
            file, arguments = FOLDER / family.file, tuple(words.split())
            yield Program(name, file, arguments, packages, family.ranks, family.gpus, family.alone, family.own_fault)
