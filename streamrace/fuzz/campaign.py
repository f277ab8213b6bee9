"""Executes many timings of a subject, drawn by Hypothesis, and shrinks the smallest one that fails."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import SkipTest

from hypothesis import Phase, Verbosity, find, settings
from hypothesis.database import DirectoryBasedExampleDatabase, choices_to_bytes
from hypothesis.errors import NoSuchExample

from streamrace.fuzz.shrink import identity, shrink
from streamrace.fuzz.strategy import timings_with_choices
from streamrace.fuzz.subject import Subject
from streamrace.fuzz.verdict import ReplayVerdict
from streamrace.replay.deviations import Deviation, Jitter, OperationDelay, Stretch
from streamrace.replay.tokens import Token

_DRAWS_PER_TIMING = 4  # Hypothesis may need this many draws to reach a timing that was not executed before
_BY_HYPOTHESIS = 0.6  # share of the shrinking budget; the rest is left for making the result minimal


@dataclass(frozen=True)
class Trial:
    """A timing and its verdict. ``number`` counts from 1.

    ``own``: part of its work had not been done by any earlier timing (of the same worker); otherwise all of it came
    from earlier timings, in an order that is the same wherever order matters.
    """

    number: int
    deviations: tuple[Deviation, ...]
    verdict: ReplayVerdict
    own: bool = True

    def row(self) -> dict[str, Any]:
        """Return a row of a table: the deviations as in a token, the first wrong value in words."""
        verdict, first = self.verdict, self.verdict.first
        where = f"step {first.step}.{first.micro_batch} {first.phase} rank {first.rank}" if first else ""
        return {
            "number": self.number,
            "deviations": written(self.deviations),
            "diverged": verdict.diverged,
            "wrong_values": len(verdict.wrong),
            "bad_numbers": verdict.bad,
            "loss_difference": verdict.loss,
            "first_wrong": f"{first.name or first.kind} in {where}" if first else "",
            "departed": verdict.departure is not None,
        }


class Share(NamedTuple):
    """The work of one worker: draw ``examples`` timings from ``seed``, for up to ``seconds``."""

    seed: int
    examples: int
    seconds: float | None


@dataclass(frozen=True)
class CampaignResult:
    """The result of a campaign.

    ``tried``: every timing that was drawn, each executed and judged once. ``smallest``: the smallest timing found that
    diverges, None if none does; ``minimal``: it is known not to diverge if any one of its deviations is removed.
    ``shrinking``: the number of executions spent on shrinking. ``reused``: the first timings of ``tried``, which an
    earlier campaign had left in the database; ``from_database``: one of these still diverged. ``interrupted``: by
    Ctrl-C, or by ``failure``, an engine's; the results known by then are included. ``twice``: timings that were drawn
    by two workers, which are in ``tried`` once.

    Hypothesis varies what it drew before, so the timings are no sample, and the part that diverges estimates nothing.
    """

    tried: tuple[Trial, ...]
    smallest: tuple[Deviation, ...] | None
    minimal: bool
    shrinking: int
    reused: int
    from_database: bool
    interrupted: bool
    twice: int = 0
    failure: Exception | None = None

    @property
    def timings(self) -> int:
        return len(self.tried)

    @property
    def diverged(self) -> int:
        return sum(trial.verdict.diverged for trial in self.tried)

    @property
    def own(self) -> int:
        """Return the number of timings with work of their own (:class:`Trial`); the others executed nothing."""
        return sum(trial.own for trial in self.tried)

    @property
    def first(self) -> int | None:
        """Return the number of the first timing that diverged."""
        return next((trial.number for trial in self.tried if trial.verdict.diverged), None)

    @property
    def outcomes(self) -> int:
        """Return the number of distinct ways to go wrong: wrong values, bad numbers, difference of a loss."""
        wrong = (trial.verdict for trial in self.tried if trial.verdict.diverged)
        return len({(verdict.wrong, verdict.bad, repr(verdict.loss)) for verdict in wrong})

    def rows(self) -> list[dict[str, Any]]:
        return [trial.row() for trial in self.tried]

    def as_dict(self) -> dict[str, Any]:
        """Convert to data for JSON: a loss difference that is NaN or infinite is null."""
        rows = self.rows()
        for row in rows:
            row["loss_difference"] = row["loss_difference"] if math.isfinite(row["loss_difference"]) else None
        same = (
            "timings", "own", "diverged", "outcomes", "twice", "first", "minimal", "shrinking", "reused",
            "from_database", "interrupted",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in same},
            "smallest": None if self.smallest is None else written(self.smallest),
            "rows": rows,
        }


def campaign(
    subject: Subject,
    *,
    examples: int,
    seconds: float | None = None,
    seed: int = 0,
    database: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    shrinking: int = 150,
    elsewhere: Callable[[], Iterable[tuple[Share, Trial]]] | None = None,
) -> CampaignResult:
    """Execute up to ``examples`` timings, for up to ``seconds``; if training diverges, find the smallest such timing.

    The timings that an earlier campaign left in the folder ``database`` are tried first. ``progress``: callback that
    takes the number of executed timings and how many of them diverged. Shrinking has a budget of its own: ``shrinking``
    executions. The same subject, seed and database give the same result, unless ``seconds`` end the campaign.

    ``elsewhere`` executes the timings instead (:mod:`streamrace.fuzz.engines`), and yields each with its share. Timings
    from the database are tried here, and diverging timings are shrunk here.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    example_database = None if database is None else DirectoryBasedExampleDatabase(database)
    return _Campaign(subject, examples, end, seed, example_database, progress, shrinking, elsewhere).result()


