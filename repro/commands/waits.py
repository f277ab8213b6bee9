"""Implements ``waits``: classifies the waits of a program: carries load, redundant, fragile cover."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path

import click

from streamrace.device.scripts import Program, WrongUse
from streamrace.repro.commands import flags
from streamrace.repro.commands.check import in_place, slowed, timed
from streamrace.repro.sessions import checking, child, folders, launched, staging
from streamrace.repro.sessions.child import ProgramEnd

_PATIENCE, _LEAST_S = 5, 30.0  # multiple of the program's first duration, and a lower bound
_RACE, _FAILED, _UNKNOWN = 1, 3, 4


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module's name, as for python -m.")
@click.option("--ranks", type=click.IntRange(1), help="Start so many ranks of the script, with a simulated GPU each.")
@flags.packages()
@flags.run_folder("waits-, the script's and the time")
@click.option("--report", is_flag=True, help="Make the page of 'streamrace report' at once.")
@click.option("--slow", multiple=True, metavar="PATTERN=FACTOR", help="Make work slower in virtual time, as for check.")
@click.option("--timing", "token", default="", metavar="TOKEN", help="Run in a timing of your own, as for check.")
@click.option(
    "--confirm",
    type=click.IntRange(0),
    default=8,
    show_default=True,
    help="Try so many verdicts in live runs without the wait, too. SCRIPT writes its files again.",
)
@click.option(
    "--witnesses",
    type=click.IntRange(0),
    default=8,
    show_default=True,
    help="Of so many of the races that live runs have without a wait, find out whether they are harmful, with a token.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]...")
@click.pass_obj
def waits(
    argument: str | None,
    module: bool,
    ranks: int | None,
    packages: tuple[str, ...],
    name: str | None,
    runs: Path,
    overwrite: bool,
    report: bool,
    slow: tuple[str, ...],
    token: str,
    confirm: int,
    witnesses: int,
    program: tuple[str, ...],
) -> None:
    """Take each wait, synchronisation, record_stream and blocking read of SCRIPT and its libraries away alone.

    SCRIPT runs once, as under 'streamrace check'. Then its trace is judged without the waits of each line of code, one
    line at a time: carries load (with the race that is there without it), redundant (with what orders the same),
    fragile cover (a read, a copy or a timer that something rests on). Exit status: 0 done, 1 a live run disagrees with
    the trace, 2 wrong usage, 3 the script failed, 4 unknown (nothing was given to the device), 130 interrupted.
    """
    if not program:
        raise click.UsageError("Name a script, for example: streamrace waits train.py (or with -m a module).")
    if launched.launcher_context():
        raise WrongUse("waits runs the program again and again, so it starts its ranks itself: say --ranks N")
    if os.environ.get("DS_ACCELERATOR", "cuda") != "cuda":
        raise WrongUse(
            f"DS_ACCELERATOR is set to {os.environ['DS_ACCELERATOR']}, so DeepSpeed would not use the simulated GPU: "
            "unset it"
        )
    factors = slowed(slow)
    what = folders.asked(
        program, module=module, ranks=ranks or 1, slow=factors, timing=token, packages=in_place(packages)
    )
    timing = timed(token, factors)
    words = (program[0], *([argument] if argument else []), *program[1:])
    beside = Program(program[0], module=module).folder
    folder = folders.make(
        runs / (name or f"waits-{folders.name_of(program)}-{datetime.now():%Y%m%d-%H%M%S}"), what, overwrite=overwrite
    )

    def work() -> ProgramEnd:
        staging.cleanup()
        return checking.work(
            words, module, ranks or 0, folder / "trace", factors, token, None, record=False, tell_waits=True
        )

    started = time.monotonic()
    ended = child.attended(work)
    took_s = time.monotonic() - started
    if ended.wrong:
        raise WrongUse(ended.why)
    if ended.interrupted and ended.status:
        raise KeyboardInterrupt

    from streamrace.reports.screen import waits as screen
    from streamrace.reports.screen.console import Terminal
    from streamrace.repro.sessions import studied, waited
    from streamrace.repro.sessions.checked import judge

    console = Terminal()
    found = judge(folder, what, failure=ended.why or None, beside=beside)
    folders.forget_ranks(folder)
    if found.failure or (found.checked and found.checked.idle):
        staging.commit(folder)
        console.print(screen.nothing(found), highlight=False, soft_wrap=True, markup=False)
        raise SystemExit(_FAILED if ended.status else _UNKNOWN)
    again = waited.RunAgain(
        [*(["-m"] if module else []), *words],
        ranks or 0,
        timing,
        max(_LEAST_S, _PATIENCE * took_s),
        confirm,
        witnesses,
    )
    with console.status("each wait taken away alone") as status:
        made = waited.examine(folder, found, again, what, lambda text: status.update(screen.escaped(text)))
    made.write(folder)
    folder = staging.commit(folder)
    screen.show(console, made)
    if report:
        studied.report(console, folder, "waits", more=program, shown=False)
    else:
        studied.noted(folder, "waits", more=program)
    screen.where(console, folder, reported=report)
    if made.disagree:
        raise SystemExit(_RACE)
