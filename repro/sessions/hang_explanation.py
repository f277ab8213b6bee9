"""Explains a hang of a run, or an order that may hang, from the run's folder alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from streamrace.detectors import Hang, MayHang
from streamrace.detectors.files import read
from streamrace.detectors.hang.history import History
from streamrace.detectors.hangs import Issue
from streamrace.device.scripts import WrongUse
from streamrace.reports.data import dry, loading
from streamrace.reports.data.loading import ReadRun
from streamrace.reports.text.hang import HangTelling, telling
from streamrace.trace.records import TraceError


def explain(folder: Path, wanted: str) -> HangTelling | None:
    """Explain hang number ``wanted``: see :func:`chosen`."""
    selection = chosen(folder, wanted)
    return telling(selection[1], int(wanted), _last(folder / "trace")) if selection is not None else None


def chosen(folder: Path, wanted: str) -> tuple[ReadRun, Hang | MayHang] | None:
    """Return the run, and its hang number ``wanted``; None for a run that has races, or neither races nor hangs.

    Raises :class:`WrongUse`, :class:`streamrace.reports.data.schema.ReportError`.
    """
    if dry.is_dry(folder):
        return None
    run = loading.load(folder)
    basis = run.file.checked
    found: list[Hang | MayHang] = [*basis.hangs, *basis.may_hang] if basis is not None else []
    if run.file.races or not found:
        return None
    if not (wanted.isascii() and wanted.isdigit() and 1 <= int(wanted[:9]) <= len(found)):
        raise WrongUse(f"{folder} has no race, and no hang '{wanted}': give a number from 1 to {len(found)}")
    return run, found[int(wanted) - 1]


def _last(traces: Path) -> Mapping[int, Sequence[Issue]]:
    history = History()
    try:
        read(traces, [history], kept=True)
    except (TraceError, OSError):
        return {}
    return history.last()
