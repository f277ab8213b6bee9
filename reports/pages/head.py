"""Builds the head of a page: its subject, when and by what it was written, where it ran, what was removed.

A page is sent around without its folder, so that all of this has to be on the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from streamrace.reports.data.campaigns import CampaignFolder
from streamrace.reports.data.differences import taken_away
from streamrace.reports.data.loading import ReadRun, Run
from streamrace.reports.data.stamp import model_of, written
from streamrace.trace import wording

_NAMED = 4  # runs in the title
_FILES = ("findings.json", "timings.json", "scenario.json", "check.json")  # files whose date is the folder's


class Head(NamedTuple):
    """The head of a page. ``facts``: name and value of each."""

    title: str
    facts: Sequence[tuple[str, str]]


def of_runs(runs: Sequence[Run]) -> Head:
    """Return the head of a report of runs, of scenarios or of a program of the user's own."""
    return _head("Stream race report", [(run.name, run.folder, run.file.scenario, run.file.versions) for run in runs])


def of_explained(run: ReadRun, number: int) -> Head:
    """Return the head of the explanation of one of a run's races."""
    return _head(f"Race {number}, explained", [(run.name, run.folder, run.file.scenario, run.file.versions)])


def of_campaigns(campaigns: Sequence[CampaignFolder]) -> Head:
    """Return the head of a report of timings."""
    rows = [(entry.name, entry.folder, entry.data["scenario"], entry.data["versions"]) for entry in campaigns]
    return _head("Timings report", rows)


def _head(title: str, rows: Sequence[tuple[str, Path, dict[str, object], dict[str, str]]]) -> Head:
    names = [name for name, *_ in rows]
    hardware = _each(str(scenario.get("hardware") or "") for _, _, scenario, _ in rows)
    away = [(name, taken_away(scenario, versions)) for name, _, scenario, versions in rows]
    facts = [
        ("model", _each(model_of({"scenario": scenario}) for _, _, scenario, _ in rows if "model" in scenario)),
        ("made", _each(written(*(folder / name for name in _FILES)) for _, folder, _, _ in rows)),
        (
            "by",
            _each(
                f"streamrace {value}" for *_, row in rows if (value := row.get("streamrace") or row.get("stream-races"))
            ),
        ),
        ("where", _each(_where(scenario, hardware) for _, _, scenario, _ in rows)),
        *((f"taken away in {name}" if len(rows) > 1 else "taken away", line) for name, line in away if line),
    ]
    return Head(f"{title}: {wording.few(names, _NAMED)}", [(name, text) for name, text in facts if text])


def _where(scenario: Mapping[str, object], hardware: str) -> str:
    if scenario.get("on_gpu"):
        return "recorded on a GPU: when work ran there is not known"
    profile = f", those of the hardware profile {hardware}" if hardware else ""
    return f"on simulated GPUs: no GPU took part, and times are virtual{profile}"


def _each(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, texts)))
