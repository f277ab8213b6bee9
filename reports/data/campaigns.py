"""Reads the folder of a fuzzing campaign (``timings.json``). Nothing in it is trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import pandas as pd
from pydantic import PlainSerializer, model_validator

from streamrace.detectors import Race
from streamrace.reports.data import schema, sources
from streamrace.reports.data.differences import switched
from streamrace.reports.data.matrix import RANDOM, Tried
from streamrace.reports.data.sources import Source

COLUMNS = {
    "number": "int64",
    "diverged": "bool",
    "wrong_values": "int64",
    "bad_numbers": "int64",
    "loss_difference": "float64",
    "first_wrong": "str",
    "departed": "bool",
}


class _Row(schema.JsonPart):
    number: int
    deviations: str = ""
    diverged: bool
    wrong_values: int
    bad_numbers: int
    loss_difference: float | None
    first_wrong: str
    departed: bool


class _Campaign(schema.JsonPart):
    timings: int
    own: int | None = None
    diverged: int
    outcomes: int | None = None
    twice: int = 0
    first: int | None
    minimal: bool
    shrinking: int
    reused: int = 0
    from_database: bool = False
    interrupted: bool
    smallest: str | None = None
    rows: list[_Row]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.diverged > self.timings:
            raise ValueError(f"{self.diverged} of {self.timings} timings are said to have diverged")
        if self.own is not None and self.own > self.timings:
            raise ValueError(f"{self.own} of {self.timings} timings are said to have an order of their own")
        return self


class _Verdict(schema.JsonPart):
    diverged: bool
    wrong: int = 0
    first: dict[str, Any] | None = None
    bad: int = 0
    loss: float | None = None
    final: bool = False
    departure: str | None = None
    sentence: str
    live: str | None = None
    confirmed: bool | None = None


class CampaignWitness(schema.JsonPart):
    race: Annotated[Race, PlainSerializer(Race.as_dict)]
    token: str | None
    deviations: str = ""
    reason: str | None
    harmful: bool
    verdict: _Verdict | None


class TimingsFile(schema.JsonFile):
    """``timings.json``. ``smallest``: the smallest timing that diverges, in words."""

    NAME = "timings.json"
    _ascii = True
    format: str = "stream-race-timings"
    scenario: dict[str, Any]
    campaign: _Campaign
    token: str | None
    smallest: list[str] = []
    versions: dict[str, str] = {}
    live: str | None
    confirmed: bool | None
    races: list[CampaignWitness]


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
        """The switch of the campaign: see :func:`streamrace.reports.data.differences.switched`."""
        return switched(self.data["scenario"], self.data["versions"], self.name)

    @property
    def tried(self) -> Tried:
        """The campaign's entry in the matrix of fixes and timings."""
        result = self.data["campaign"]
        return Tried(self.fix, RANDOM, result["diverged"], result["timings"])


def is_campaign(folder: Path) -> bool:
    return (folder / TimingsFile.NAME).is_file()


def load(folder: Path) -> CampaignFolder:
    """Read the folder of a campaign. Raises :class:`streamrace.reports.data.loading.ReportError`."""
    data = schema.read_json(folder / TimingsFile.NAME)
    timings = TimingsFile.parsed(folder / TimingsFile.NAME, data)
    rows = [tuple(getattr(row, name) for name in COLUMNS) for row in timings.campaign.rows]
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    model = timings.model_dump(mode="json") | data
    return CampaignFolder(folder.resolve().name, folder, model, timings.races, frame, sources.read(folder))
