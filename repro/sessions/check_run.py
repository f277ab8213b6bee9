"""Runs a program under ``streamrace check`` in a child, alone or as one of several ranks, and judges it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrace.detectors.values.answers import FOLDER
from streamrace.device.options import LaunchOptions
from streamrace.device.packages import starting
from streamrace.device.ranks.output import FOLDED
from streamrace.device.scripts import WrongUse
from streamrace.process.forks import relax_gc
from streamrace.process.interrupts import held
from streamrace.reports.text import race as sentences
from streamrace.repro.sessions import child, folders, launcher_rank, staging
from streamrace.repro.sessions.child import ProgramEnd
from streamrace.repro.sessions.folders import ANSWERS, COMPILED, LIMITS, MARK, OPENED, SEEDED
from streamrace.repro.sessions.launcher_rank import Launched
from streamrace.repro.sessions.witness_runs import WitnessRequest

if TYPE_CHECKING:
    from streamrace.detectors import Race
    from streamrace.reports.data.findings import Findings
    from streamrace.reports.data.known_findings import Baseline
    from streamrace.repro.sessions.verdict import Judging

DRY = "rehearsed.json"  # left by a dry run next to its trace; the name dry.json stands for a dry run of a job
OUTPUT = "output.txt"  # all that several ranks printed
LACKED = "lacked.txt"  # imports that a release failed to find, until the verdict includes them
_FAILED, _KILLED, _INTERRUPTED = 3, 128, 130


def work(options: LaunchOptions, folder: Path, *, aside: bool = False) -> ProgramEnd:
    """Run the program to its end, in the child. ``folder``: of its run. ``aside``: its output goes to standard error.

    Traces are kept as ``options.keep`` says if they are judged meanwhile; a recording is kept whole.
    """
    if aside:
        os.dup2(2, 1)
    from streamrace.compiling import BuildError
    from streamrace.device import compiled, launch, limits, opened_files
    from streamrace.device.ranks import RankFailed

    try:
        place = (folder / "trace").absolute()
        answers = place.with_name(ANSWERS)
        answers.mkdir(exist_ok=True)
        os.environ[FOLDER] = str(answers)
        starting.note_in(place.with_name(LACKED))
        limits.note_in(place.with_name(LIMITS))
        compiled.note_in(place.with_name(COMPILED))
        opened_files.note_in(place.with_name(OPENED), place.with_name(MARK).stat().st_ctime)
        keep = 0 if options.record else options.keep
        output = place.with_name(OUTPUT) if options.ranks > 1 else None
        seeded, rehearsed = place.with_name(SEEDED), place.with_name(DRY)
        status = launch.run(replace(options, trace=place, keep=keep, seeded=seeded, output=output, rehearsed=rehearsed))
    except (BuildError, RuntimeError, WrongUse) as problem:
        return ProgramEnd(2, str(problem), wrong=True)
    except RankFailed as failed:
        if failed.full:
            return ProgramEnd(2, str(failed), wrong=True)
        return ProgramEnd(failed.status, f"{failed}; the others were ended")
    except KeyboardInterrupt:
        return ProgramEnd(_INTERRUPTED, "it was interrupted")
    return ProgramEnd(status, f"it ended with exit status {status}" if status else "")


def work_on_gpu(options: LaunchOptions, folder: Path, *, aside: bool = False) -> ProgramEnd:
    """Run the program on this machine's GPU, recorded, in the child (:mod:`streamrace.recorder`)."""
    if aside:
        os.dup2(2, 1)
    from streamrace.recorder import RecorderError, launch

    try:
        status = launch.run(options.program, (folder / "trace").absolute(), keep=options.keep)
    except (RecorderError, WrongUse) as problem:
        return ProgramEnd(2, str(problem), wrong=True)
    except KeyboardInterrupt:
        return ProgramEnd(_INTERRUPTED, "it was interrupted")
    return ProgramEnd(status, f"it ended with exit status {status}" if status else "")


class Meanwhile:
    """Judges the run in ``folder`` while it runs (:class:`streamrace.repro.sessions.verdict.Judging`).

    ``what``: the request. The child is forked before any heavy import, so the judge is imported at the first call of
    :meth:`on`.
    """

    def __init__(self, folder: Path, request: dict[str, Any], *, dry: bool, strict: bool = False) -> None:
        self._folder, self._request, self._dry, self._strict = folder, request, dry, strict
        self._judging: Judging | None = None

    def poll(self) -> bool:
        """Judge a little of the trace. Return whether more is available."""
        return self.judging().poll(child.called)

    def until_then(self) -> str:
        """Return a clause on the races found so far, for the error message of a trace that could not be written."""
        races = self._judging.races() if self._judging is not None else []
        if not races:
            return ""

        more = f"; and {len(races) - 1} more" if len(races) > 1 else ""
        return f". Until then a race: {sentences.pair(races[0])}{more}"

    def judging(self) -> Judging:
        """Return the judge, created on first use."""
        if self._judging is None:
            from streamrace.repro.sessions.verdict import Judging

            relax_gc()  # all is imported by now, and records come by the hundred thousand
            self._judging = Judging(self._folder, self._request, dry=self._dry, strict=self._strict, on_race=_announce)
        return self._judging


def _announce(race: Race) -> None:
    """Print the first race on a terminal, before the program ends."""
    from streamrace.reports.screen import verdict as screen
    from streamrace.reports.screen.console import Terminal

    console = Terminal(stderr=True)
    if console.is_terminal:
        screen.first(console, race)


