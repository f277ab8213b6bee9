"""What a study leaves in its folder, written and read: beside its tables how it was made, so that the report can be
made again.

``study.json`` says which study it was, and how it was asked. Nothing in a folder is trusted: what does not fit is
refused in one sentence (:class:`reports.data.schema.ReportError`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict

from reports.data import frames
from reports.data.schema import ReportError, checked, does_not_hold, read_json
from reports.pages import html
from reports.pages.study_page import Study

NOTE = "study.json"
FORMAT = "stream-race-study-note"
VERSION = 1


class Ran(BaseModel):
    """How a study was made. ``study``: which; ``options``: of its job, those that the study itself decides left out;
    ``hardware``: what the profile stands for, in words.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    study: Literal["sweep", "placements", "releases"]
    command: str
    versions: dict[str, str]
    options: dict[str, Any] = {}
    hardware: str = ""


class _Note(Ran):
    format: str
    version: int


def note(folder: Path, ran: Ran) -> None:
    """Write ``study.json``. Raises :class:`ReportError`."""
    data = {"format": FORMAT, "version": VERSION, **ran.model_dump()}
    try:
        html.write(json.dumps(data, indent=2, default=str) + "\n", folder / NOTE)
    except OSError as error:
        raise ReportError(f"cannot write into {folder}: {error.strerror or error}; choose another --name") from error


def is_study(folder: Path) -> bool:
    return (folder / NOTE).is_file()


def load(folder: Path) -> Study:
    """The study of a folder. Raises :class:`ReportError`."""
    read = checked(_Note, folder / NOTE, read_json(folder / NOTE), named=FORMAT, version=VERSION)
    # Each has its own file, which asks the study's: importing that takes seconds.
    if read.study == "sweep":
        from reports.pages.sweep_page import load as read_sweep

        return read_sweep(folder, read)
    if read.study == "placements":
        from reports.pages.placements_page import load as read_placements

        return read_placements(folder, read)
    from reports.pages.releases_page import load as read_releases

    return read_releases(folder, read)


def table(file: Path, columns: Mapping[str, str]) -> pd.DataFrame:
    """See :func:`reports.data.frames.read`. A study leaves a number out that it has not, and has something to
    tell: a table without rows is refused too.
    """
    frame = frames.read(file, columns, nothing={name: "" for name, kind in columns.items() if kind == "float64"})
    if frame.empty:
        raise does_not_hold(file, "it has no row")
    return frame


def said(options: Mapping[str, Any]) -> dict[str, str]:
    """Options as texts."""
    return {
        str(name): value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for name, value in options.items()
    }
