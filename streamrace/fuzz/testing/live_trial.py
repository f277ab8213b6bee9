"""Judges one test on the simulated GPU under many timings: by its trace, then by live runs.

Its races are found in the trace of a first run. A second run in the same timing shows that the test repeats itself.
Then follow, for each race, a run with the two accesses reversed (:mod:`streamrace.fuzz.live.harm`), and random
timings. The body's asserts, watched values and results decide: nothing is reported that was not observed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from streamrace.detectors import Hang, MayHang, Race, Uninitialised, Unseen, UnwrittenRead, read, registry
from streamrace.detectors.base import found_by
from streamrace.detectors.confidence.waits import Waits
from streamrace.detectors.files import rests_on
from streamrace.detectors.order.races import describe
from streamrace.device.timing import Delay, Deviation, Place, Timing
from streamrace.device.tokens import Stretch
from streamrace.fuzz.live.draw import draw
from streamrace.fuzz.live.harm import Examination, LiveWitness
from streamrace.fuzz.live.uninitialised import confirm
from streamrace.fuzz.shrink import shrink
from streamrace.fuzz.testing.bodies import Body, Describe, Problem
from streamrace.fuzz.testing.forked import NO_FAILURE, Done, Forks
from streamrace.fuzz.testing.lines import by_pytest, own, timing_lines
from streamrace.fuzz.testing.options import Options
from streamrace.fuzz.testing.report import (
    BLIND,
    BodyFailed,
    JudgedTest,
    Shown,
    hang_lines,
    in_token,
    races_so_far,
    report,
)
from streamrace.fuzz.watched_values import NoTensors
from streamrace.trace.records import TraceError

_PLAIN = Timing()
_AT_ONCE = Timing((Stretch("host", 1 << 19),))  # each piece of work is done before the next is issued
_MOST_RACES = 8  # races that are examined
_LEAST_S, _PATIENCE = 60.0, 20  # limit of a run: seconds at least, and as a multiple of the first run


class LiveTrial:
    """``name`` seeds the timings; ``command`` returns the command for a token. ``notes``: also printed if it passes."""

    def __init__(
        self, name: str, command: Callable[[str], str], body: Body, options: Options, folder: Path, tell: Describe
    ) -> None:
        self._name = name
        self._command = command
        self._options = options
        self._folder = folder
        self._forks = Forks(body, options, folder, tell)
        self._waits, self._detectors = Waits(), [make() for make in registry.DETECTORS]
        self.notes: list[str] = []

    def check(self) -> str | None:
        """Return a report if something is wrong with the test. Raises :class:`BodyFailed` and :class:`Problem`."""
        first, races = self._record()
        control = self._forks.run(_PLAIN)
        if wrong := control.wrong(first):
            raise Problem(
                f"the test has another result when it runs again in the same timing, so runs cannot be compared: "
                f"{wrong[0]}; its body has to build all that it changes"
            )
        looks = bool(first.values) or any(recorded.reads for recorded in first.run.values())
        unwritten = self._unwritten()
        judged = self._judged(races, first, control, looks)
        failing = None
        if looks and not any(race.word == "harmful" for race in judged):
            failing = self._search(control)
        accused = [race for race in judged if self._options.benign == "fail" or race.word != "benign"]
        self._note(races)
        orders = found_by(self._detectors, MayHang)
        if failing is None and not accused and not unwritten and not orders:
            return None
        lines = report(judged if failing else accused, failing, self._command, unwritten, orders)
        return "\n".join([*lines, *(["", *self.notes] if self.notes else [])])

    def once(self, timing: Timing, *, strict: bool = True) -> str | None:
        """Run in one timing alone; return a report if the run's result is wrong.

        A timing of other work is a :class:`Problem`; not ``strict``: it may be of another function of the same test.
        """
        first, _ = self._record()
        for deviation in timing.deviations:
            if isinstance(deviation, Delay) and not _has(first, deviation.place):
                where = f"no {deviation.place.occurrence}. {deviation.place.kernel} on stream {deviation.place.stream}"
                problem = f"the timing does not fit this test any more: there is {where} of rank {deviation.place.rank}"
                if strict:
                    raise Problem(problem)
                self.notes.append(f"One of its functions did not run in the timing, as it has {where}.")
                return None
        run = self._forks.run(timing)
        if not timing.deviations:  # the race shows in the plain timing: only at_once has the program's order
            first = self._forks.run(_PLAIN, at_once=True)
        words = timing_lines(timing, first.run)
        if run.failure is not None:
            raise BodyFailed(run.failure, "stream timing", words)
        wrong = run.wrong(first)
        return in_token(words, wrong) if wrong else None

    def _record(self) -> tuple[Done, list[Race]]:
        """Return the plain run, and its races."""
        folder = self._folder / "first"
        began = time.monotonic()
        first = self._forks.keep(_PLAIN, folder)
        self._forks.patience_s = max(_LEAST_S, _PATIENCE * (time.monotonic() - began))
        races: list[Race] = []
        try:
            read(folder, [self._waits, *self._detectors])
            races = found_by(self._detectors, Race)
        except TraceError:
            if first.failure is None:
                raise
        races = [race for race in races if not (by_pytest(race.first) or by_pytest(race.second))]
        if first.failure is not None:
            if first.failure.kind == NoTensors.__name__:
                raise Problem(first.failure.line.partition(": ")[2])
            skipped = first.failure.kind in NO_FAILURE
            if hangs := found_by(self._detectors, Hang):
                raise BodyFailed(first.failure, "hang", hang_lines(hangs[0]))
            raise BodyFailed(first.failure, "stream races", [] if skipped else races_so_far(races))
        if not any(recorded.works for recorded in first.run.values()):
            raise Problem("the test issues no work to the simulated GPU: there is no timing to fuzz")
        return first, races

    def _unwritten(self) -> Sequence[Uninitialised]:
        """Return what depends on memory that nobody wrote, unless the test allows that."""
        if self._options.uninitialised == "allow":
            return ()
        reads = found_by(self._detectors, UnwrittenRead)
        proven, notes = confirm(reads, lambda filled: self._forks.run(_PLAIN, unwritten=filled), _MOST_RACES)
        self.notes += [f"Not known: {sentence}." for sentence in notes]
        return proven

    def _judged(self, races: Sequence[Race], first: Done, control: Done, looks: bool) -> list[JudgedTest]:
        if not looks:
            return [JudgedTest(race, "not judged", None, BLIND) for race in races]
        if not races:
            return []
        runs = Examination(first, control, self._forks, _PLAIN, self._command, self._folder / "first")
        witnesses = runs.all(races, _MOST_RACES)
        return [self._of(witness, first) for witness in witnesses]

    def _of(self, witness: LiveWitness, first: Done) -> JudgedTest:
        if witness.outcomes is None:
            return JudgedTest(witness.race, "not judged", None, witness.says)
        outcome, reference = witness.outcomes
        assert isinstance(outcome, Done) and isinstance(reference, Done)
        words = timing_lines(Timing.parse(witness.token), first.run)
        shown = Shown(witness.token, words, outcome.wrong(reference))
        return JudgedTest(witness.race, "harmful" if witness.verdict == "harmful" else "benign", shown)

    def _search(self, control: Done) -> Shown | None:
        """Return the first timing that goes wrong, shrunk, and what goes wrong in it."""
        outcomes: dict[str, Done] = {}

        def run(deviations: Sequence[Deviation]) -> Done:
            timing = Timing(tuple(deviations))
            if str(timing) not in outcomes:
                outcomes[str(timing)] = replace(self._forks.run(timing), run={})  # keeps the test's results only
            return outcomes[str(timing)]

        def wrong(deviations: Sequence[Deviation]) -> list[str]:
            return run(deviations).wrong(control)

        generator = random.Random(f"{self._options.seed}/{self._name}")
        drawn = (draw(generator, control.run) for _ in range(self._options.examples))
        for timing in (_AT_ONCE, *drawn):
            if wrong(timing.deviations):
                budget = 100 if self._options.ranks == 1 else 30
                if run(timing.deviations).status is None:
                    budget = 1  # each run that does not end takes the full time limit
                smallest = shrink(lambda some: bool(wrong(some)), timing.deviations, budget=budget).deviations
                small = Timing(smallest)
                return Shown(str(small), timing_lines(small, control.run), wrong(smallest))
        return None

    def _note(self, races: Sequence[Race]) -> None:
        """Add notes on what was not seen, and on what is ordered only by chance."""
        self.notes += [f"Not known: {sentence}." for sentence in found_by(self._detectors, Unseen)]
        if races:
            return
        for wait in rests_on(self._folder / "first", self._waits).held:
            where = ", ".join(map(str, wait.sites))
            pairs = [
                " before ".join(describe(side.kernel, own(side.stack)) for side in (race.first, race.second))
                for race in wait.races
                if not (by_pytest(race.first) or by_pytest(race.second))
            ]
            if pairs:
                self.notes.append(f"Fragile: only {where} puts {', '.join(pairs)}.")


def _has(run: Done, place: Place) -> bool:
    return place.rank in run.run and run.run[place.rank].works.number(place) is not None
