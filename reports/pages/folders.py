"""Builds one report of the named folders: a study alone, dry runs, or runs and campaigns together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from streamrace.reports.data import campaigns, dry, loading
from streamrace.reports.data.campaigns import CampaignFolder
from streamrace.reports.data.dry import DryFolder
from streamrace.reports.data.findings import Findings
from streamrace.reports.data.loading import ReportError, Run
from streamrace.reports.pages import (
    bundle,
    campaign_page,
    dry_page,
    dry_runs_page,
    html,
    run_page,
    study_folder,
    study_page,
    summary,
)
from streamrace.reports.pages.study_page import StudyReport


def page(folders: Sequence[Path]) -> str:
    """Return the page. Raises :class:`ReportError` if a folder cannot be read, or the folders cannot be compared."""
    alone, runs, tried = _read(folders)
    if isinstance(alone, DryFolder):
        return dry_page.page(alone)
    if alone is not None:
        return study_page.page(alone)
    if not runs:
        campaign_page.comparable(tried)
        return campaign_page.page(tried)
    return run_page.page(runs, (), tried)


def write(folders: Sequence[Path], target: Path, findings: Mapping[Path, Findings] = MappingProxyType({})) -> str:
    """Write the report, page and files, into the folder ``target``; return its headline. ``found``: findings that are
    known and need not be read, by folder.

    Raises :class:`ReportError`, also if ``target`` cannot be written.
    """
    alone, runs, tried = _read(folders, findings)
    with _writing(target):
        if isinstance(alone, DryFolder):
            return dry_page.write(alone, target)
        if alone is not None:
            study_page.write(alone, target)
            return alone.sentence
        if not runs:
            return campaign_page.write(tried, target)
        files = run_page.told_of(bundle.write(runs, target))
        html.write(run_page.page(runs, files, tried), target / "index.html")
        return summary.headline(runs)


def refuse_link(target: Path) -> None:
    """Raise :class:`ReportError` if the report's folder is a link: it may have come with the reported folder, and lead
    to somebody else's.
    """
    if target.is_symlink():
        raise ReportError(
            f"{target} is a link, and a report is not written through one: remove it, or choose the folder that is "
            "meant by --output"
        )


def _read(
    folders: Sequence[Path], findings: Mapping[Path, Findings] = MappingProxyType({})
) -> tuple[StudyReport | DryFolder | None, list[Run], list[CampaignFolder]]:
    for folder in folders:
        if not study_folder.is_study(folder):
            continue
        if len(folders) > 1:
            raise ReportError(f"{folder} is a study, which cannot be compared: make its report alone")
        return study_folder.load(folder), [], []
    if rehearsed := [folder for folder in folders if dry.is_dry(folder)]:
        if other := next((folder for folder in folders if folder not in rehearsed), None):
            if not campaigns.is_campaign(other):
                loading.load(other)  # whose error tells more of what is no run
            raise ReportError(
                f"{rehearsed[0]} is a dry run and {other} is none, and they cannot be compared: name dry runs alone"
            )
        read = [dry.load(folder) for folder in folders]
        return dry_runs_page.compared(read) if len(read) > 1 else read[0], [], []
    tried = [folder for folder in folders if campaigns.is_campaign(folder)]
    runs = [loading.load(folder, findings.get(folder)) for folder in folders if folder not in tried]
    loading.comparable(runs)
    return None, runs, [campaigns.load(folder) for folder in tried]


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    refuse_link(target)
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise ReportError(f"cannot write the report into {target}: {why}; choose another --output") from error
