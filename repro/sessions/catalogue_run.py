"""Runs an entry of the catalogue: both sides under ``streamrace check``, compared with the expected outcome.

Each side is a process of its own, with its own releases first on the import path; their files are not edited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from streamrace.detectors import Race
from streamrace.detectors import wording as of_accesses
from streamrace.detectors.order.races import Side
from streamrace.detectors.places import at, between
from streamrace.device.options import EAGER
from streamrace.reports.data.catalogue import EntryRow, RanSide
from streamrace.reports.data.findings import Basis
from streamrace.repro.sessions import check_process
from streamrace.scenarios.catalogue.entry import CONTROLS, HANGS, Entry, Setup
from streamrace.trace import wording
from streamrace.trace.files import file_of

LIMIT_S = 600  # for one side, including its installation and the runs of its witness
_CLEAN = ("clean", "fragile")


def run(
    entries: Sequence[Entry], folder: Path, *, workers: int, began: Callable[[Entry], object] = lambda entry: None
) -> Iterator[EntryRow]:
    """Yield the row of each entry as it is done; ``folder`` holds a folder for each. ``began``: called at each start.

    On an exception, such as Ctrl-C, the running processes end with this one.
    """

    def work(entry: Entry) -> EntryRow:
        began(entry)
        return row(entry, folder / entry.id)

    pool = ThreadPoolExecutor(workers)
    try:
        waiting: set[Future[EntryRow]] = {pool.submit(work, entry) for entry in entries}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def row(entry: Entry, folder: Path) -> EntryRow:
    """Run both sides of an entry into ``folder``."""
    row = EntryRow(
        id=entry.id,
        library=entry.library,
        title=entry.title,
        mechanism=entry.mechanism,
        threads=entry.threads,
        kind=entry.kind,
        known=entry.known,
        tried=entry.tried,
        program=str(_shown(entry.path)),
    )
    if not entry.shown:
        return row
    affected = side(entry, entry.affected, folder, "affected", witnesses=entry.races or entry.kind == "uninitialised")
    fixed = side(entry, entry.fixed, folder, "fixed", witnesses=False)
    return row.model_copy(
        update={"affected": affected, "fixed": fixed, "differs": [*differs(entry, affected), *unclean(fixed)]}
    )


def side(entry: Entry, which: Setup, folder: Path, name: str, *, witnesses: bool) -> RanSide:
    """Run one side and return its results. ``folder`` receives the run as ``name``, and the output as NAME.log."""
    words = ["--ranks", str(entry.ranks), "--witnesses", "1" if witnesses else "0"]
    words += ["--gpus", str(entry.gpus)] if entry.gpus > 1 else []
    words += ["--compile", entry.compile] if entry.compile != EAGER else []
    words += [word for place in entry.places if witnesses for word in ("--witness-of", place)]
    words += ["--report"] if entry.kind == "open" and witnesses else []  # for its maintainers
    words += [str(_shown(entry.path)), *which.arguments]
    try:
        findings = check_process.check(words, which.packages, folder, name, limit_s=LIMIT_S)
    except check_process.NoVerdict as failure:
        return RanSide(ran=str(which), verdict="unknown", sentence="", failure=str(failure))
    target = next((race for race in findings.races if between(race, entry.places)), None)
    witness = target.witness if target else None
    return RanSide(
        ran=str(which),
        verdict=findings.verdict,
        sentence=findings.sentence,
        races=len(findings.races),
        accesses=target.kind if target else "",
        lines=[_line(target, access, entry.places) for access in (target.first, target.second)] if target else [],
        evidence=_evidence(findings.checked),
        harm=witness.verdict if witness else "",
        token=witness.token if witness else "",
        command=witness.command if witness else "",
        virtual_ns=findings.checked.virtual_ns if findings.checked else 0,
    )


def _evidence(rests: Basis | None) -> str:
    """Return the first value that is wrong or not the tensor's own, in words; empty if there is none."""
    if rests is None:
        return ""
    words = [f"{item.name}: {item.says}" for item in rests.wrong]
    words += [item.says for items in rests.others.values() for item in items]
    return words[0] if words else ""


def differs(entry: Entry, ran: RanSide) -> list[str]:
    """List the deviations of the affected side from the entry, in sentences without full stops."""
    if ran.failure:
        return [f"the affected side has no verdict: {ran.failure}"]
    if entry.kind in (*HANGS, *CONTROLS):
        problems = [f"{ran.races} races on the affected side of an entry without one"] if ran.races else []
        wanted = f"wrong {entry.kind}" if entry.kind in ("arithmetic", "bounds") else entry.kind
        return [*problems, *([f"the affected side is {ran.verdict}, not {wanted}"] if ran.verdict != wanted else [])]
    if not ran.lines:
        others = f", though {ran.races} others are" if ran.races else ""
        return [f"the race between {wording.every(entry.places)} is not seen{others}"]
    return [f"the race is {ran.harm or 'not confirmed'}, not {entry.harm}"] if ran.harm != entry.harm else []


def unclean(ran: RanSide) -> list[str]:
    """List what the fixed side shows but should not."""
    if ran.failure:
        return [f"the fixed side has no verdict: {ran.failure}"]
    return [] if ran.verdict in _CLEAN else [f"the fixed side is {ran.verdict}: {ran.sentence.rstrip('.')}"]


def forget_traces(folder: Path) -> None:
    """Remove the traces, which are large and reproducible; the results stay."""
    for trace in folder.glob("*/*/trace"):
        rank = 0
        while (file := file_of(trace, rank)).exists():
            file.unlink()
            rank += 1


def _line(race: Race, side: Side, places: Sequence[str]) -> str:
    """Describe an access by its line in the entry: ``write by copy_ (partition_parameters.py:1643 _partition)``."""
    frame = next(
        frame for frame in side.stack if any(at(race, place, replace(side, stack=(frame,))) for place in places)
    )
    return f"{of_accesses.access(side)} ({wording.frame(frame)})"


def _shown(path: Path) -> Path:
    """Return the path relative to the working folder, if it lies below."""
    cwd = Path.cwd()
    return path.relative_to(cwd) if path.is_relative_to(cwd) else path