def as_a_rank(
    work: Callable[[], ProgramEnd], folder: Path, me: Launched, meanwhile: Callable[[], bool]
) -> ProgramEnd | None:
    """Return how the run ended, for rank 0 to judge; None on other ranks. ``meanwhile``: called on rank 0."""
    launcher_rank.register_rank(folder, me)
    own = child.attended(work, lambda: launcher_rank.failed(folder, me), (lambda: False) if me.rank else meanwhile)
    launcher_rank.report_exit(folder, me, own)
    if me.rank:
        launcher_rank.wait_for_verdict(folder, me)
        if own.status:
            raise SystemExit(2 if own.wrong else _FAILED)
        return None
    ended = launcher_rank.all_ended(folder, me)
    wrong = next((end for end in ended.values() if end.wrong), None)
    if wrong:
        return wrong
    bad = [(end.asked, end.status < _KILLED, end.time, rank) for rank, end in ended.items() if end.status]
    if not bad:
        return own
    rank = min(bad)[-1]  # another rank's failure never causes a kill, so kills come first; else the earliest
    first = ended[rank]
    why = first.why.removeprefix("it ")
    return first._replace(why=f"rank {rank} {why}; the others were ended", interrupted=own.interrupted)


@dataclass(frozen=True)
class Telling:
    """The form of the results. ``form``: output format; ``output``: file, None for standard output.

    ``report``: write the page. ``baseline``: known findings; ``keep_in``: the baseline that receives the findings.
    """

    form: str = "text"
    output: Path | None = None
    report: bool = False
    baseline: Baseline | None = None
    keep_in: Path | None = None

    @property
    def aside(self) -> bool:
        """Return whether standard output is reserved for another tool, so that messages go to standard error."""
        return self.form != "text" and self.output is None


def conclude(
    ended: ProgramEnd, folder: Path, meanwhile: Meanwhile, beside: Path, again: WitnessRequest | None, telling: Telling
) -> None:
    """Judge the rest, report it, and exit with the verdict's status."""
    interrupted = ended.interrupted and bool(ended.status)
    failure = "it was interrupted" if interrupted else ended.why or None
    if failure and (lacked := starting.noted(folder / LACKED)):
        failure = f"{failure}; {lacked}"
    (folder / LACKED).unlink(missing_ok=True)
    with held() if interrupted else nullcontext():  # a closing terminal signals twice
        findings = meanwhile.judging().conclude(
            failure=failure, beside=beside, witnesses=again, dry=folder / DRY if again is None else None,
            baseline=telling.baseline, keeping=telling.keep_in.name if telling.keep_in else "",
            failed=bool(ended.status), soon=interrupted,
        )  # fmt: skip
    interrupted = interrupted or meanwhile.judging().interrupted
    folders.forget_ranks(folder)
    folded = folded_output(folder)
    if not interrupted:
        folder = staging.commit(folder)
    if folded:
        print(f"Output: {folder / OUTPUT} has {folded}.", file=sys.stderr if telling.aside else None, flush=True)
    if again is not None and again.limit and findings.races and not interrupted:
        _propose(findings, folder)
    page = None
    if telling.report:
        from streamrace.reports.pages.folders import write

        write([folder], folder / "report", {folder: findings})
        page = folder / "report" / "index.html"
    _tell(findings, folder, page, telling)
    if interrupted:
        raise KeyboardInterrupt
    if unreasoned := meanwhile.judging().unreasoned:
        raise WrongUse(
            f"'# stream-race: ok' at {', '.join(unreasoned)} has no reason: write after it why it is, "
            "or it counts for nothing"
        )
    if findings.status:
        raise SystemExit(findings.status)


def folded_output(folder: Path) -> str:
    """Return what of the ranks' output was not shown, as the end of a sentence, and forget it; empty: all was."""
    note = folder / FOLDED
    text = note.read_text(encoding="utf-8") if note.is_file() else ""
    note.unlink(missing_ok=True)
    return text


def _propose(findings: Findings, folder: Path) -> None:
    """Write the cures that the run's traces prove (``cures.json``)."""
    from streamrace.reports.data.cures import CuresFile
    from streamrace.reports.screen.console import Terminal
    from streamrace.repro.sessions.fixing.proposals import propose

    with Terminal(stderr=True).status("cures in the trace") as status, suppress(OSError):
        cures = propose(folder, findings, lambda text: status.update(text))
        if cures:
            CuresFile(cures=cures).write(folder)


def _tell(findings: Findings, folder: Path, page: Path | None, telling: Telling) -> None:
    from streamrace.reports.data import known_findings
    from streamrace.reports.data.findings import Verdict
    from streamrace.reports.formats import writing
    from streamrace.reports.screen import verdict as screen
    from streamrace.reports.screen.console import Terminal

    screen.verdict(Terminal(stderr=telling.aside), findings, folder, page)
    if findings.verdict == Verdict.FRAGILE and findings.status:
        Terminal(stderr=telling.aside).print("This fails the check: --strict counts what is fragile.", style="yellow")
    if telling.form != "text":
        writing.write(writing.text(findings, telling.form), telling.output)
    elif telling.output is not None:
        buffer = StringIO()
        screen.verdict(Terminal(file=buffer), findings, folder, page)
        writing.write(buffer.getvalue(), telling.output)
    if telling.keep_in is None:
        return
    console = Terminal(stderr=telling.aside)
    if findings.uncertain:
        console.print(
            f"Not written: {telling.keep_in}. Not all of the program was seen, so not all findings would be in it.",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
        return
    writing.write(known_findings.text_of(findings), telling.keep_in)
    console.print(f"Baseline: {telling.keep_in}", highlight=False, soft_wrap=True)
