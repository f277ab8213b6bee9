"""Decides whether a smaller program still hangs, or may hang, in the same way.

A hang is known again by what does not fit, and by the functions of the calls that show it, because lines move.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import NamedTuple

from streamrace.detectors import Hang, MayHang
from streamrace.detectors.base import found_by
from streamrace.detectors.files import read
from streamrace.detectors.hang.detector import Hangs
from streamrace.device.timing import Timing
from streamrace.fuzz.live.runs import Runner
from streamrace.fuzz.live.standalone import Alone, AloneRuns, standing
from streamrace.fuzz.reduction.search import Files
from streamrace.trace.records import Frame, TraceError


class HangKey(NamedTuple):
    """A hang without its lines. ``calls``: of each call that shows it, the operation, its file and its function."""

    kind: str
    calls: tuple[tuple[str, str, str], ...]


def key_of(finding: Hang | MayHang) -> HangKey:
    """Return by what a finding is known again."""
    if isinstance(finding, Hang):
        issues = [stand.issue or stand.last for stand in (finding.first, finding.second)]
    else:
        issues = [issue for step in finding.circle for issue in (step.earlier, step.later)]
    kind = finding.kind if isinstance(finding, Hang) else f"may hang, {finding.kind}"
    calls = [(issue.kernel, *_place(issue.stack)) for issue in issues if issue is not None]
    return HangKey(kind, tuple(sorted(set(calls))))


def _place(stack: tuple[Frame, ...]) -> tuple[str, str]:
    return (PurePath(stack[0].file).name, stack[0].function) if stack else ("", "")


def hangs_of(runs: AloneRuns, timing: Timing) -> tuple[list[Hang | MayHang], str]:
    """Run the program; return its hangs, and why nothing is known of them (empty: all is known)."""
    first, traces = runs.keep(timing)
    if first.status is None:
        return [], f"it did not end within {runs.patience_s:.0f} s"
    detector = Hangs()
    try:
        read(traces, [detector])
    except TraceError as problem:
        return [], str(problem)
    found: list[Hang | MayHang] = [*found_by([detector], Hang), *found_by([detector], MayHang)]
    if first.status and not any(isinstance(finding, Hang) for finding in found):
        return [], f"it ends with status {first.status}, and does not hang"
    return found, ""


@dataclass
class ShowsHang:
    """Predicate: a program still has the hang ``wanted``. ``program``: how to run it; a trial replaces its files."""

    program: Alone
    wanted: HangKey
    timing: Timing
    runner: Runner
    patience_s: float

    def __call__(self, files: Files) -> bool:
        return self.look(files)[0] is not None

    def look(self, files: Files) -> tuple[Hang | MayHang | None, str]:
        """Run the program; return its hang, or None and why it has none. Raises RuntimeError: no GPU."""
        with standing(replace(self.program, files=files), self.runner, self.patience_s) as runs:
            found, why = hangs_of(runs, self.timing)
        hang = next((finding for finding in found if key_of(finding) == self.wanted), None)
        return hang, "" if hang is not None else why or f"it has {len(found)} hangs, and not this one"
