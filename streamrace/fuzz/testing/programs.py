"""Tests a whole program: that nothing races in it (called by tests that ``streamrace emit-test`` writes for a race).

The program runs on the simulated GPU in processes of its own, so the session needs no GPU, no mark and no torch. Its
races are found by happens-before, which covers every timing in which the program takes the same branches. Then the
program runs in a timing that had shown a race, and the values that it reads have to be the same.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from streamrace.detectors import Hang, Race, Unseen, registry
from streamrace.detectors import wording as of_accesses
from streamrace.detectors.base import found_by
from streamrace.detectors.confidence.waits import Waits
from streamrace.detectors.files import find_races, read, rests_on
from streamrace.detectors.order.races import Side
from streamrace.detectors.places import between as lies_between
from streamrace.detectors.places import is_there, meant
from streamrace.device.processor import KERNELS
from streamrace.device.timing import Delay, Timing
from streamrace.fuzz.live.runs import LiveOutcome, Runner, UnwrittenTrace
from streamrace.fuzz.live.standalone import SAME_ORDER, Alone, AloneRuns, comes_by, standing
from streamrace.fuzz.reduction.hang_predicate import hangs_of
from streamrace.fuzz.testing.report import races_so_far
from streamrace.trace import wording
from streamrace.trace.records import TraceError

PATIENCE_S = 300.0  # limit of a run


class StreamRaceWarning(UserWarning):
    """A note about a program that passes."""


@dataclass(frozen=True)
class Judgement:
    """The result of a test. ``problem``: why it fails, empty if it passes. ``races``: the cause of the failure.

    ``unseen``: accesses that escaped. ``notes``: about a program that passes.
    """

    problem: str = ""
    races: tuple[Race, ...] = ()
    unseen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_program(
    program: str,
    *,
    between: tuple[str, str],
    timing: str = "t1",
    reference: str = "t1",
    beside: Sequence[tuple[str, str]] = (),
    ranks: int | None = None,
    name: str = "program.py",
    modules: Mapping[str, str] = MappingProxyType({}),
    files: Mapping[str, str | bytes | Path] = MappingProxyType({}),
    arguments: Sequence[str] = (),
) -> None:
    """Fail if streams race in a program, or if the program reads other values in ``timing``.

    ``program``: its text, which runs as a script ``name`` with ``modules`` next to it (texts by file name) and with
    ``arguments``, as a launcher starts it on ``ranks`` ranks (None: without a launcher). ``files``: those that it
    opens, each a text, bytes or a file to copy, by its path in the program's folder and in the working folder.
    ``between``: the places of the two accesses that the test is about, ``file.py:function``, of any call that leads to
    them; a race elsewhere fails too, as this race may have moved, except for known races: ``beside``. ``timing``: a
    token, in which the values read have to be the same as in ``reference`` (empty: each launch is waited for at once).
    Imports are those of this session; random generators are seeded before each run. Raises ValueError if a path of
    ``files`` leads elsewhere.
    """
    __tracebackhide__ = True
    import pytest

    with _standing(program, ranks, name, modules, files, arguments) as runs:
        try:
            result = judged(runs, between, Timing.parse(timing), Timing.parse(reference) if reference else None, beside)
        except UnwrittenTrace as problem:
            result = Judgement(f"nothing is known of the race: {problem}")
    for note in result.notes:
        warnings.warn(note, StreamRaceWarning, stacklevel=2)
    if result.problem:
        pytest.fail(result.problem, pytrace=False)


def check_collectives(
    program: str,
    *,
    ranks: int,
    name: str = "program.py",
    modules: Mapping[str, str] = MappingProxyType({}),
    files: Mapping[str, str | bytes | Path] = MappingProxyType({}),
    arguments: Sequence[str] = (),
) -> None:
    """Fail if the program's ranks hang, or issue collectives in an order that may hang. See :func:`check_program`."""
    __tracebackhide__ = True
    import pytest

    with _standing(program, ranks, name, modules, files, arguments) as runs:
        found, why = hangs_of(runs, Timing())
    if why:
        pytest.fail(f"nothing is known of the collectives: {why}", pytrace=False)
    if found:
        word = "hang" if isinstance(found[0], Hang) else "may hang"
        pytest.fail(f"{word}: {found[0].sentence()}", pytrace=False)


@contextmanager
def _standing(
    program: str,
    ranks: int | None,
    name: str,
    modules: Mapping[str, str],
    files: Mapping[str, str | bytes | Path],
    arguments: Sequence[str],
) -> Iterator[AloneRuns]:
    """Let the program run by itself, with this session's imports."""
    __tracebackhide__ = True
    import pytest

    path = os.pathsep.join(dict.fromkeys(os.path.abspath(entry) for entry in [*_cpu_torch(), *sys.path]))
    variables: dict[str, str | None] = {"PYTHONPATH": path, "DS_ACCELERATOR": None}
    variables |= SAME_ORDER
    variables |= {name: os.environ.get(name, value) for name, value in KERNELS.items()}
    data = {path: inner.encode() if isinstance(inner, str) else inner for path, inner in files.items()}
    alone = Alone({name: program, **modules}, tuple(arguments), ranks, data)
    for file in data.values():
        if isinstance(file, Path) and not file.is_file():
            pytest.fail(f"nothing is known of the race: the program opens {file}, which is not there", pytrace=False)
    with Runner(variables=variables) as runner, standing(alone, runner, PATIENCE_S) as runs:
        yield runs


