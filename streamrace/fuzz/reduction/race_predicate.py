"""Decides whether a smaller program still shows the race, and whether the race still has the same effect.

No new race may appear: a wait that orders something else stays. Races are identified by their kinds, kernels and
functions, because lines move.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from streamrace.detectors.files import find_races
from streamrace.detectors.identity import LastingKey, lasting
from streamrace.detectors.order.races import Race
from streamrace.detectors.places import between
from streamrace.device.timing import Timing
from streamrace.fuzz.live.harm import LiveWitness
from streamrace.fuzz.live.runs import Runner
from streamrace.fuzz.live.standalone import Alone, standing
from streamrace.fuzz.reduction.search import Files
from streamrace.trace import wording
from streamrace.trace.records import TraceError


@dataclass(frozen=True)
class Look:
    """The races that a program shows. ``race``: the wanted one; None if it is missing, with ``why``. ``races``: all.

    ``keys``: of all races. ``witness``: of the wanted race, if requested.
    """

    race: Race | None = None
    races: tuple[Race, ...] = ()
    keys: frozenset[LastingKey] = frozenset()
    witness: LiveWitness | None = None
    why: str = ""


@dataclass
class Shows:
    """Predicate: a program still shows the race. ``program``: how to run it; a trial replaces its files.

    ``wanted``: the race. ``harm``: its verdict; empty: any. ``known``: races that may appear; None: any. ``timing``: of
    the runs. ``mended``: a runner that mends the race, and two places: no race may be between them then, nor a new one.
    """

    program: Alone
    wanted: LastingKey
    timing: Timing
    runner: Runner
    patience_s: float
    harm: str = ""
    known: frozenset[LastingKey] | None = None
    mended: tuple[Runner, tuple[str, str]] | None = None

    def __call__(self, files: Files) -> bool:
        look = self.look(files)
        if look.race is None or (self.harm and (look.witness is None or look.witness.verdict != self.harm)):
            return False
        return not self.unmended(files)

    def unmended(self, files: Files) -> str:
        """Return what is wrong where the race is mended, as the end of a sentence; empty if nothing is."""
        if self.mended is None:
            return ""
        runner, places = self.mended
        with standing(replace(self.program, files=files), runner, self.patience_s) as runs:
            first, traces = runs.keep(self.timing)
            if first.status is None:
                return f"does not end within {self.patience_s:.0f} s"
            if first.status:
                return f"ends with status {first.status}{_last_line(runs.output())}"
            try:
                races = find_races(traces)
            except TraceError as problem:
                return f"left no traces: {problem}"
        known_keys = (self.known or frozenset()) - {self.wanted}
        wrong = [race for race in races if between(race, places) or lasting(race) not in known_keys]
        return f"has {_counted(len(wrong), 'race')} there: {wrong[0].missing_wait}" if wrong else ""

    def look(self, files: Files, *, twice: bool = False) -> Look:
        """Run the program and find its races. ``twice``: a second run has to repeat it. Raises RuntimeError: no GPU."""
        with standing(replace(self.program, files=files), self.runner, self.patience_s) as runs:
            first, traces = runs.keep(self.timing)
            if first.status is None:
                return Look(why=f"it did not end within {self.patience_s:.0f} s")
            if first.status:
                return Look(why=f"it ends with status {first.status}{_last_line(runs.output())}")
            try:
                races = find_races(traces)
            except TraceError as problem:
                return Look(why=str(problem))
            keys = frozenset(map(lasting, races))
            race = next((race for race in races if lasting(race) == self.wanted), None)
            if race is None:
                return Look(keys=keys, why=f"it has {_counted(len(races), 'race')}, and not this one")
            if self.known is not None and not keys <= self.known:
                return Look(keys=keys, why="it has races that were not there")
            witness = None
            if self.harm or twice:
                control = runs.run(self.timing) if twice else first
                witness = runs.witness(race, first, control, self.timing, traces)
            return Look(race, tuple(races), keys, witness)


def _counted(count: int, noun: str) -> str:
    return wording.count(count, noun) if count else f"no {noun}s"


def _last_line(output: str) -> str:
    lines: Iterable[str] = [line.strip() for line in output.splitlines() if line.strip()]
    last = next((line for line in reversed([*lines]) if not line.startswith("streamrace:")), "")
    return f" ({last[:300]})" if last else ""
