"""Decides whether races of a program on the simulated GPU are harmful: runs it again with the accesses reversed.

The two accesses are unordered, so delaying the first lets the second come first; whether it did is read from the trace
of the new run. Three runs are compared by the values that the program read (:mod:`streamrace.device.probes`): the
judged run, a *control* in the same timing, which shows that the program repeats itself, and the witness. The delay also
moves the work that waits for the delayed work, and may reverse other races. If it does and the program reads other
values, those races are delayed back, so that each race is judged alone; the reason names the races that remain
reversed.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from streamrace.detectors.identity import RaceKey, identity
from streamrace.detectors.order.races import Occurrence, Race, Side
from streamrace.detectors.witness import Witness
from streamrace.device.timing import Delay, Place, Timing
from streamrace.device.tokens import Stretch, rounded
from streamrace.fuzz.live.run_record import RecordedRun, Touch, begins, load
from streamrace.fuzz.live.runs import LiveOutcome, LiveProgram, Runner
from streamrace.fuzz.occurrences import spread, spread_of
from streamrace.trace import wording

_MOST = 1 << 40  # nanoseconds, 18 minutes: more than any delay needed
_NOTHING = "the program sees the same"
_QUIET = Stretch("host", 1000)  # launches come so late that earlier work has ended: the program's own order
_APART = 4  # other races that are delayed back, at most
_KEPT = 4  # cached outcomes, at most: each holds the values that a run left
_Wanted = Callable[[int], bool]
_Found = tuple[Timing, LiveOutcome]


@dataclass(frozen=True, kw_only=True)
class LiveWitness(Witness):
    """The effect of a race on the program. ``pair``: ``occurrence`` in terms for other runs.

    ``outcomes``: of the run in the witness's timing, and of the run with the program's order that it was compared to;
    ``against``: the latter's timing, empty if its launches were waited for at once.
    """

    race: Race
    outcomes: tuple[LiveOutcome, LiveOutcome] | None = None
    against: str = ""
    occurrence: Occurrence | None = None
    pair: RacingPair | None = None


class LiveSubject(Protocol):
    """A program that can be run live repeatedly. ``patience_s``: a run that takes longer is ended."""

    @property
    def patience_s(self) -> float: ...

    def run(self, timing: Timing, *, at_once: bool = False) -> LiveOutcome:
        """Run the program in ``timing``; ``at_once``: the host waits for each launch."""
        ...


class RacingPair(NamedTuple):
    """An occurrence of a race, in terms that another run of the program understands."""

    rank: int
    first: Place
    first_touch: Touch
    second: Place
    second_touch: Touch

    def gap(self, run: RecordedRun) -> int | None:
        """Return the nanoseconds from the first to the second (negative: reversed); None unless both are present."""
        if self.rank not in run:
            return None
        first = run[self.rank].time(self.first, self.first_touch)
        second = run[self.rank].time(self.second, self.second_touch)
        return None if first is None or second is None else second - first


def examine(
    folder: Path,
    races: Sequence[Race],
    command: Sequence[str],
    *,
    timing: Timing | None = None,
    limit: int = 8,
    prefix: Sequence[str] = ("streamrace", "device"),
    runner: Runner | None = None,
    patience_s: float = 600.0,
    look: Callable[[LiveWitness], None] | None = None,
    beside: Sequence[Race] = (),
) -> list[LiveWitness]:
    """Return a witness for each race of the run whose traces lie in ``folder``, in their order.

    Only ``look`` sees their outcomes, which may be very many. ``command``: the command that ran, without ``streamrace
    device``. ``timing``: its timing. Races beyond ``limit`` are not examined, and marked so. ``prefix``: the first
    words of the witnesses' commands. ``beside``: all races of the run, whose numbers are used in reasons (default:
    ``races``). ``runner``: runs the program (default: a new one), and ends a run that takes longer than ``patience_s``.

    Runs the program once, and at most three times for each occurrence of a race that is tried. The program writes its
    files again. Raises :class:`streamrace.trace.records.TraceError` if the folder has no traces.
    """
    if not races:
        return []
    timing = timing or Timing()
    judged = load(folder, kept=True)
    thinned = any(witness.thinned for witness in judged.values())
    with contextlib.ExitStack() as stack:
        program = LiveProgram(command, runner or stack.enter_context(Runner()), patience_s)
        control = program.run(timing)

        def again(token: str) -> str:
            return shlex.join([*prefix, "--timing", token, *command])

        # the status of the judged run is not known here: its traces say how it ended
        first = LiveOutcome(judged, control.status)
        if thinned:  # later values are missing: a run with the same beginning replaces the judged one
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="judged-")))
            first = program.run(timing, folder=folder)
            if not begins(judged, first.run):
                why = "a second run in the same timing is another from its beginning on"
                return [_unconfirmed(race, why) for race in races]
        examination = Examination(first, control, program, timing, again, folder, beside or races)
        return examination.all(races, limit, look=look or _ignore)


class Examination:
    """Examines races by running a program again. Raises nothing that could be reported as a reason.

    ``control``: a second run in ``timing``, the timing of ``judged``. ``again``: returns the command for a token.
    ``folder``: the traces of the judged run. ``races``: all races of that run.
    """

    def __init__(
        self,
        judged: LiveOutcome,
        control: LiveOutcome,
        program: LiveSubject,
        timing: Timing,
        again: Callable[[str], str],
        folder: Path,
        races: Sequence[Race] = (),
    ) -> None:
        self._races = list(races)
        self._judged, self._control, self._program, self._timing = judged, control, program, timing
        # neighbouring occurrences often need the same delay
        self._run = functools.lru_cache(_KEPT)(program.run)
        self._again, self._folder = again, folder
        self._at_once: LiveOutcome | None = None
        self._occurrences: dict[RaceKey, list[Occurrence]] | None = None
        self._wanted: list[RaceKey] = []
        self._quiet: LiveOutcome | None = None
        self._shown = False

    def all(
        self, races: Sequence[Race], limit: int, *, look: Callable[[LiveWitness], None] | None = None
    ) -> list[LiveWitness]:
        """Return a witness for each race, in their order; races beyond ``limit`` are marked as not examined.

        ``look``: called with each witness when found; its outcomes are released afterwards.
        """
        other = self._control.differs(self._judged)
        if self._control.status is None:
            other = "whether it ends in time"
        if other:
            return [_unconfirmed(race, f"a second run in the same timing differs by itself: {other}") for race in races]
        self._shown = any(race.manifested for race in races)
        self._wanted = [identity(race) for race in races[:limit]]
        witnesses: list[LiveWitness] = []
        for race in races[:limit]:
            witness = self._examined(race)
            if look is not None:
                look(witness)
                witness = replace(witness, outcomes=None)
            witnesses.append(witness)
        beyond = f"not examined, as only {wording.count(limit, 'race is', 'races are')}"
        return witnesses + [_unconfirmed(race, beyond) for race in races[limit:]]

    def _examined(self, race: Race) -> LiveWitness:
        """Return the first harmful occurrence; else a benign verdict on those tried; else why none was reversed."""
        witness = self._try_occurrence(race, race.examples[0])  # usually sufficient, and the others need not be found
        if witness.verdict == "harmful":
            return witness
        witnesses = [witness]
        for occurrence in self._spread(race)[1:]:
            witness = self._try_occurrence(race, occurrence)
            if witness.verdict == "harmful":
                return witness
            witnesses.append(witness)
        benign = [witness for witness in witnesses if witness.verdict == "benign"]
        if not benign or race.occurrences == 1:
            return witnesses[0]
        sentence = f"in the opposite order in {len(benign)} of its {race.occurrences} occurrences"
        return replace(benign[0], says=f"{sentence}, one at a time, {_NOTHING}")

    def _try_occurrence(self, race: Race, occurrence: Occurrence) -> LiveWitness:
        pair = self._pair(race, occurrence)
        if pair is None:
            return _unconfirmed(race, "its work is not in the trace")
        return replace(self._reversed(race, pair), occurrence=occurrence, pair=pair)

    def _spread(self, race: Race) -> Sequence[Occurrence]:
        """Choose some occurrences. If the race does not hold all of them, the traces are read again, once."""
        if race.occurrences <= len(race.examples):
            return spread(race.examples)
        if self._occurrences is None:
            self._occurrences = spread_of(self._folder, self._wanted)
        return self._occurrences[identity(race)]

    def _pair(self, race: Race, occurrence: Occurrence) -> RacingPair | None:
        rank = self._judged.run.get(occurrence.rank)
        if rank is None:
            return None
        first, second = (rank.place(moment, occurrence.block) for moment in (occurrence.first, occurrence.second))
        if first is None or second is None:
            return None
        return RacingPair(occurrence.rank, first, _touch(race.first), second, _touch(race.second))

    def _reversed(self, race: Race, pair: RacingPair) -> LiveWitness:
        gap = pair.gap(self._control.run)
        if gap is None:
            return _unconfirmed(race, "its work never came to its end")
        witness = (
            self._corrected(race, pair, gap) if gap < 0 else self._late(race, pair, gap, self._timing, self._control)
        )
        return self._in_quiet(race, pair) or witness if witness.verdict == "benign" and self._shown else witness

    def _late(self, race: Race, pair: RacingPair, gap: int, timing: Timing, control: LiveOutcome) -> LiveWitness:
        """Delay the first access, which comes ``gap`` before the second in ``control``, the run in ``timing``."""
        trial = self._delayed(timing, pair, pair.first, pair.first_touch, gap, holds=lambda now: now < 0)
        if isinstance(trial, str):
            return _unconfirmed(race, trial)

        def judge(trial: _Found) -> LiveWitness:
            return self._judged_by(race, *trial, control, timing)

        return self._isolated(pair, control, trial, lambda now: now < 0, judge)

    def _in_quiet(self, race: Race, pair: RacingPair) -> LiveWitness | None:
        """Return a witness if reversing the pair alone, all else in the program's order, is harmful; else None.

        If this timing shows races, these may have corrupted already what the pair would corrupt: it would seem benign.
        """
        quiet = Timing((*self._timing.deviations, _QUIET))
        if self._quiet is None:
            self._quiet = self._run(quiet)
        gap = pair.gap(self._quiet.run)
        if gap is None or gap < 0:
            return None
        witness = self._late(race, pair, gap, quiet, self._quiet)
        return witness if witness.verdict == "harmful" else None

    def _corrected(self, race: Race, pair: RacingPair, gap: int) -> LiveWitness:
        """Use the run itself as the witness, as it has the pair reversed; compare with the program's order."""
        late = (pair.second, pair.second_touch, -gap)
        trial = self._delayed(self._timing, pair, *late, holds=lambda now: now >= 0)
        if isinstance(trial, str):
            if self._at_once is None:
                self._at_once = self._run(self._timing, at_once=True)
            now = pair.gap(self._at_once.run)
            if now is None or now < 0:
                return _unconfirmed(race, f"shown in this timing, and no other was found to compare with: {trial}")
            witness = self._judged_by(race, self._timing, self._control, self._at_once, None)
            return self._with_names(witness, self._turned(pair, self._control, self._at_once))

        def judge(trial: _Found) -> LiveWitness:
            return self._judged_by(race, self._timing, self._control, trial[1], trial[0])

        return self._isolated(pair, self._control, trial, lambda now: now >= 0, judge)

    # -- other races ----------------------------------------------------------------------------------------

    def _isolated(
        self,
        pair: RacingPair,
        base: LiveOutcome,
        trial: _Found,
        holds: _Wanted,
        judge: Callable[[_Found], LiveWitness],
    ) -> LiveWitness:
        """Judge ``trial``, for whose gap ``holds``, with all other races as in ``base`` if possible."""
        witness = judge(trial)
        if witness.verdict != "harmful" or not (turned := self._turned(pair, base, trial[1])):
            return witness
        for _ in range(_APART):
            _, other, before, now = turned[0]
            back = (other.first, other.first_touch) if before < 0 else (other.second, other.second_touch)
            next_ = self._delayed(trial[0], other, *back, abs(now), holds=lambda now, was=before < 0: (now < 0) == was)  # type: ignore[misc]
            if isinstance(next_, str) or (gap := pair.gap(next_[1].run)) is None or not holds(gap):
                break
            trial, turned = next_, self._turned(pair, base, next_[1])
            if not turned:
                break
        return self._with_names(judge(trial), turned)

    def _turned(
        self, pair: RacingPair, base: LiveOutcome, other: LiveOutcome
    ) -> list[tuple[Race, RacingPair, int, int]]:
        """Return the pairs of other races whose order differs in ``other``, with nanoseconds from first to second.

        Pairs that share a piece of work with ``pair`` are left out: the same delay moves both.
        """
        turned = []
        for race in self._races:
            for occurrence in race.examples:
                other_pair = self._pair(race, occurrence)
                if other_pair is None or {other_pair.first, other_pair.second} & {pair.first, pair.second}:
                    continue
                before, now = other_pair.gap(base.run), other_pair.gap(other.run)
                if before is not None and now is not None and (before < 0) != (now < 0):
                    turned.append((race, other_pair, before, now))
        return turned

    def _with_names(self, witness: LiveWitness, turned: Sequence[tuple[Race, RacingPair, int, int]]) -> LiveWitness:
        numbers = sorted({at for at, race in enumerate(self._races, 1) for other, *_ in turned if other is race})
        if witness.verdict != "harmful" or not numbers:
            return witness
        races = f"{wording.plural_of(len(numbers), 'race')} {wording.every(numbers)}"
        return replace(witness, says=f"{witness.says}; {races} could not be kept as in the other run, and may be why")

    def _delayed(
        self, base: Timing, pair: RacingPair, place: Place, touch: Touch, gap: int, holds: _Wanted
    ) -> _Found | str:
        """Delay one side until ``holds`` is true of the gap; return the timing and its run, or why there is none."""
        needed = gap + 1
        last: int | None = None
        while needed <= _MOST:
            ns = rounded(needed)
            delay = Delay(place, "late" if touch == "start" else "long", ns)
            timing = Timing((*base.deviations, delay))
            outcome = self._run(timing)
            now = pair.gap(outcome.run)
            if now is None:
                return f"with {_short(place)} delayed the program does not come to both"
            if holds(now):
                return timing, outcome
            if abs(now) >= gap or now == last:  # the other side waits for the delayed one
                other = pair.second if place == pair.first else pair.first
                return f"{_short(other)} comes after {_short(place)} however late that is"
            needed, last = 8 * ns, now
        return "no delay is long enough"

    def _judged_by(
        self, race: Race, timing: Timing, outcome: LiveOutcome, reference: LiveOutcome, against: Timing | None
    ) -> LiveWitness:
        """Compare ``outcome``, the run in ``timing``, which shows the race, with ``reference``, the run in ``against``.

        The ``reference`` has the program's order.
        """
        if None in (outcome.status, reference.status):
            return _unconfirmed(race, f"the program did not end within {self._program.patience_s:.0f} s")
        token, other = str(timing), outcome.differs(reference)
        values = outcome.changed(reference)
        differs = f"{other} differs{f' ({values})' if values else ''}"
        return LiveWitness(
            race=race,
            token=token,
            reason="",
            verdict="harmful" if other else "benign",
            says=f"in the opposite order, {differs if other else _NOTHING}",
            command=self._again(token),
            outcomes=(outcome, reference),
            against=str(against) if against else "",
        )


def _ignore(witness: LiveWitness) -> None:
    """Ignore the outcomes."""


def _unconfirmed(race: Race, reason: str) -> LiveWitness:
    return LiveWitness(race=race, token="", reason=reason, verdict="not confirmed", says=reason)


def _touch(side: Side) -> Touch:
    return "start" if side.access == "read" and side.kernel.startswith("nccl::") else "end"


def _short(place: Place) -> str:
    return f"{wording.operator(place.kernel)} on stream {place.stream}"
