"""Describes races, timings and wrong values of a test in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from streamrace.detectors.order.races import Race, Side, describe
from streamrace.detectors.streams import stream_named
from streamrace.device.timing import Deviation, Jitter, Stretch, Timing
from streamrace.fuzz.live.recorded import RecordedRun
from streamrace.fuzz.watched import Value, difference
from streamrace.trace.records import Frame

_OURS = tuple(str(Path("fuzz", name)) for name in ("testing/bodies.py", "testing/forked.py", "testing/plugin.py"))
_AT_MOST = 4
_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))


def race_lines(race: Race) -> list[str]:
    """Return both sides with their places, and the missing wait."""
    return [
        *_side("first ", race.first),
        *_side("second", race.second),
        f"  Missing: {race.missing_wait}",
    ]


def timing_lines(timing: Timing, run: RecordedRun) -> list[str]:
    """Return the differences from the plain timing, a line each; ``run`` is a run of the test."""
    if not timing.deviations:
        return ["the plain timing"]
    return [_deviation(one, run) for one in timing.deviations]


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
            again = f" (watched for the {_nth(time)} time)" if time > 1 else ""
            where = f" on rank {then.rank}" if len(ranks) > 1 else ""
            lines.append(f"{then.name}{again}{where}: {line}")
    more = [f"and {len(lines) - _AT_MOST} more values"] if len(lines) > _AT_MOST else []
    return lines[:_AT_MOST] + more


def _side(which: str, side: Side) -> list[str]:
    if side.access == "free":
        return [f"  {which} the memory is freed: work on {stream_named(side.stream)} may be given it next"]
    frames = own(side.stack)
    kernel = side.kernel.rpartition("::")[2]
    places = [f"           {frame.file}:{frame.line} {frame.function}" for frame in frames[:3]]
    if not frames:
        places = ["           where the test returns it"]
    return [f"  {which} {side.access} by {kernel} on {stream_named(side.stream)}", *places]


def by_pytest(side: Side) -> bool:
    """Check for a read by pytest, which shows the values of a failing assert."""
    return any("_pytest" in Path(frame.file).parts for frame in own(side.stack))


def own(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames of the test and its callees, without those of the code that runs it."""
    end = next((at for at, frame in enumerate(frames) if frame.file.endswith(_OURS)), len(frames))
    return frames[:end]


def _deviation(deviation: Deviation, run: RecordedRun) -> str:
    if isinstance(deviation, Jitter):
        return _jitter(deviation)
    if isinstance(deviation, Stretch):
        kind, _, name = deviation.what.partition(":")
        if kind == "stream" and name.isdecimal():
            name = next((one.streams[int(name)] for one in run.values() if int(name) in one.streams), name)
        return _stretch(kind, name, deviation.factor)
    (rank, stream, kernel, occurrence), how, ns = deviation
    one = run.get(rank)
    op = one.works.number(deviation.place) if one else None
    if one is None or op is None:
        what = f"the {_nth(occurrence)} {kernel} on stream {stream}"
    else:
        what = f"{describe(kernel, own(one.frames(op)))} on {stream_named(one.streams.get(stream, str(stream)))}"
    where = f" of rank {rank}" if len(run) > 1 else ""
    return f"{what}{where} {_late(how, ns)}"


def _stretch(kind: str, name: str, factor: int) -> str:
    if kind == "host":
        return f"the host{' of rank ' + name if name else ''} is {factor} times as slow"
    which = f"rank {name}" if kind == "rank" else f"{kind} {name!r}"
    return f"{which} is {factor} times as slow"


def _jitter(jitter: Jitter) -> str:
    return f"every kernel and collective takes up to {jitter.percent} % longer, drawn from seed {jitter.seed}"


def _late(how: str, ns: int) -> str:
    late = "takes {} longer" if how == "long" else "starts {} later"
    return late.format(_time(ns))


def _time(ns: int) -> str:
    size, unit = next(one for one in _UNITS if ns % one[0] == 0)
    return f"{ns // size} {unit}"


def _nth(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, 'th') }"
