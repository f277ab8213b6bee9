"""Runs a program on this machine's GPU as it is, and with the first access of a race held; compares what it prints."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from streamrace.device.scripts import Program, WrongUse
from streamrace.recorder.provocation import Provocation
from streamrace.repro.sessions import child
from streamrace.repro.sessions.child import ProgramEnd
from streamrace.repro.sessions.fixing.live_trial import asked_again
from streamrace.repro.sessions.race_selection import Chosen
from streamrace.trace import wording
from streamrace.trace.records import Frame

_HELD = "held.txt"  # the child leaves it: how often the stream was held


@dataclass(frozen=True)
class Provoked:
    """The outcome. ``place``: where the stream was held, ``times`` times for ``ms`` milliseconds.

    ``line``: number of the first printed line that differs, from 1; 0 if none does. ``plain``, ``held``: that line.
    """

    place: str
    ms: float
    times: int
    line: int
    plain: str
    held: str

    def sentence(self) -> str:
        """Return the outcome as a sentence for a person."""
        if not self.times:
            return f"Nothing was held: the program gave the GPU no work at {self.place}."
        held = f"With the stream held for {self.ms:g} ms before {self.place} ({wording.times(self.times)})"
        if not self.line:
            return f"{held} the program prints the same. A longer time, or values that it does not print, may differ."
        return f"{held} line {self.line} of what the program prints is '{self.held}' and not '{self.plain}'."

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome for JSON."""
        return asdict(self)


def provoke(selection: Chosen, ms: float) -> Provoked:
    """Run the program of a race twice. Raise :class:`WrongUse` if it cannot be run, or not alike twice."""
    request = asked_again(selection)
    if request is None:
        raise WrongUse(f"{selection.folder} is the run of a scenario: provoke is of a program that 'check' ran")
    if request.ranks > 1:
        raise WrongUse(f"{selection.folder} has {request.ranks} ranks, and a race is provoked in one process")
    frame = selection.race.first.stack[0] if selection.race.first.stack else None
    if frame is None:
        raise WrongUse(f"race {selection.number} of {selection.folder} does not say where its first access was called")
    words = request.words
    module = words[:1] == ["-m"]
    name, *arguments = words[1:] if module else words
    program = Program(name, tuple(arguments), module=module)
    _ = program.folder
    provocation = Provocation(frame.file, frame.line, ms)
    folder = Path(tempfile.mkdtemp())  # a TemporaryDirectory would be removed at the end of the child, too
    try:
        plain = _printed(program, folder / "plain", None)
        held = _printed(program, folder / "held", provocation)
        times = int((folder / "held" / _HELD).read_text(encoding="utf-8"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _compared(frame, ms, times, plain, held)


def _printed(program: Program, folder: Path, provoked: Provocation | None) -> list[str]:
    """Run the program in a child; return the lines that it printed. Raise :class:`WrongUse` if it could not run."""
    folder.mkdir()
    output = folder / "output.txt"

    def work() -> ProgramEnd:
        from streamrace.recorder import RecorderError, launch

        file = output.open("w", encoding="utf-8", buffering=1)
        os.dup2(file.fileno(), 1)
        sys.stdout = file  # where this command's own output is reserved, it was another
        try:
            status = launch.run(program, folder, provoked=provoked)
        except (RecorderError, WrongUse) as problem:
            return ProgramEnd(2, str(problem), wrong=True)
        if provoked is not None:
            (folder / _HELD).write_text(str(provoked.times), encoding="utf-8")
        return ProgramEnd(status)

    ended = child.attended(work)
    if ended.wrong:
        raise WrongUse(ended.why)
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    return [*lines, f"exit status {ended.status}"] if ended.status else lines


def _compared(frame: Frame, ms: float, times: int, plain: list[str], held: list[str]) -> Provoked:
    for number, (one, other) in enumerate(zip_longest(plain, held, fillvalue="nothing"), 1):
        if one != other:
            return Provoked(wording.line(frame.file, frame.line, path=True), ms, times, number, one, other)
    return Provoked(wording.line(frame.file, frame.line, path=True), ms, times, 0, "", "")
