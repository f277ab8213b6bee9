"""Describes races, timings and wrong values of a test in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from streamrace.detectors import wording as of_accesses
from streamrace.detectors.order.races import Race, Side, describe
from streamrace.detectors.streams import stream_named
from streamrace.device.timing import Place, Timing
from streamrace.fuzz.live.deviations import words
from streamrace.fuzz.live.run_record import RecordedRun
from streamrace.fuzz.watched_values import Value, difference
from streamrace.trace import wording
from streamrace.trace.records import Frame

_OURS = tuple(str(Path("fuzz", name)) for name in ("testing/bodies.py", "testing/forked.py", "testing/plugin.py"))
_AT_MOST = 4


def race_lines(race: Race) -> list[str]:
    """Return both sides with their places, and the missing wait."""
    return [
        *(f"  {line}" for word, side in (("first", race.first), ("second", race.second)) for line in _side(word, side)),
        f"  Missing: {race.missing_wait}",
    ]


def timing_lines(timing: Timing, run: RecordedRun) -> list[str]:
    """Return the differences from the plain timing, a line each; ``run`` is a run of the test."""
    if not timing.deviations:
        return ["the plain timing"]

    def stream(number: int) -> str:
        return stream_named(
            next((rank.streams[number] for rank in run.values() if number in rank.streams), str(number))
        )

    def work(place: Place) -> str:
        recorded, where = run.get(place.rank), f" of rank {place.rank}" if len(run) > 1 else ""
        op = recorded.works.number(place) if recorded else None
        if recorded is None or op is None:
            return f"the {wording.ordinal(place.occurrence)} {place.kernel} on stream {place.stream}{where}"
        name = stream_named(recorded.streams.get(place.stream, str(place.stream)))
        return f"{describe(place.kernel, own(recorded.frames(op)))} on {name}{where}"

    return [words(deviation, work=work, stream=stream) for deviation in timing.deviations]


def differences(expected: Sequence[Value], values: Sequence[Value]) -> list[str]:
    """Return the watched values that have other bits, a line each; empty if all are the same."""
    if [value[:2] for value in expected] != [value[:2] for value in values]:
        return [f"{len(values)} values are watched instead of {len(expected)}, or other ones"]
    ranks = {value.rank for value in expected}
    counts: dict[tuple[int, str], int] = {}
    lines = []
    for then, now in zip(expected, values, strict=True):
        counts[then[:2]] = time = counts.get(then[:2], 0) + 1
        if line := difference(then.tensor, now.tensor):
            again = f" (watched for the {wording.ordinal(time)} time)" if time > 1 else ""
            where = f" on rank {then.rank}" if len(ranks) > 1 else ""
            lines.append(f"{then.name}{again}{where}: {line}")
    omitted = len(lines) - _AT_MOST
    more = [f"and {omitted} more {wording.plural_of(omitted, 'value')}"] if omitted > 0 else []
    return lines[:_AT_MOST] + more


def _side(word: str, side: Side) -> list[str]:
    frames = () if side.access == "free" else own(side.stack)[:3]
    nowhere = "" if side.access == "free" else "where the test returns it"
    return of_accesses.listed(word, side, frames, nowhere)


def by_pytest(side: Side) -> bool:
    """Check for a read by pytest, which shows the values of a failing assert."""
    return any("_pytest" in Path(frame.file).parts for frame in own(side.stack))


def own(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames of the test and its callees, without those of the code that runs it."""
    end = next((at for at, frame in enumerate(frames) if frame.file.endswith(_OURS)), len(frames))
    return frames[:end]
