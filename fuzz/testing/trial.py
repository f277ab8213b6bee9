"""One test under many timings: recorded, its races found, each reversed by a witness, then timings at random.

How a timing is executed: the recording is **replayed** under it. As long as the host reads what it read when the
run was recorded, the test's own program would have done the same, so the replay is the run. Where the host reads
another value (or asks ``query()``, whose answer is a matter of timing), the body is run **live** under that timing,
and its asserts and watched values judge. What is reported was always seen live.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from detectors import HappensBefore
from detectors.races import Race
from fuzz.shrink import shrink
from fuzz.strategy import draw_timing
from fuzz.streams import KIND, NoTensors, Value
from fuzz.subject import Subject
from fuzz.testing import device
from fuzz.testing.bodies import Bodies, Body, Problem, Run, Tell
from fuzz.testing.options import Options
from fuzz.testing.report import BLIND, BodyFailed, Judged, Shown, in_token, races_so_far, report
from fuzz.testing.told import by_pytest, differences, timing_lines
from fuzz.witness import reverse
from repro.accelerator.costs import Timing
from repro.replay.deviations import Deviation, Stretch
from repro.replay.faults import ReplayError
from repro.replay.names import UnknownOperation
from repro.replay.record_old import plain_timing
from repro.replay.tokens import Token
from repro.trace import Call, HostStep, HostWait, Sight

SCENARIO = "test"  # in tokens
_NO_FAILURE = ("Skipped", "XFailed")
_AT_ONCE = (Stretch("host", 10**6),)  # a host so slow that each piece of work is done before the next is issued


@dataclass
class _Recorded:
    subject: Subject
    expected: Sequence[Value]  # what is watched, where each piece of work is done at once when it is issued
    asks: bool  # the host goes on by what query() answers
    looks: bool  # the test reads or watches something
    suspects: tuple[tuple[Deviation, ...], ...]  # timings to look at first


class Trial:
    """``named`` and ``command`` are what a token and a report call the test."""

    def __init__(
        self, named: Mapping[str, str], command: str, body: Body, options: Options, folder: Path, tell: Tell
    ) -> None:
        self._named = named
        self._command = command
        self._options = options
        self._bodies = Bodies(body, options.ranks, options.seed, folder, tell)
        self._timing = plain_timing(options.ranks, options.profile)
        self._live: dict[tuple[Deviation, ...], list[str]] = {}
        self._first: Run | None = None

    def check(self) -> str | None:
        """What is wrong with the test, as a report. Raises :class:`BodyFailed` and :class:`Problem`."""
        recorded = self._record()
        races = [self._judge(recorded, race) for race in recorded.subject.races]
        failing: tuple[tuple[Deviation, ...], Sequence[str]] | None = None
        if recorded.looks and not any(one.word == "harmful" for one in races):
            failing = self._search(recorded)
        accused = [one for one in races if self._options.benign == "fail" or one.word != "benign"]
        if failing is None and not accused:
            return None
        shown = None if failing is None else self._shown(recorded, *failing)
        return "\n".join(report(races if failing else accused, shown, self._again))

    def once(self, token: Token) -> str | None:
        """The same for the token's timing alone: what its run gives that it should not."""
        recorded = self._record()
        recording = recorded.subject.recording
        try:
            timing = recorded.subject.live_timing(token.deviations)
        except UnknownOperation as error:
            raise Problem(f"the timing does not fit this test any more: {error}") from None
        run = self._run(timing)
        words = timing_lines(token.deviations, recording)
        if run.failure is not None:
            raise BodyFailed(run.failure, "stream timing", words)
        wrong = differences(recorded.expected, run.values)
        return in_token(words, wrong) if wrong else None

    # -- recording --------------------------------------------------------------------------------------

    def _record(self) -> _Recorded:
        first = self._first = self._run(self._timing)
        if first.failure is not None:
            if first.failure.kind == NoTensors.__name__:
                raise Problem(first.failure.line.partition(": ")[2])
            if told := device.missed(first.failure.line):
                raise Problem(told)
            skipped = first.failure.kind in _NO_FAILURE
            raise BodyFailed(first.failure, "stream races", [] if skipped else _races_so_far(first))
        assert first.recording is not None
        try:
            subject = Subject(first.recording)
            expected = _in_order(subject)
            as_recorded = subject.run()
        except ReplayError as error:
            raise Problem(f"the test cannot be fuzzed: {error}") from None
        records = [record for those in first.recording.records.values() for record in those]
        reads = any(isinstance(record, Call) and record.host for record in records)
        asks = any(
            (isinstance(record, HostWait) and record.how == "query")
            or (isinstance(record, HostStep) and record.how == "asked")
            for record in records
        )
        departs = subject.reference.departure is not None
        suspects = ((), _AT_ONCE) if as_recorded.diverged or departs else ()
        return _Recorded(subject, expected, asks, asks or reads or bool(expected), suspects)

    def _run(self, timing: Timing) -> Run:
        try:
            return self._bodies.run(timing)
        except ReplayError as error:
            raise Problem(f"the test cannot be fuzzed: {error}") from None

    # -- judging ----------------------------------------------------------------------------------------

    def _judge(self, recorded: _Recorded, race: Race) -> Judged:
        """The first example that does harm; else the first that can be reversed; else why none can."""
        found: Judged | None = None
        subject = recorded.subject
        for example in race.examples:
            one = reverse(subject.recording, subject.replayer.graph, race, example)
            if one.reason:
                judged = Judged(race, "not judged", None, one.reason)
            elif recorded.looks:
                witness = self._shown(recorded, one.deviations, self._wrong(recorded, one.deviations))
                judged = Judged(race, "harmful" if witness.wrong else "benign", witness)
            else:
                judged = Judged(race, "not judged", None, BLIND)
            if judged.word == "harmful":
                return judged
            if found is None or (found.witness is None and judged.witness is not None):
                found = judged
        assert found is not None  # a race has at least one example
        return found

    def _shown(self, recorded: _Recorded, deviations: tuple[Deviation, ...], wrong: Sequence[str]) -> Shown:
        words = timing_lines(deviations, recorded.subject.recording)
        return Shown(str(Token(SCENARIO, self._named, deviations)), words, wrong)

    def _wrong(self, recorded: _Recorded, deviations: tuple[Deviation, ...]) -> Sequence[str]:
        """What goes wrong in this timing, a line each. By replay where that can tell, else live."""
        if not recorded.asks:
            with suppress(ReplayError, LookupError, ValueError):  # values can drive a kernel out of bounds
                verdict = recorded.subject.run(deviations)
                if verdict.departure is None and not verdict.diverged:
                    return ()
        if deviations not in self._live:
            self._live[deviations] = self._live_wrong(recorded, deviations)
        return self._live[deviations]

    def _live_wrong(self, recorded: _Recorded, deviations: tuple[Deviation, ...]) -> list[str]:
        if not self._live:
            self._run_again()
        run = self._run(recorded.subject.live_timing(deviations))
        if run.failure is not None:
            return [] if run.failure.kind in _NO_FAILURE else [run.failure.line]
        return differences(recorded.expected, run.values)

    def _run_again(self) -> None:
        """The recorded timing once more: what runs cannot be compared otherwise."""
        assert self._first is not None
        again = self._run(self._timing)
        lines = [again.failure.line] if again.failure else differences(self._first.values, again.values)
        if lines:
            raise Problem(
                f"the test gives something else when it runs again under the same timing, so runs cannot be compared: "
                f"{lines[0]}; its body has to build all that it changes"
            )

    def _search(self, recorded: _Recorded) -> tuple[tuple[Deviation, ...], Sequence[str]] | None:
        """The first timing that goes wrong, made small, and what goes wrong in it."""
        generator = random.Random(f"{self._options.seed}/{dict(self._named)}")
        drawn = (draw_timing(generator, recorded.subject) for _ in range(self._options.examples))
        for timing in (*recorded.suspects, *drawn):
            if self._wrong(recorded, timing):
                smallest = shrink(
                    lambda deviations: bool(self._wrong(recorded, tuple(deviations))),
                    timing,
                    budget=200 if self._options.ranks == 1 else 30,
                ).deviations
                return smallest, self._wrong(recorded, smallest)
        return None

    def _again(self, token: str) -> str:
        return f"{self._command} --stream-timing {token}"


def _in_order(subject: Subject) -> list[Value]:
    """What is watched, where each piece of work is done at once when it is issued."""
    replayer = subject.replayer
    replayer.run_order(replayer.graph.issue_order())
    return [
        Value(rank, record.name, replayer.tensor(rank, record.view).clone())
        for rank, records in subject.recording.records.items()
        for record in records
        if isinstance(record, Sight) and record.kind == KIND
    ]


def _races_so_far(run: Run) -> list[str]:
    """The races of a body that failed."""
    if run.recording is None:
        return []
    detector = HappensBefore()
    for rank, records in run.recording.records.items():
        detector.feed(rank, records)
    detector.finish()
    return races_so_far([race for race in detector.races if not (by_pytest(race.first) or by_pytest(race.second))])
