"""Proposes a cure for each finding of a short run, from its traces alone; ``streamrace fix`` tries cures live."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from streamrace.device.scripts import WrongUse
from streamrace.reports.data import sources
from streamrace.reports.data.checkout import top
from streamrace.reports.data.cures import Cure, diff_of
from streamrace.reports.data.findings import Findings
from streamrace.reports.data.fixes import FixFile, FixRow
from streamrace.reports.data.schema import ReportError
from streamrace.repro.sessions.fixing.session import fix
from streamrace.repro.sessions.race_selection import Chosen
from streamrace.trace.records import TraceError

_MOST = 3  # findings
_LARGEST = 1_000_000  # bytes of traces, some 20,000 records: a second or two for all candidates of a race


class _Run(NamedTuple):
    name: str
    folder: Path
    file: Findings
    sources: dict[str, sources.Source]


def propose(folder: Path, findings: Findings, tell: Callable[[str], None]) -> list[Cure]:
    """Return a cure for each of the first findings of the run in ``folder``; none if its traces are long."""
    traces = list((folder / "trace").glob("*"))
    thinned = findings.checked is None or findings.checked.thinned
    if thinned or sum(trace.stat().st_size for trace in traces) > _LARGEST:
        return []
    return list(_cures(_Run(folder.name, folder, findings, sources.read(folder)), tell))


def _cures(run: _Run, tell: Callable[[str], None]) -> Iterator[Cure]:
    counting = [found for found in run.file.found if found.suppressed is None]
    for found in counting[:_MOST]:
        chosen = Chosen(run.folder, run, found.number, found.race)
        with suppress(WrongUse, TraceError, ReportError, OSError), tempfile.TemporaryDirectory() as scratch:
            fixes = fix(chosen, Path(scratch), tries=0, tell=tell)
            if (cure := _cure(fixes, run)) is not None:
                yield cure


def _cure(fixes: FixFile, run: _Run) -> Cure | None:
    rows = [row for row in fixes.rows if row.holds and row.diff and not row.left]
    if not rows:
        return None
    row = min(rows, key=_size)
    command = _apply(row.diff, run.folder / diff_of(fixes.number), run.file)
    return Cure(race=fixes.number, words=row.words, cost=row.cost, diff=row.diff, apply=command)


def _size(row: FixRow) -> tuple[bool, bool, int, int, int]:
    """Sort key: certain first, then cheap, then in few files, then short."""
    added = sum(line.startswith("+") and not line.startswith("+++") for line in row.diff.splitlines())
    cost = row.longer_ns if row.longer_ns is not None else sys.maxsize
    return row.by_chance or row.this_owner, bool(row.supposes), cost, row.diff.count("\n+++ "), added


def _apply(diff: str, file: Path, findings: Findings) -> str:
    """Return the command that applies a diff of the program's own files, for the shell in which the check ran."""
    own = set(findings.checked.own.values()) if findings.checked else set()
    changed = [line.removeprefix("+++ b/").rstrip("\n") for line in diff.splitlines() if line.startswith("+++ b/")]
    if not own.issuperset(changed):
        return ""
    root = os.path.relpath(top(Path.cwd()))
    within = "" if root == os.curdir else f" -d {shlex.quote(root)}"
    return f"patch -p1{within} < {shlex.quote(str(file))}"
