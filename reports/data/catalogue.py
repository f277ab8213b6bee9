"""Writes and reads the results of the catalogue's command: ``catalogue.json``, a row per entry."""

from __future__ import annotations

import re

from streamrace.reports.data.schema import JsonFile, JsonPart
from streamrace.scenarios.catalogue.entry import Kind
from streamrace.studies.table import Cell


class RanSide(JsonPart):
    """One side of an entry. ``ran``: packages and arguments, in words. ``verdict``: of ``streamrace check``.

    ``races``: their count. ``accesses`` (such as write-read) and ``lines``: of the race that the entry describes; empty
    if that race was not found. ``evidence``: the first wrong value, if any. ``harm``, ``token``, ``command``: of the
    race's witness. ``failure``: why no verdict was reached. ``virtual_ns``: virtual time at the end of the last work of
    all ranks.
    """

    ran: str
    verdict: str
    sentence: str
    races: int = 0
    accesses: str = ""
    lines: list[str] = []
    evidence: str = ""
    harm: str = ""
    token: str = ""
    command: str = ""
    failure: str = ""
    virtual_ns: int = 0


class EntryRow(JsonPart):
    """An entry, both sides, and deviations from the expected result: ``differs``, sentences without full stops."""

    id: str
    library: str
    title: str
    mechanism: str
    threads: list[str]
    kind: Kind
    known: str
    tried: str = ""
    program: str
    affected: RanSide | None = None
    fixed: RanSide | None = None
    differs: list[str] = []

    @property
    def race(self) -> bool:
        return self.kind in ("race", "open")

    @property
    def shown(self) -> bool:
        return self.kind != "not-shown"

    @property
    def cost(self) -> float | None:
        """The cost of an open bug's smallest fix: the fraction by which it lengthens the program's virtual time."""
        if self.kind != "open" or not (self.affected and self.fixed and self.affected.virtual_ns):
            return None
        return self.fixed.virtual_ns / self.affected.virtual_ns - 1


class CatalogueFile(JsonFile):
    """``catalogue.json``. ``versions``: of the software that all entries share."""

    NAME = "catalogue.json"
    format: str = "stream-race-catalogue"
    versions: dict[str, str]
    entries: list[EntryRow]


def cell(ran: RanSide | None) -> Cell:
    """Return a table cell with a side's verdict and the program that ran."""
    if ran is None:
        return Cell("")
    tone = {"race": "bad", "clean": "good"}.get(ran.verdict, "warn")
    return Cell(ran.verdict, tone, ran.ran)


def short(line: str) -> str:
    """Shorten a line of :class:`RanSide` to ``copy_ partition_parameters.py:1643``."""
    match = re.fullmatch(r"\w+ by (.+) \((\S+) .*\)", line)
    return f"{match[1]} {match[2]}" if match else line
