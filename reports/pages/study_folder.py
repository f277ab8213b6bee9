"""Keeps a study's metadata in its folder (``study.json``): which study it was, and with which options, so that its
report can be built again.

Nothing in a folder is trusted: contents that do not fit are refused in one sentence
(:class:`streamrace.reports.data.schema.ReportError`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from streamrace.reports.data.schema import File, ReportError
from streamrace.reports.data.stamp import written
from streamrace.reports.pages import html
from streamrace.reports.pages.study_page import Study, StudyMetadata

NOTE = "study.json"


class _Note(StudyMetadata, File):
    NAME = NOTE
    format: str = "stream-race-study-note"
    version: int = 1


def note(folder: Path, ran: StudyMetadata) -> None:
    """Write ``study.json``. Raises :class:`ReportError`."""
    data = _Note(**ran.model_dump()).model_dump()
    try:
        html.write(json.dumps(data, indent=2, default=str) + "\n", folder / NOTE)
    except OSError as error:
        raise ReportError(f"cannot write into {folder}: {error.strerror or error}; choose another --name") from error


def is_study(folder: Path) -> bool:
    return (folder / NOTE).is_file()


def load(folder: Path) -> Study:
    """Load the study of a folder. Raises :class:`ReportError`."""
    read = _Note.read(folder)
    return replace(_load(folder, read), when=written(folder / NOTE))


def _load(folder: Path, read: StudyMetadata) -> Study:
    # A page imports its study, which takes seconds: import only the page that is needed.
    if read.study == "sweep":
        from streamrace.reports.pages.sweep_page import load as read_sweep

        return read_sweep(folder, read)
    if read.study == "why":
        from streamrace.reports.pages.why_page import load as read_why

        return read_why(folder, read)
    if read.study == "placements":
        from streamrace.reports.pages.placements_page import load as read_placements

        return read_placements(folder, read)
    if read.study == "catalogue":
        from streamrace.reports.pages.catalogue_page import load as read_catalogue

        return read_catalogue(folder, read)
    if read.study == "waits":
        from streamrace.reports.pages.waits_page import load as read_waits

        return read_waits(folder, read)
    if read.study == "fix":
        from streamrace.reports.pages.fix_page import load as read_fix

        return read_fix(folder, read)
    from streamrace.reports.pages.releases_page import load as read_releases

    return read_releases(folder, read)
