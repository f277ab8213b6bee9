"""What a clean scenario's verdict rests on: waits that order by chance, and what was on and never happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from detectors import find_races
from detectors.confidence.holding import Waits, holding
from reports.data import findings as findings_file
from reports.data import sources
from reports.data.findings import Findings, Verdict
from repro.sessions.checked import MECHANISMS
from simgpu.trace import TraceRecord


def rests_on(found: Findings, folder: Path, doing: Callable[[str], None]) -> Findings:
    """The findings of a clean run with what they rest on, written into its ``folder`` anew; others as they are.

    ``doing`` is told what goes on.
    """
    if found.verdict is not Verdict.CLEAN or found.failure:
        return found
    doing("looking at what the verdict rests on")
    trace = folder / "trace"
    waits, mechanisms = Waits(), [one() for one in MECHANISMS]

    def show(rank: int, records: list[TraceRecord]) -> None:
        waits.feed(rank, records)
        for one in mechanisms:
            one.feed(rank, records)

    find_races(trace, beside=show)
    held = holding(waits, lambda keep: find_races(trace, keep=keep, examples=None))
    unexercised = [sentence for one in mechanisms for sentence in one.unexercised()]
    found = replace(found, holding=held, unexercised=unexercised)
    sources.write([race for one in held.held for race in one.races], folder)
    findings_file.write(found, folder)
    return found