def explore(subject: Subject, share: Share, report: Callable[[Trial], None]) -> None:
    """Execute the timings of a worker's share, and report each when it is done."""
    end = math.inf if share.seconds is None else time.monotonic() + share.seconds
    part = _Campaign(subject, share.examples, end, share.seed, None, lambda *_: report(part.tried[-1]), 0, None)
    part.draw()


def written(deviations: Sequence[Deviation]) -> str:
    """Return the deviations as a token writes them."""
    return ",".join(str(Token("x", {}, tuple(deviations))).split(",")[2:])


def read(text: str) -> tuple[Deviation, ...]:
    """Parse the text of :func:`written`."""
    return Token.parse(",".join([*str(Token("x", {}, ())).split(","), *filter(None, [text])])).deviations


class _Enough(KeyboardInterrupt):
    """The budget is spent. Hypothesis stops at once only for Ctrl-C: any other exception it would keep as a failure."""


@dataclass
class _Campaign:
    subject: Subject
    examples: int
    end: float
    seed: int
    database: DirectoryBasedExampleDatabase | None
    progress: Callable[[int, int], None] | None
    budget: int
    elsewhere: Callable[[], Iterable[tuple[Share, Trial]]] | None
    tried: list[Trial] = field(default_factory=list)
    known: dict[Hashable, bool] = field(default_factory=dict)
    failing: list[tuple[Deviation, ...]] = field(default_factory=list)
    choices: dict[tuple[Deviation, ...], tuple[int, ...]] = field(default_factory=dict)  # of those that Hypothesis drew
    shrinking: int = 0  # executions
    twice: int = 0  # timings that came from two workers

    def result(self) -> CampaignResult:
        smallest, minimal, reused, from_database, interrupted = None, False, 0, False, False
        failure: Exception | None = None
        try:
            if self.database is not None:
                self._draw(self._explore, Phase.reuse)
                reused, from_database = len(self.tried), bool(self.failing)
            if self.elsewhere is None:
                self.draw()
            else:
                failure = self._gather(self.elsewhere())
            if self.failing and failure is None:
                if not from_database:  # the same draws come again, executing nothing, up to the first failure
                    self._draw(self._shrink, Phase.generate, Phase.shrink)
                shrunk = shrink(self._run, min(self.failing, key=_size), budget=max(1, self.budget - self.shrinking))
                smallest, minimal = shrunk.deviations, shrunk.minimal
        except KeyboardInterrupt:
            interrupted = True
        if self.failing:
            smallest = smallest or min(self.failing, key=_size)
            self._keep()
        return CampaignResult(
            tuple(self.tried),
            smallest,
            minimal,
            self.shrinking,
            reused,
            from_database,
            interrupted or failure is not None,
            self.twice,
            failure,
        )

    def draw(self) -> None:
        """Execute drawn timings until a limit is reached."""
        self._draw(self._note, Phase.generate)

    def _gather(self, elsewhere: Iterable[tuple[Share, Trial]]) -> Exception | None:
        """Add the trials executed elsewhere; shrinking continues from the share of the first failing timing.

        Returns the error that ended the execution early, if any; trials received before are added all the same.
        """
        came: list[tuple[Share, Trial]] = []
        diverged = 0
        try:
            for share, trial in elsewhere:
                came.append((share, trial))
                diverged += trial.verdict.diverged
                if self.progress is not None:
                    self.progress(len(self.tried) + len(came), len(self.failing) + diverged)
        except Exception as error:
            return error
        finally:  # in an order that does not depend on the workers' speed
            for share, trial in sorted(came, key=lambda pair: (pair[1].number, pair[0].seed)):
                key = identity(trial.deviations)
                if key in self.known:
                    self.twice += 1
                else:
                    self.known[key] = trial.verdict.diverged
                    self.tried.append(replace(trial, number=len(self.tried) + 1))
                    if trial.verdict.diverged:
                        if not self.failing:  # draws depend on the limit of the share
                            self.seed, self.examples = share.seed, share.examples
                        self.failing.append(trial.deviations)
        return None

    def _draw(self, condition: Callable[[tuple[Deviation, ...]], bool], phase: Phase, *more: Phase) -> None:
        """Let Hypothesis draw timings, with those for which ``condition`` holds as failures."""
        errors: list[Exception] = []

        def holds(candidate: tuple[tuple[Deviation, ...], tuple[int, ...]]) -> bool:
            self.choices.setdefault(*candidate)
            try:
                return condition(candidate[0])
            except Exception as error:  # Hypothesis would take it for a failure, and shrink it
                errors.append(error)
                raise _Enough from error

        # With a seed Hypothesis reads no database, and reused timings need no seed.
        database, random = (self.database, None) if phase is Phase.reuse else (None, Random(self.seed))
        chosen = settings(
            max_examples=self.examples * _DRAWS_PER_TIMING, phases=(phase, *more), database=database,
            deadline=None, derandomize=False, verbosity=Verbosity.quiet,
        )  # fmt: skip
        drawn = timings_with_choices(self.subject)
        try:
            find(drawn, holds, settings=chosen, random=random, database_key=_key(self.subject))
        except (NoSuchExample, SkipTest, _Enough):  # SkipTest: there was nothing to reuse
            if errors:
                raise errors[0] from None

    def _keep(self) -> None:
        """Save the smallest failing timing that Hypothesis can draw again in the database."""
        if self.database is not None:
            drawn = [timing for timing in self.failing if timing in self.choices]
            if drawn:
                self.database.save(_key(self.subject), choices_to_bytes(self.choices[min(drawn, key=_size)]))

    def _note(self, deviations: tuple[Deviation, ...]) -> bool:
        """Execute a timing and return False, so that Hypothesis continues to draw."""
        return self._explore(deviations) and False

    def _explore(self, deviations: tuple[Deviation, ...]) -> bool:
        if identity(deviations) not in self.known:
            if len(self.tried) >= self.examples or time.monotonic() >= self.end:
                raise _Enough
            shared = self.subject.sharing.shared
            none_before = shared.none
            verdict = self._execute(deviations)
            self.tried.append(Trial(len(self.tried) + 1, deviations, verdict, own=shared.none == none_before))
            if self.progress is not None:
                self.progress(len(self.tried), len(self.failing))
        return self.known[identity(deviations)]

    def _shrink(self, deviations: tuple[Deviation, ...]) -> bool:
        if identity(deviations) not in self.known and self.shrinking >= self.budget * _BY_HYPOTHESIS:
            raise _Enough
        return self._run(deviations)

    def _run(self, deviations: Sequence[Deviation]) -> bool:
        if identity(deviations) not in self.known:
            self.shrinking += 1
            self._execute(tuple(deviations))
        return self.known[identity(deviations)]

    def _execute(self, deviations: tuple[Deviation, ...]) -> ReplayVerdict:
        verdict = self.subject.run(deviations)
        self.known[identity(deviations)] = verdict.diverged
        if verdict.diverged:
            self.failing.append(deviations)
        return verdict


def _size(deviations: Sequence[Deviation]) -> tuple[bool, int, int, int]:
    """Return a sort key: smaller is without jitter, with fewer deviations, fewer stretches, smaller amounts."""
    amounts = [
        deviation.ns if isinstance(deviation, OperationDelay) else deviation.factor
        for deviation in deviations
        if not isinstance(deviation, Jitter)
    ]
    wide = sum(isinstance(deviation, Stretch) for deviation in deviations)
    return len(amounts) < len(deviations), len(deviations), wide, sum(amounts)


def _key(subject: Subject) -> bytes:
    """Return the database key, one per program: the same draws mean other timings in another program."""
    program = subject.recording.info.get("scenario") or [list(operation) for operation in subject.operations]
    return sha256(json.dumps(["timing", program], sort_keys=True, default=str).encode()).digest()
