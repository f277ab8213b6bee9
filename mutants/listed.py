"""Reads the lists of mutants: TOML files, each with the tests that must notice its mutants."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LISTS = Path(__file__).with_name("lists")


@dataclass(frozen=True)
class Mutant:
    """A change of ``old``, which occurs once in ``file``, to ``new``; ``tests`` run in ``environment``.

    ``equivalent``: why nobody can notice the change, in one line; empty where the tests must.
    """

    listed: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    equivalent: str = ""


def names() -> list[str]:
    return sorted(path.stem for path in LISTS.glob("*.toml"))


def read(listed: str) -> list[Mutant]:
    """Read the mutants of one list."""
    content = tomllib.loads((LISTS / f"{listed}.toml").read_text(encoding="utf-8"))
    environment = tuple(sorted(content.get("environment", {}).items()))
    return [
        Mutant(
            listed,
            one["name"],
            one["file"],
            one["old"],
            one["new"],
            tuple(one.get("tests", content["tests"])),
            environment,
            one.get("equivalent", ""),
        )
        for one in content["mutant"]
    ]


def out_of_date(mutant: Mutant, root: Path = ROOT) -> str:
    """Return why the mutant cannot be applied, in a sentence; empty where it can."""
    path = root / mutant.file
    if not path.exists():
        return f"{mutant.file} is not there any more"
    times = path.read_text(encoding="utf-8").count(mutant.old)
    if times != 1:
        return f"what is changed stands {times} times in {mutant.file}, not once"
    missing = [test for test in mutant.tests if not (root / test).exists()]
    return f"there is no {missing[0]}" if missing else ""
