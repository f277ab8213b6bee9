"""A program under ``streamrace check``: it runs in a child, alone or as one of several ranks, and is judged there."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrace.detectors.values.answers import FOLDER
from streamrace.device.dry import World
from streamrace.device.packages import starting
from streamrace.device.scripts import WrongUse
from streamrace.device.timing import Timing
from streamrace.process.forks import seldom
from streamrace.process.interrupts import held
from streamrace.repro.sessions import child, folders, launched, places
from streamrace.repro.sessions.child import ProgramEnd
from streamrace.repro.sessions.folders import ANSWERS, SEEDED
from streamrace.repro.sessions.launched import Launched
from streamrace.repro.sessions.witnessed import Again

if TYPE_CHECKING:
    from streamrace.detectors import Race
    from streamrace.reports.data.checked import Checked
    from streamrace.reports.data.known import Baseline
    from streamrace.repro.sessions.checked import Judging

DRY = "rehearsed.json"  # what a dry run leaves beside its trace. dry.json would say: a dry run of a job
LACKED = "lacked.txt"  # what a release asked for and did not find, until that is in the verdict
_FAILED, _KILLED, _INTERRUPTED = 3, 128, 130


def work(
    words: tuple[str, ...],
    module: bool,
    ranks: int,
    trace: Path,
    slow: dict[str, float],
    token: str,
    world: World | None,
    *,
    record: bool,
    aside: bool = False,
    tell_waits: bool = False,
    keep: int = 0,
) -> ProgramEnd:
    """In the child: the program, to its end. ``aside``: what it prints goes to standard error.

    ``keep``: bytes of each trace that are kept (0: all), where somebody judges meanwhile; a recording is kept whole.
    """
    if aside:
        os.dup2(2, 1)
    from streamrace.compiling import BuildError
    from streamrace.device import launch
    from streamrace.device.ranks import RankFailed

    try:
        timing = Timing.parse(token or "t1")
        place = trace.absolute()
        said = place.with_name(ANSWERS)
        said.mkdir(exist_ok=True)
        os.environ[FOLDER] = str(said)
        starting.note_in(place.with_name(LACKED))
        status = launch.run(
            words,
            module=module,
            ranks=ranks,
            trace=place,
            slow=slow,
            timing=timing,
            record=record,
            dry=world,
            tell_waits=tell_waits,
            keep=0 if record else keep,
            seeded=place.with_name(SEEDED),
        )
        if world:
            from streamrace.device import memory
            from streamrace.device.dry import steps

            folders.put(place.with_name(DRY), {"step_ends": steps.ends(), "capacity": memory.total()})
    except (BuildError, RuntimeError, WrongUse) as problem:
        return ProgramEnd(2, str(problem), wrong=True)
    except RankFailed as failed:
        if failed.full:
            return ProgramEnd(2, str(failed), wrong=True)
        return ProgramEnd(failed.status, f"{failed}; the others were ended")
    except KeyboardInterrupt:
        return ProgramEnd(_INTERRUPTED, "it was interrupted")
    return ProgramEnd(status, f"it ended with exit status {status}" if status else "")


class Meanwhile:
    """Judges the run in ``folder`` while it runs (:class:`streamrace.repro.sessions.checked.Judging`).

    ``what``: what was asked for. The child is forked before anything heavy is imported, so that comes with the first
    call of :meth:`on`.
    """

    def __init__(self, folder: Path, what: dict[str, Any], *, dry: bool) -> None:
        self._folder, self._what, self._dry = folder, what, dry
        self._judging: Judging | None = None

    def on(self) -> bool:
        """Judge a little of what has been written; is there more already?"""
        return self.judging().on(child.called)

    def until_then(self) -> str:
        """Where there is no verdict, as the trace could not be written: what was found all the same, behind why."""
        races = self._judging.races() if self._judging is not None else []
        if not races:
            return ""
        from streamrace.reports.screen import checked as screen

        return f". Until then a race: {screen.pair(races[0])}{f'; and {len(races) - 1} more' if len(races) > 1 else ''}"

    def judging(self) -> Judging:
        """What judges it, made when it is asked for."""
        if self._judging is None:
            from streamrace.repro.sessions.checked import Judging

            seldom()  # by now all is imported, and records come by the hundred thousand
            self._judging = Judging(self._folder, self._what, dry=self._dry, told=_told)
        return self._judging


def _told(race: Race) -> None:
    """The first race, on a terminal: who waits need not wait for the end."""
    from streamrace.reports.screen import checked as screen
    from streamrace.reports.screen.console import Terminal

    console = Terminal(stderr=True)
    if console.is_terminal:
        screen.first(console, race)


def as_a_rank(
    work: Callable[[], ProgramEnd], folder: Path, me: Launched, meanwhile: Callable[[], bool]
) -> ProgramEnd | None:
    """How all ranks ended, for rank 0 to judge; None on the others, if they ended well. ``meanwhile``: rank 0's."""
    launched.present(folder, me)
    mine = child.attended(work, lambda: launched.failed(folder, me), (lambda: False) if me.rank else meanwhile)
    launched.report(folder, me, mine)
    if me.rank:
        launched.judged(folder, me)
        if mine.status:
            raise SystemExit(2 if mine.wrong else _FAILED)
        return None
    ended = launched.all_ended(folder, me)
    wrong = next((one for one in ended.values() if one.wrong), None)
    if wrong:
        return wrong
    bad = [(one.asked, one.status < _KILLED, one.time, rank) for rank, one in ended.items() if one.status]
    if not bad:
        return mine
    rank = min(bad)[-1]  # a kill is never what another rank's end does; else the first
    first = ended[rank]
    why = first.why.removeprefix("it ")
    return first._replace(why=f"rank {rank} {why}; the others were ended", interrupted=mine.interrupted)


