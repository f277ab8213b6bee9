"""Runs a program live without the waits of some of its lines, and finds the races that appear."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from streamrace.detectors import Race
from streamrace.detectors.confidence.waits import Waits, place_of
from streamrace.detectors.files import read
from streamrace.detectors.identity import identity
from streamrace.detectors.race_detector import RaceDetector
from streamrace.device.timing import Timing
from streamrace.fuzz.live.harm import LiveWitness, examine
from streamrace.fuzz.live.runs import Runner
from streamrace.trace.files import file_of
from streamrace.trace.records import TraceError


@dataclass(frozen=True)
class WithoutWaits:
    """The result of a run. ``races``: those not found with all waits. ``failure``: why there is no result.

    ``status``: its exit status, None if it was ended. ``again``: ``races`` has some of the wanted races, by their
    places; ``witness``: of the first of these.
    """

    races: tuple[Race, ...] = ()
    status: int | None = 0
    again: bool = False
    witness: LiveWitness | None = None
    failure: str = ""


@dataclass(frozen=True)
class WaitRemovalRun:
    """Runs ``program`` (its words after ``streamrace device``, without ``ranks``) in ``timing``, without some waits.

    ``base``: the races of the program with all its waits.
    """

    program: Sequence[str]
    ranks: int
    timing: Timing
    base: Sequence[Race]
    runner: Runner
    patience_s: float

    def run(self, places: Sequence[str], wanted: Sequence[Race] = (), *, witness: bool = False) -> WithoutWaits:
        """Run without the waits at ``places`` (``witness``: examine the first race of ``wanted`` that appears).

        Raises RuntimeError without a simulated GPU.
        """
        command = [
            *(["--ranks", str(self.ranks)] if self.ranks else []),
            *(word for place in places for word in ("--without", place)),
            *self.program,
        ]
        with tempfile.TemporaryDirectory(prefix="without-") as temporary:
            folder = Path(temporary)
            place = folder if self.ranks else file_of(folder, 0)
            options = ["--trace", str(place), "--timing", str(self.timing)]
            status = self.runner.run([*options, *command], patience_s=self.patience_s)
            if status is None:
                return WithoutWaits(status=None, failure=f"it did not end within {self.patience_s:.0f} s")
            waits, detector = Waits(every=True), RaceDetector()
            try:
                read(folder, [waits, detector])
            except TraceError as problem:
                return WithoutWaits(status=status, failure=str(problem))
            if why := _not_left_out(waits, places):
                return WithoutWaits(status=status, failure=why)
            all_races = detector.races
            base_keys = {identity(race) for race in self.base}
            races = [race for race in all_races if identity(race) not in base_keys]
            keys = {identity(race) for race in wanted}
            again = [race for race in races if identity(race) in keys]
            shown = None
            if again and witness:
                (shown,) = examine(
                    folder,
                    again[:1],
                    command,
                    timing=self.timing,
                    runner=self.runner,
                    patience_s=self.patience_s,
                )
            return WithoutWaits(tuple(races), status, bool(again), shown)


def _not_left_out(waits: Waits, places: Sequence[str]) -> str:
    """Return why this was not a run without those waits; empty if it was."""
    left_out = {place_of(wait.how, wait.frame) for wait in waits.left_out}
    remaining = {place_of(waits.operations.get(site, ""), site.frame) for site in waits.sites}
    for place in places:
        if place in remaining:
            return f"{place} could not be left out"
        if place not in left_out:
            return f"it does not come by {place}"
    return ""
