"""Runs a program on this machine's GPU as it is, and with the first access of a race held; compares what it prints."""

from __future__ import annotations

import os
import re
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
from streamrace.repro.sessions.race_selection import Chosen, chosen
from streamrace.trace import wording

_TOKEN = re.compile(r"\s*t[0-9]+(,|$)")
_HELD = "held.txt"  # the child leaves it: how often the stream was held


@dataclass(frozen=True)
class Provoked:
    """The outcome. ``place``: where the stream was held, ``times`` times for ``ms`` milliseconds; ``token``: says both.

    ``line``: number of the first printed line that differs, from 1; 0 if none does. ``plain``, ``held``: that line.
    """

    place: str
    token: str
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


def provoke(folder: Path, race: str, ms: float) -> Provoked:
    """Run the program of a run's ``race`` twice, the stream held for ``ms`` before its first access.

    ``race``: a number, a place or a token, which has a time of its own. Raise :class:`WrongUse` if the program cannot
    be run, or not alike twice, and :class:`streamrace.device.tokens.TokenError`.
    """
    again = Provocation.parse(race) if _TOKEN.match(race) else None
    selection = chosen(folder, "1" if again else race, traced=False)
    request = asked_again(selection)
    if request is None:
        raise WrongUse(f"{selection.folder} is the run of a scenario: provoke is of a program that 'check' ran")
    if request.ranks > 1:
        raise WrongUse(f"{selection.folder} has {request.ranks} ranks, and a race is provoked in one process")
    provocation = again or _of(selection, ms)
    words = request.words
    module = words[:1] == ["-m"]
    name, *arguments = words[1:] if module else words
    program = Program(name, tuple(arguments), module=module)
    _ = program.folder
    folder = Path(tempfile.mkdtemp())  # a TemporaryDirectory would be removed at the end of the child, too
    try:
        plain = _printed(program, folder / "plain", None)
        held = _printed(program, folder / "held", provocation)
        times = int((folder / "held" / _HELD).read_text(encoding="utf-8"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    line, one, other = _compared(plain, held)
    place = wording.line(provocation.file, provocation.line, path=True)
    return Provoked(place, provocation.token, provocation.ms, times, line, one, other)


def _of(selection: Chosen, ms: float) -> Provocation:
    if not selection.race.first.stack:
        raise WrongUse(f"race {selection.number} of {selection.folder} does not say where its first access was called")
    frame = selection.race.first.stack[0]
    return Provocation(frame.file, frame.line, ms)


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


def _compared(plain: list[str], held: list[str]) -> tuple[int, str, str]:
    """Return the first line that differs, and its number from 1; 0 if none does."""
    for number, (one, other) in enumerate(zip_longest(plain, held, fillvalue="nothing"), 1):
        if one != other:
            return number, one, other
    return 0, "", ""