def judged(
    runs: AloneRuns,
    between: Sequence[str],
    timing: Timing,
    reference: Timing | None,
    beside: Sequence[tuple[str, str]] = (),
) -> Judgement:
    """Judge a program as :func:`check_program` does. Raises RuntimeError without a simulated GPU."""
    plain = Timing()
    first, traces = runs.keep(plain)
    if why := _failed(first, runs):
        return Judgement(f"nothing is known of the race: {why}")
    waits, detectors = Waits(), [make() for make in registry.DETECTORS]
    try:
        read(traces, [waits, *detectors])
    except TraceError as problem:
        return Judgement(f"nothing is known of the race: {problem}")
    unseen = tuple(map(str, found_by(detectors, Unseen)))
    lost = [place for place in dict.fromkeys(between) if not comes_by(first, place)]

    def failing(races: Sequence[Race]) -> list[Race]:
        """Return the unknown races, with those between the two places first."""
        others = [race for race in races if not any(lies_between(race, places) for places in beside)]
        own = [race for race in races if lies_between(race, between)]
        return [*own, *(race for race in others if race not in own)]

    def run(in_: Timing | None) -> LiveOutcome:
        """Run in a timing, reusing the plain run; None: each launch is waited for at once."""
        return first if in_ == plain else runs.run(in_ or plain, at_once=in_ is None)

    races = found_by(detectors, Race)
    if wrong := failing(races):
        lines = _report(wrong, between, timing, run(timing).differs(run(reference)), lost)
        return Judgement("\n".join(lines), tuple(wrong), unseen)
    if unseen:
        return Judgement(f"no race is seen, but not all that the program does was: {'; '.join(unseen)}", unseen=unseen)
    shown, shown_traces = (first, traces) if timing == plain else runs.keep(timing)
    if why := _failed(shown, runs):
        return Judgement(f"no race is seen, but in the timing {timing} {why}")
    if again := failing(find_races(shown_traces)):  # the program takes other branches in this timing
        return Judgement("\n".join(_report(again, between, timing, "", lost)), tuple(again))
    notes = [f"the program does not come by {place} any more: it has no race at all" for place in lost]
    notes += [f"in the timing {timing} nothing is delayed: {line}" for line in _missing(shown, timing)]
    if races:
        sentence = f"the known race of {_line(races[0].first, ())} and {_line(races[0].second, ())} is still there"
        return Judgement(notes=(*notes, f"{sentence}: values were not compared, as it may change them"))
    notes += _by_chance(traces, waits, between)
    if differs := shown.differs(run(reference)):
        if by_itself := runs.run(timing).differs(shown):
            return Judgement(f"two runs in the same timing differ, so values cannot be compared: {by_itself}")
        return Judgement(
            f"no race is seen, and yet values depend on timing: {differs} in {timing}. Either "
            "the program itself goes by the time, as by query(), or an access was not seen"
        )
    return Judgement(notes=tuple(notes))


def _cpu_torch() -> list[str]:
    """Return the path of torch's CPU build, if this environment has another (:mod:`streamrace.device.substitute`)."""
    from streamrace.device import substitute

    return [str(substitute.place())] if substitute.needed() else []


def _failed(outcome: LiveOutcome, runs: AloneRuns) -> str:
    """Return why a run is inconclusive, as the end of a sentence; empty if it is not."""
    if outcome.status is None:
        return f"the program did not end within {runs.patience_s:.0f} s"
    if outcome.status:
        return f"the program ends with status {outcome.status}\n\n{runs.output()}"
    if not any(recorded.works for recorded in outcome.run.values()):
        return "the program issues no work to the device"
    return ""


def _report(
    races: Sequence[Race], between: Sequence[str], timing: Timing, differs: str, lost: Sequence[str]
) -> list[str]:
    first = races[0]
    lines = [f"stream race: {_line(first.second, between)} is not ordered after {_line(first.first, between)}"]
    if lost:
        lines.append(f"The program does not come by {wording.every(lost)} any more: what was there may be elsewhere.")
    elif not lies_between(first, between):
        lines.append(f"None is between {wording.every(between)} any more, but this one was not there.")
    lines += ["", *races_so_far(races)]
    if differs:
        lines += ["", f"In the timing {timing} {differs} differs."]
    elif timing.deviations:
        lines += ["", f"In the timing {timing} the program sees the same: by this race alone it is benign."]
    return lines


def _line(side: Side, between: Sequence[str]) -> str:
    """Return an access in short, with the line of the given place."""
    frame = next((frame for frame in side.stack if any(is_there(place, [frame]) for place in between)), None)
    frame = frame or meant(side.stack)
    access = f"the {of_accesses.access(side)}"
    return f"{access} at {wording.frame(frame, path=True)}" if frame else access


def _missing(outcome: LiveOutcome, timing: Timing) -> list[str]:
    """Return the work that the timing delays but the program does not issue."""
    places = [deviation.place for deviation in timing.deviations if isinstance(deviation, Delay)]
    return [
        f"there is no {place.occurrence}. {place.kernel} on stream {place.stream} of rank {place.rank} any more"
        for place in places
        if place.rank not in outcome.run or outcome.run[place.rank].works.number(place) is None
    ]


def _by_chance(traces: Path, waits: Waits, between: Sequence[str]) -> list[str]:
    """Return the incidental waits that alone order the two accesses."""
    orders = [wait for wait in rests_on(traces, waits).held if any(lies_between(race, between) for race in wait.races)]
    return [f"only by chance: {', '.join(map(str, wait.sites))} orders the two" for wait in orders]
