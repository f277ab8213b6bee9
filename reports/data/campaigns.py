"""Reads the folder of a fuzzing campaign (``timings.json``). Nothing in it is trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import pandas as pd
from pydantic import Field, model_validator

from streamrace.detectors import Race
from streamrace.reports.data import schema, sources
from streamrace.reports.data.matrix import RANDOM, Tried
from streamrace.reports.data.sources import Source
from streamrace.reports.data.switched import switched

COLUMNS = {
    "number": "int64",
    "diverged": "bool",
    "wrong_values": "int64",
    "bad_numbers": "int64",
    "loss_difference": "float64",
    "first_wrong": "str",
    "departed": "bool",
}
_Count = Annotated[int, Field(ge=0, le=2**53)]


class _Row(schema.Part):
    number: _Count
    diverged: bool
    wrong_values: _Count
    bad_numbers: _Count
    loss_difference: float | None
    first_wrong: str
    departed: bool


class _Campaign(schema.Part):
    timings: _Count
    own: _Count | None = None
    diverged: _Count
    outcomes: _Count | None = None
    twice: _Count = 0
    first: _Count | None
    minimal: bool
    shrinking: _Count
    interrupted: bool
    rows: list[_Row]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.diverged > self.timings:
            raise ValueError(f"{self.diverged} of {self.timings} timings are said to have diverged")
        if self.own is not None and self.own > self.timings:
            raise ValueError(f"{self.own} of {self.timings} timings are said to have an order of their own")
        return self


class _Verdict(schema.Part):
    diverged: bool
    sentence: str


class CampaignWitness(schema.Part):
    race: Race
    token: str | None
    reason: str | None
    harmful: bool
    verdict: _Verdict | None


class TimingsFile(schema.File):
    """``timings.json``, as :func:`streamrace.reports.screen.timings.write` writes it."""

    NAME = "timings.json"
    format: str = "stream-race-timings"
    scenario: dict[str, Any]
    campaign: _Campaign
    token: str | None
    smallest: list[str] = []
    live: str | None
    confirmed: bool | None
    races: list[CampaignWitness]
    versions: dict[str, str] = {}


@dataclass(frozen=True)
class CampaignFolder:
    """A campaign's folder, read.

    ``data``: ``timings.json``, checked; ``witnesses``: of the campaign's races.

    ``timings``: a row per executed timing: number, diverged, wrong_values, bad_numbers (not finite), loss_difference
    (NaN: a loss is NaN), first_wrong, departed (the host read another value, so its program might take another branch).
    ``sources``: as of a run (:class:`streamrace.reports.data.loading.Run`).
    """

    name: str
    folder: Path
    data: Mapping[str, Any]
    witnesses: Sequence[CampaignWitness]
    timings: pd.DataFrame
    sources: Mapping[str, Source]

    @property
    def fix(self) -> str:
        """The switch of the campaign: see :func:`streamrace.reports.data.switched.switched`."""
        return switched(self.data["scenario"], self.data["versions"], self.name)

    @property
    def tried(self) -> Tried:
        """The campaign's entry in the matrix of fixes and timings."""
        found = self.data["campaign"]
        return Tried(self.fix, RANDOM, found["diverged"], found["timings"])


def is_campaign(folder: Path) -> bool:
    return (folder / TimingsFile.NAME).is_file()


def load(folder: Path) -> CampaignFolder:
    """Read the folder of a campaign. Raises :class:`streamrace.reports.data.loading.ReportError`."""
    data = schema.read_json(folder / TimingsFile.NAME)
    found = TimingsFile.parsed(folder / TimingsFile.NAME, data)
    rows = [tuple(getattr(row, name) for name in COLUMNS) for row in found.campaign.rows]
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    model = found.model_dump(mode="json") | data
    return CampaignFolder(folder.resolve().name, folder, model, found.races, frame, sources.read(folder))
