"""Implements ``emit-test``: turns a race that ``streamrace check`` found into a self-contained test for pytest."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamrace.device.options import whole_timing
from streamrace.device.scripts import WrongUse
from streamrace.device.timing import Timing
from streamrace.repro.commands import flags
from streamrace.repro.commands.programs import in_place, slowed

if TYPE_CHECKING:
    from streamrace.reports.formats.regression_test import EmittedProgram
    from streamrace.repro.sessions.race_selection import Chosen


@click.command("emit-test")
@click.option("--output", type=flags.PATH, help="The file to write. [default: RUN/test_race_N.py]")
@click.option(
    "--trials",
    type=click.IntRange(0),
    default=200,
    show_default=True,
    help="Try at most this many smaller programs; 0: put the unchanged program into the test.",
)
@flags.packages()
@click.option(
    "--fixed",
    multiple=True,
    metavar="NAME==VERSION",
    help="A release with the fix: the test must pass with it, and each smaller program must be without the race.",
)
@click.argument("folder", metavar="RUN", type=flags.PATH)
@click.argument("race")
def emit_test(
    output: Path | None, trials: int, packages: tuple[str, ...], fixed: tuple[str, ...], folder: Path, race: str
) -> None:
    """Write a pytest file that fails while the race RACE of RUN is there, and passes when it is fixed.

    RUN is a folder of 'streamrace check'. RACE is a number or a place: FILE:FUNCTION, or both places with a comma
    between them; in a run without races, the number of a hang. The program runs many times, with the releases of RUN,
    and is made smaller as long as it shows the race with the same effect. The test needs pytest, this package and the
    library, but no GPU.
    Exit status: 0 written, 2 no test can be made (a message says why), 130 interrupted.
    """
    from streamrace.reports.formats import regression_test as form
    from streamrace.reports.formats.writing import write
    from streamrace.reports.screen.console import Terminal
    from streamrace.repro.sessions import hang_explanation, hang_test, regression_test
    from streamrace.repro.sessions.race_selection import chosen

    console = Terminal(stderr=True)
    if fixed and hang_explanation.chosen(folder, race) is not None:
        raise WrongUse("--fixed is of a race: run the test of a hang with that release by itself")
    with console.status("the hang") as status:
        hang = hang_test.emit(folder, race, packages, trials, status.update, in_place)
    if hang is not None:
        file = output or folder / f"test_hang_{race}.py"
        write(form.text_of_hang(hang), file)
        _say(hang, hang.function, file, ())
        return
    selection = chosen(folder, race, traced=False)
    program = regression_test.AskedTest.of(folder, own=selection.own, request=selection.asked)
    timing = _timing(selection)
    file = output or folder / f"test_race_{selection.number}.py"
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise WrongUse(
            f"--output {file} {'is a folder' if file.is_dir() else 'is in a folder that does not exist'}: name a file"
        )
    in_place(tuple(regression_test.available_releases(program.packages, packages)))
    with console.status("the program by itself") as status:
        test = regression_test.emit(selection, program, timing, race, trials, status.update, fixed=fixed)
    write(form.text(test), file)
    _say(test, form.name_of(test), file, fixed)


def _say(test: EmittedProgram, name: str, file: Path, fixed: tuple[str, ...]) -> None:
    """Print how small the test is, what it lacks, and how it is run."""
    from streamrace.reports.screen.console import Terminal
    from streamrace.reports.text import typed

    terminal = Terminal()
    before, after = test.lines
    size = f"{after} lines of {before}" if after < before else f"all {before} lines"
    terminal.print(f"{name}: {size}, {test.trials} trials", highlight=False, soft_wrap=True)
    if not test.whole:
        terminal.print("Not every removal was tried: --trials sets how many are.", highlight=False, soft_wrap=True)
    if test.needed:
        terminal.print(f"Not in the file, and imported: {', '.join(test.needed)}", highlight=False, soft_wrap=True)
    if absent := [*(name for name, data in test.data.items() if data is None), *test.elsewhere]:
        terminal.print(f"Not in the file, and opened (see there): {', '.join(absent)}", highlight=False, soft_wrap=True)
    passes = f", and passes with {' '.join(fixed)}" if fixed else ", as it has to"
    terminal.print(f"Test:  {file} (it fails here{passes})", highlight=False, soft_wrap=True)
    terminal.print(f"Run:   {typed(f'python -m pytest {shlex.quote(str(file))}')}", highlight=False, soft_wrap=True)


def _timing(selection: Chosen) -> Timing:
    """Return the timing of the run."""
    slow = selection.asked.get("slow", {})
    factors = slow if isinstance(slow, dict) else {}
    if not all(isinstance(factor, (int, float)) for factor in factors.values()):
        raise WrongUse(f"{selection.folder} does not say what --slow was")
    token = str(selection.asked.get("timing") or "t1")
    timing = whole_timing(Timing.parse(token), slowed([f"{pattern}={factor}" for pattern, factor in factors.items()]))
    if timing is None:
        raise WrongUse("no token can express what --slow asked for: check the program with whole factors from 2 on")
    return timing
