"""Finds the effect of a race on a checked program: runs it again with the two accesses reversed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from streamrace.detectors import Race, Uninitialised, UnwrittenRead
from streamrace.detectors.places import at
from streamrace.detectors.witness import Witness, judged
from streamrace.device.timing import Timing
from streamrace.process.interrupts import concluding
from streamrace.repro.sessions import sentences
from streamrace.trace import wording
from streamrace.trace.records import TraceError

if TYPE_CHECKING:
    from streamrace.fuzz.live.harm import LiveWitness
    from streamrace.reports.data.witnesses import SeenElsewhere

_PATIENCE = 5  # multiple of the program's first duration, and a lower bound
_LEAST_S = 30.0
_NOT_ASKED = "not asked for by --witness-of"


@dataclass
class WitnessRequest:
    """Runs the program again for up to ``limit`` races, selected by ``of`` if not empty.

    ``command``: its words after ``streamrace device``. ``of``: places (:func:`at`), all of which a race has to have.

    ``timing``: of the first run; None if no token can express it. ``took_s``: its duration. ``launched``: a launcher
    started its ranks, so it cannot be started again from here. ``failed``: it broke off. ``packages``: the releases of
    this process and its children, included in printed commands. ``interrupted``: Ctrl-C came during a further run, so
    no more are started; results up to then stay.
    """

    command: Sequence[str]
    timing: Timing | None
    limit: int
    took_s: float
    launched: bool = False
    failed: bool = False
    of: Sequence[str] = ()
    packages: Sequence[str] = ()
    interrupted: bool = field(default=False, init=False)

    def __call__(self, trace: Path, races: Sequence[Race]) -> Sequence[Witness]:
        """Return a result for each race, in order; empty if ``limit`` is 0."""
        if not self.limit:
            return ()
        if why := self._cannot():
            return [_none(why)] * len(races)
        from streamrace.fuzz.live.harm import examine
        from streamrace.reports.data.witnesses import WitnessesFile
        from streamrace.reports.screen.console import Terminal
        from streamrace.reports.screen.working import Working

        assert self.timing is not None
        all_races, races = races, [race for race in races if all(at(race, place) for place in self.of)]
        if not races:
            return [_none(f"--witness-of {wording.every(self.of)} is no race of these")] * len(all_races)
        many = wording.count(min(self.limit, len(races)), "race does", "races do")
        number = {id(race): at for at, race in enumerate(all_races, 1)}
        stored: list[SeenElsewhere] = []
        settled: dict[int, Witness] = {}
        cut = ""

        def look(live: LiveWitness) -> None:
            working.update(f"{len(settled) + 1} of {min(self.limit, len(races))} judged")
            settled[id(live.race)] = Witness(live.token, live.reason, live.verdict, live.says, live.command)
            if (elsewhere := _seen(live, number[id(live.race)])) is not None:
                stored.append(elsewhere)

        began = time.monotonic()
        console = Terminal(stderr=True)
        try:
            says = f"running the program again, to see what {many} to it (--witnesses 0: not)"
            with concluding(), Working(console, says) as working:
                for outcome in examine(
                    trace,
                    races,
                    self.command,
                    timing=self.timing,
                    limit=self.limit,
                    prefix=(
                        *("streamrace", "check", "--witnesses", "0"),
                        *(word for package in self.packages for word in ("--package", package)),
                    ),
                    patience_s=max(_LEAST_S, _PATIENCE * self.took_s),
                    look=look,
                    beside=all_races,
                ):
                    settled.setdefault(id(outcome.race), _none(outcome.says))  # no run was made for this race
        except KeyboardInterrupt:
            self.interrupted = True
            cut = f"interrupted after {time.monotonic() - began:.0f} s of running the program again"
        except (TraceError, RuntimeError, OSError) as problem:
            place = sentences.no_place(problem) if isinstance(problem, OSError) else None
            cut = f"the program cannot be run again: {place or problem}"
        if stored or not cut:
            with suppress(OSError) if cut else nullcontext():  # the verdict counts even where the disk is full
                WitnessesFile(witnesses=stored).write(trace.parent)
        wanted = {id(race) for race in races}
        return [settled.get(id(race)) or _none(cut if id(race) in wanted else _NOT_ASKED) for race in all_races]

    def unwritten(self, reads: Sequence[UnwrittenRead]) -> tuple[Sequence[Uninitialised], Sequence[str]]:
        """Return the reads that have an effect, and the open cases, in sentences without full stops."""
        from streamrace.fuzz.live.runs import LiveProgram, Runner
        from streamrace.fuzz.live.uninitialised import confirm, unknown
        from streamrace.reports.screen.console import Terminal
        from streamrace.reports.screen.working import Working

        if why := self._cannot() or ("" if self.limit else "--witnesses 0 runs the program once"):
            return (), (unknown(reads, why),)
        assert self.timing is not None
        timing, says = (
            self.timing,
            "running the program again with other bytes where nothing wrote (--witnesses 0: not)",
        )
        try:
            with concluding(), Working(Terminal(stderr=True), says), Runner() as runner:
                program = LiveProgram(self.command, runner, max(_LEAST_S, _PATIENCE * self.took_s))
                return confirm(reads, lambda filled: program.run(timing, unwritten=filled), self.limit)
        except KeyboardInterrupt:
            self.interrupted = True
            return (), (unknown(reads, "it was interrupted"),)
        except (TraceError, RuntimeError, OSError) as problem:
            place = sentences.no_place(problem) if isinstance(problem, OSError) else None
            return (), (unknown(reads, f"the program cannot be run again: {place or problem}"),)

    def _cannot(self) -> str:
        if self.interrupted:
            return "it was interrupted while the program ran again"
        if self.failed:
            return "the program broke off"
        if self.launched:
            return "a launcher started the ranks: 'streamrace check --ranks N' runs the program again for a witness"
        if self.timing is None:
            return "no token can say what --slow asks for: give whole factors from 2 on"
        return ""


def _seen(witness: LiveWitness, race: int) -> SeenElsewhere | None:
    """Return the observation of race number ``race`` in the other timing."""
    from streamrace.reports.data.witnesses import SeenElsewhere
    from streamrace.reports.timelines import witness_window

    if witness.outcomes is None or witness.occurrence is None or witness.pair is None:
        return None
    reversed_, program = witness.outcomes
    outcome = program if witness.occurrence.manifested else reversed_
    window = witness_window.window(outcome.run, witness.pair)
    if window is None:
        return None
    order: Literal["program", "reversed"] = "program" if outcome is program else "reversed"
    return SeenElsewhere(race=race, order=order, occurrence=witness.occurrence, window=window)


def _none(why: str) -> Witness:
    return judged("not confirmed", why)
