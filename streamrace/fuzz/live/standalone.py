"""Runs a self-contained program repeatedly: its files lie in a folder of their own.

Random generators that the program does not seed start in the same state each time, and so does the order of sets
(:data:`SAME_ORDER`): its behaviour depends on its text only.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from streamrace.detectors.order.races import Race
from streamrace.detectors.places import is_there
from streamrace.device.timing import Timing
from streamrace.fuzz.live.harm import Examination, LiveWitness
from streamrace.fuzz.live.run_record import load
from streamrace.fuzz.live.runs import LiveOutcome, Runner
from streamrace.trace.files import file_of
from streamrace.trace.records import TraceError

SAME_ORDER = {"PYTHONHASHSEED": "0"}
"""Environment variables for a :class:`streamrace.fuzz.live.runs.Runner`."""

_SAID = 4000  # characters kept of the end of a program's output


@dataclass(frozen=True)
class Alone:
    """A self-contained program. ``files``: its texts by name; the first is run, the others are its modules.

    ``ranks``: number of processes that are started as by a launcher; None: one process, without a launcher. ``data``:
    the files that it opens, by relative path: contents, or a file to copy. They lie beside it and in the working
    folder, as a program has either in mind. Raises ValueError for a path that leads elsewhere, or onto another file.
    """

    files: Mapping[str, str]
    arguments: tuple[str, ...] = ()
    ranks: int | None = None
    data: Mapping[str, bytes | Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.data:
            path = PurePosixPath(name)
            folders = {str(folder) for folder in path.parents}
            if path.is_absolute() or not path.name or ".." in path.parts or "\0" in name:
                raise ValueError(f"a program's file cannot lie at {name!a}: its path is relative, without '..'")
            if not (folders | {str(path)}).isdisjoint(self.files) or not folders.isdisjoint(self.data):
                raise ValueError(f"a program's file cannot lie at {name!a}: another one is there")

    @property
    def name(self) -> str:
        return next(iter(self.files))


class AloneRuns:
    """Runs the program, each time in an empty folder. ``patience_s``: limit of a run. Use :func:`standing`."""

    def __init__(self, program: Alone, folder: Path, runner: Runner, patience_s: float) -> None:
        self._program, self._folder, self._runner = program, folder, runner
        self.patience_s = patience_s
        self._runs = 0
        self._text = folder / "program"
        self._text.mkdir()
        for name, text in program.files.items():
            (self._text / name).write_text(text, encoding="utf-8")

    def run(self, timing: Timing, *, at_once: bool = False) -> LiveOutcome:
        """Run the program in ``timing``. Raises RuntimeError as :meth:`streamrace.fuzz.live.runs.Runner.run` does."""
        return self.keep(timing, at_once=at_once)[0]

    def keep(self, timing: Timing, *, at_once: bool = False) -> tuple[LiveOutcome, Path]:
        """Run the program as :meth:`run` does; return also the folder of its traces."""
        self._runs += 1
        run_folder = self._folder / f"run{self._runs}"
        traces, work = run_folder / "trace", run_folder / "work"
        traces.mkdir(parents=True)
        work.mkdir()
        program = self._program
        for folder in (self._text, work):  # each time, as the program may have changed them
            for name, data in program.data.items():
                file = folder / name
                file.parent.mkdir(parents=True, exist_ok=True)
                _ = shutil.copyfile(data, file) if isinstance(data, Path) else file.write_bytes(data)
        place = file_of(traces, 0) if program.ranks is None else traces
        words = ["--trace", str(place), "--timing", str(timing)]
        words += [] if program.ranks is None else ["--ranks", str(program.ranks)]
        words += [str(self._text / program.name), *program.arguments]
        printed, opened, limit = str(run_folder / "printed"), str(self.opened), self.patience_s
        status = self._runner.run(
            words, at_once=at_once, patience_s=limit, folder=str(work), printed=printed, opened=opened
        )
        try:
            return LiveOutcome(load(traces), status), traces
        except TraceError:  # the run was ended in the middle of a record
            return LiveOutcome({}, status), traces

    @property
    def opened(self) -> Path:
        """Return the list of the files that the program opened in its last run."""
        return self._folder / f"run{self._runs}" / "opened"

    def output(self) -> str:
        """Return the end of the last run's output."""
        try:
            text = (self._folder / f"run{self._runs}" / "printed").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return text[-_SAID:].strip()

    def witness(
        self, race: Race, first: LiveOutcome, control: LiveOutcome, timing: Timing, traces: Path
    ) -> LiveWitness:
        """Find the witness of a race; ``first`` (with ``traces``) and ``control`` are runs in ``timing``.

        Both may be one run if the program is known to repeat itself.
        """
        examination = Examination(first, control, self, timing, lambda token: token, traces)
        return replace(examination.all([race], 1)[0], outcomes=None)


@contextmanager
def standing(program: Alone, runner: Runner, patience_s: float) -> Iterator[AloneRuns]:
    """Yield the program's runs; their folder is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="program-") as folder:
        yield AloneRuns(program, Path(folder).resolve(), runner, patience_s)


def comes_by(outcome: LiveOutcome, place: str) -> bool:
    """Check whether the program issued work, or used memory, at ``place`` (:mod:`streamrace.detectors.places`)."""
    return any(is_there(place, frames) for rank in outcome.run.values() for frames in rank.stacks)
