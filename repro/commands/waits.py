"""Implements ``waits``: classifies the waits of a program: carries load, redundant, fragile cover."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

import click

from streamrace.device.options import whole_timing
from streamrace.device.scripts import WrongUse
from streamrace.repro.commands import flags
from streamrace.repro.commands.json_output import Put, json_output
from streamrace.repro.commands.programs import ProgramOptions
from streamrace.repro.sessions import check_run, child, folders, launcher_rank, staging
from streamrace.repro.sessions.child import ProgramEnd

_PATIENCE, _LEAST_S = 5, 30.0  # multiple of the program's first duration, and a lower bound
_RACE, _FAILED, _UNKNOWN = 1, 3, 4


@dataclass(frozen=True, kw_only=True)
class WaitsOptions(ProgramOptions):
    """Also the number of live runs."""

    slow: tuple[str, ...] = flags.option(
        "--slow", multiple=True, metavar="PATTERN=FACTOR", help="Make work slower in virtual time, as for check."
    )
    token: str = flags.option("--timing", default="", metavar="TOKEN", help="Run in your own timing, as for check.")
    confirm: int = flags.option(
        "--confirm",
        type=click.IntRange(0),
        default=8,
        show_default=True,
        help="Also try this many verdicts in live runs without the wait. SCRIPT writes its files again.",
    )
    witnesses: int = flags.option(
        "--witnesses",
        type=click.IntRange(0),
        default=8,
        show_default=True,
        help="For this many of the races in live runs without a wait, search for a timing in which they show, to see "
        "if they are harmful.",
    )


@click.command(context_settings={"allow_interspersed_args": False})
@flags.options(WaitsOptions)
@flags.packages()
@flags.run_folder("waits-, the script's and the time")
@click.pass_obj
@json_output
def waits(argument: str | None, options: WaitsOptions, put: Put) -> None:
    """Remove each wait, synchronisation, record_stream and blocking read of SCRIPT and its libraries, one at a time.

    SCRIPT runs once, as under 'streamrace check'. Then its trace is judged without the waits of each line of code, one
    line at a time: carries load (with the race without it), redundant (with the waits that order the same pair),
    fragile cover (a read, a copy or a timer that orders a pair by chance). Exit status: 0 done, 1 a live run disagrees
    with the trace, 2 wrong usage, 3 the script failed, 4 unknown (nothing was launched), 130 interrupted.
    """
    if launcher_rank.launcher_context():
        raise WrongUse("waits runs the program again and again, so it starts its ranks itself: say --ranks N")
    launch = options.launch("waits", argument, tell_waits=True)
    request = options.request(launch, options.ranks or 1)
    folder = folders.make(
        options.runs / (options.name or f"waits-{folders.name_of(options.program)}-{datetime.now():%Y%m%d-%H%M%S}"),
        request,
        overwrite=options.overwrite,
    )

    def work() -> ProgramEnd:
        staging.cleanup()
        return check_run.work(launch, folder)

    started = time.monotonic()
    ended = child.attended(work)
    took_s = time.monotonic() - started
    if ended.wrong:
        raise WrongUse(ended.why)
    if ended.interrupted and ended.status:
        raise KeyboardInterrupt

    from streamrace.reports.screen import waits as screen
    from streamrace.reports.screen.console import Terminal
    from streamrace.reports.screen.working import Working
    from streamrace.repro.sessions import studied, wait_removal
    from streamrace.repro.sessions.verdict import judge

    console = Terminal()
    findings = judge(folder, request, failure=ended.why or None, beside=launch.program.folder)
    folders.forget_ranks(folder)
    folded = check_run.folded_output(folder)
    if findings.failure or (findings.checked and findings.checked.idle):
        staging.commit(folder)
        console.print(screen.nothing(findings), highlight=False, soft_wrap=True, markup=False)
        raise SystemExit(_FAILED if ended.status else _UNKNOWN)
    again = wait_removal.RunAgain(
        launch.words,
        launch.ranks,
        whole_timing(launch.timing, launch.slow),
        max(_LEAST_S, _PATIENCE * took_s),
        options.confirm,
        options.witnesses,
    )
    with Working(Terminal(stderr=not console.is_terminal), "each wait taken away alone") as working:
        waits = wait_removal.examine(folder, findings, again, request, working.update)
    waits.write(folder)
    folder = staging.commit(folder)
    if folded:
        console.print(f"Output: {folder / check_run.OUTPUT} has {folded}.", highlight=False, soft_wrap=True)
    screen.show(console, waits)
    if options.report:
        studied.report(console, folder, "waits", more=options.program, shown=False)
    else:
        studied.noted(folder, "waits", more=options.program)
    screen.where(console, folder, reported=options.report)
    put(waits.text())
    if waits.disagree:
        raise SystemExit(_RACE)
