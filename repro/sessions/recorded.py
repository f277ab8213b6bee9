"""Judges recordings of a real GPU that are there already, from one machine or several."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path

from streamrace.device.scripts import WrongUse
from streamrace.recorder.launch import PROGRAM
from streamrace.repro.sessions import check_run, folders
from streamrace.repro.sessions.child import ProgramEnd
from streamrace.trace.files import TraceReader, file_of
from streamrace.trace.records import Begin, TraceError


def judge(
    recordings: Path, runs: Path, name: str | None, form: str, output: Path | None,
    *, overwrite: bool, strict: bool, report: bool,
) -> None:  # fmt: skip
    """Copy the recordings into a run's folder, judge them, and exit as 'check' does. Raise :class:`WrongUse`."""
    begins = _begins(recordings)
    first = min(begins.values(), key=lambda begin: begin.rank)
    program = first.info.get(PROGRAM)
    if not isinstance(program, (list, tuple)) or not program or not all(isinstance(word, str) for word in program):
        raise WrongUse(f"{recordings} is no recording of a GPU: its first file does not say which program was recorded")
    request = folders.request(program, module=False, ranks=len(begins), slow={}) | {folders.ON_GPU: True}
    place = runs / (name or f"{folders.name_of([recordings.name])}-{datetime.now():%Y%m%d-%H%M%S}")
    folder = folders.make(place, request, overwrite=overwrite)
    for rank, file in enumerate(sorted(begins, key=lambda file: begins[file].rank)):
        shutil.copyfile(file, file_of(folder / "trace", rank))
    meanwhile = check_run.Meanwhile(folder, request, dry=False, strict=strict)
    telling = check_run.Telling(form, output, report)
    check_run.conclude(ProgramEnd(0), folder, meanwhile, Path.cwd(), None, telling)


def _begins(recordings: Path) -> dict[Path, Begin]:
    """Return the first record of each file. Raise :class:`WrongUse` unless they are those of one job's ranks."""
    if not recordings.is_dir():
        raise WrongUse(f"there is no folder {recordings}: name the one that the program was recorded into")
    files = sorted(recordings.glob("rank*.trace")) or sorted(recordings.glob("trace/rank*.trace"))
    if not files:
        raise WrongUse(f"{recordings} has no recordings (rank0.trace, ...): name the folder that has them")
    found: dict[Path, Begin] = {}
    for file in files:
        try:
            first = next(TraceReader(file).read(), None)
        except TraceError as problem:
            raise WrongUse(str(problem)) from None
        if not isinstance(first, Begin):
            raise WrongUse(f"{file} is empty: its rank recorded nothing")
        found[file] = first
    worlds, ranks = {begin.world for begin in found.values()}, sorted(begin.rank for begin in found.values())
    if len(worlds) > 1 or len(set(ranks)) < len(ranks):
        raise WrongUse(f"the recordings in {recordings} are of different runs: put those of one run there")
    world = worlds.pop()
    if lacking := sorted(set(range(world)) - set(ranks)):
        raise WrongUse(
            f"{recordings} lacks the recording of rank {lacking[0]}"
            f"{f' and {len(lacking) - 1} more' if len(lacking) > 1 else ''} of {world}: put those of all ranks there"
        )
    return found
