"""Reads the assumptions about hardware and NCCL, each with its source, from ``facts.toml``, the only file of them.

A fact is a table with ``value`` and ``source``, and ``unit`` if it has one. Facts of one subject share a section. No
figure is fitted to a row of a paper that is predicted with it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).with_name("facts.toml")


class Assumed(NamedTuple):
    """``value``: a number, a text, or a list (a curve); ``source``: a paper, a page, or a file and its function."""

    name: str
    value: Any
    unit: str
    source: str


def facts(prefix: str = "", file: Path = FILE) -> dict[str, Assumed]:
    """Return the facts whose name (``section.subsection.name``) begins with ``prefix``. ``file``: of the same form."""
    return {name: entry for name, entry in _all(file).items() if name.startswith(prefix)}


def fact(name: str, file: Path = FILE) -> Any:
    """Return the value of a fact. Raise KeyError for an unknown name."""
    return _all(file)[name].value


@cache
def _all(file: Path) -> dict[str, Assumed]:
    return {entry.name: entry for entry in _read(tomllib.loads(file.read_text(encoding="utf-8")), ())}


def _read(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Assumed]:
    name = ".".join(path)
    if "value" in table:
        if not str(table.get("source", "")).strip() or table.keys() - {"value", "unit", "source"}:
            raise ValueError(f"{FILE.name}: {name} has no source, or something beside value, unit and source")
        yield Assumed(name, table["value"], str(table.get("unit", "")), str(table["source"]))
        return
    for key, below in table.items():
        if not isinstance(below, Mapping):
            raise ValueError(f"{FILE.name}: {'.'.join((*path, key))} is no table with a value and its source")
        yield from _read(below, (*path, key))
