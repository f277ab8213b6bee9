"""Keeps a study's metadata in its folder (``study.json``): which study it was, and with which options, so that its
report can be built again.

Nothing in a folder is trusted: contents that do not fit are refused in one sentence
(:class:`streamrace.reports.data.schema.ReportError`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from pydantic import field_validator

from streamrace.reports.data.schema import JsonFile, ReportError
from streamrace.reports.data.stamp import written
from streamrace.reports.pages import html, study_page
from streamrace.reports.pages.study_page import StudyMetadata, StudyReport
from streamrace.studies import registry

NOTE = "study.json"
_OTHERS = ("releases", "catalogue", "waits", "fix")  # each has a page of its own: its results are no table


class _Note(StudyMetadata, JsonFile):
    NAME = NOTE
    format: str = "stream-race-study-note"
    version: int = 1

    @field_validator("study")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in (*registry.STUDIES, *_OTHERS):
            raise ValueError("no study of this release")
        return name


def note(folder: Path, ran: StudyMetadata) -> None:
    """Write ``study.json``. Raises :class:`ReportError`."""
    data = _Note(**ran.model_dump()).model_dump()
    try:
        html.write(json.dumps(data, indent=2, default=str) + "\n", folder / NOTE)
    except OSError as error:
        raise ReportError(f"cannot write into {folder}: {error.strerror or error}; choose another --name") from error


def is_study(folder: Path) -> bool:
    return (folder / NOTE).is_file()


def load(folder: Path) -> StudyReport:
    """Load the study of a folder. Raises :class:`ReportError`."""
    read = _Note.read(folder)
    report: StudyReport
    if read.study in registry.STUDIES:
        report = study_page.load(folder, read)
    else:
        # A page imports its study, which takes seconds: import only the page that is needed.
        report = import_module(f"streamrace.reports.pages.{read.study}_page").load(folder, read)
    return replace(report, when=written(folder / NOTE))
