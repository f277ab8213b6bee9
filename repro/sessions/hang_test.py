"""Turns a hang of a run into a test of its own, as :mod:`.regression_test` turns a race."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from streamrace.device.scripts import WrongUse
from streamrace.device.timing import Timing
from streamrace.fuzz.live.standalone import standing
from streamrace.fuzz.reduction.hang_predicate import ShowsHang, hangs_of, key_of
from streamrace.fuzz.reduction.search import Files, Reduced, reduce
from streamrace.fuzz.reduction.text import Text
from streamrace.reports.data.opened_files import noted
from streamrace.reports.formats.regression_test import EmittedHangTest
from streamrace.repro.sessions import hang_explanation, regression_test
from streamrace.repro.sessions.regression_test import AskedTest, Tell


def emit(
    folder: Path,
    wanted: str,
    packages: tuple[str, ...],
    trials: int,
    tell: Tell,
    become: Callable[[tuple[str, ...]], object],
) -> EmittedHangTest | None:
    """Create the test of hang number ``wanted`` of a run. Return None for a run with races, or without hangs.

    ``become``: gives this process the run's releases, with ``packages``. ``trials``: most smaller programs that are
    tried. Raises :class:`WrongUse` if the program, alone in a folder, does not hang, or a number is wrong.
    """
    chosen = hang_explanation.chosen(folder, wanted)
    if chosen is None:
        return None
    run, hang = chosen
    test = AskedTest.of(folder, own=True, request=run.file.scenario)
    if test.ranks < 2:
        raise WrongUse(f"{folder} was started by a launcher: check the program with --ranks, and emit the test of that")
    releases = tuple(regression_test.available_releases(test.packages, packages))
    become(releases)
    alone = regression_test.prepared(folder, test)
    tell("the program by itself")
    with regression_test.running(alone.path, alone.beforehand) as runner:
        shows = ShowsHang(alone.program, key_of(hang), Timing(), runner, regression_test.FIRST_S)
        found, why = shows.look(alone.files)
        if found is None:
            raise WrongUse(f"{alone.program.name}, alone in a folder, does not hang like that: {why}")
        shows.patience_s = regression_test.LEAST_S
        reduced = Reduced(alone.files, 0, whole=True)
        if trials:
            before = regression_test.count_lines(alone.files)

            def progress(done: int, left: Files) -> None:
                lines = regression_test.count_lines(left)
                tell(f"trial {done + 1} of at most {trials}: {lines} lines are left of {before}")

            reduced = reduce(alone.files, shows, budget=trials, tell=progress)
    with regression_test.running(alone.path, []) as runner:
        tell("the reduced program, once more")
        program = replace(alone.program, files=reduced.files)
        with standing(program, runner, shows.patience_s) as runs:
            last, why = hangs_of(runs, Timing())
            still = {file.key for file in noted(runs.opened)}
    if not last or key_of(last[0]) != shows.wanted:
        raise WrongUse(f"the test would not fail for this hang: {why or 'another one comes first'}")
    data = {path: inner for path, inner in program.data.items() if path in still}
    name, *others = reduced.files
    return EmittedHangTest(
        hang=last[0],
        program=reduced.files[name],
        name=name,
        ranks=test.ranks,
        modules={file: reduced.files[file] for file in others},
        data={path: None if isinstance(inner, Path) else inner for path, inner in data.items()},
        elsewhere=[path for path in alone.elsewhere if path in still],
        arguments=test.arguments,
        about=Text(alone.files[name]).docstring if trials else "",
        releases=dict(package.split("==", 1) for package in releases),
        needed=alone.needed,
        lines=(regression_test.count_lines(alone.files), regression_test.count_lines(reduced.files)),
        whole=reduced.whole,
        trials=reduced.trials,
    )