@dataclass(frozen=True)
class Telling:
    """How what was found is told. ``form``: for whom; ``output``: where, None for standard output.

    ``report``: with the page. ``baseline``: what was known before; ``keep_in``: the baseline that takes what is found.
    """

    form: str = "text"
    output: Path | None = None
    report: bool = False
    baseline: Baseline | None = None
    keep_in: Path | None = None

    @property
    def aside(self) -> bool:
        """Standard output is another tool's: all else is told on standard error."""
        return self.form != "text" and self.output is None


def conclude(
    ended: ProgramEnd, folder: Path, meanwhile: Meanwhile, beside: Path, again: Again | None, telling: Telling
) -> None:
    """Judge the rest, tell, and leave with the status that says it."""
    interrupted = ended.interrupted and bool(ended.status)
    failure = "it was interrupted" if interrupted else ended.why or None
    if failure and (lacked := starting.noted(folder / LACKED)):
        failure = f"{failure}; {lacked}"
    (folder / LACKED).unlink(missing_ok=True)
    with held() if interrupted else nullcontext():  # a terminal that closes says so twice
        found = meanwhile.judging().conclude(
            failure=failure, beside=beside, witnesses=again, dry=folder / DRY if again is None else None,
            baseline=telling.baseline, keeping=telling.keep_in.name if telling.keep_in else "",
            failed=bool(ended.status), soon=interrupted,
        )  # fmt: skip
    interrupted = interrupted or meanwhile.judging().interrupted
    folders.forget_ranks(folder)
    if not interrupted:
        folder = places.keep(folder)
    page = None
    if telling.report:
        from streamrace.reports.pages.folders import write

        write([folder], folder / "report")
        page = folder / "report" / "index.html"
    _tell(found, folder, page, telling)
    if interrupted:
        raise KeyboardInterrupt
    if found.known.unreasoned:
        raise WrongUse(
            f"'# stream-race: ok' at {', '.join(found.known.unreasoned)} has no reason: write behind it why it is, "
            "or it counts for nothing"
        )
    if found.status:
        raise SystemExit(found.status)


def _tell(found: Checked, folder: Path, page: Path | None, telling: Telling) -> None:
    from streamrace.reports.data import known
    from streamrace.reports.formats import writing
    from streamrace.reports.screen import checked as screen
    from streamrace.reports.screen.console import Terminal

    screen.verdict(Terminal(stderr=telling.aside), found, folder, page)
    if telling.form != "text":
        writing.write(writing.text(folder, telling.form), telling.output)
    elif telling.output is not None:
        said = StringIO()
        screen.verdict(Terminal(file=said), found, folder, page)
        writing.write(said.getvalue(), telling.output)
    if telling.keep_in is None:
        return
    console = Terminal(stderr=telling.aside)
    if found.uncertain:
        console.print(
            f"Not written: {telling.keep_in}. Not all of the program was seen, so not all findings would be in it.",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
        return
    writing.write(known.text(found.found, found.suppressed), telling.keep_in)
    console.print(f"Baseline: {telling.keep_in}", highlight=False, soft_wrap=True)
